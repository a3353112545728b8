"""A digest of what a function does, blind to layout, comments and docstrings."""

from __future__ import annotations

import ast
import hashlib

_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
_NONE_IS_A_VALUE = (ast.Constant, ast.MatchSingleton)


def fingerprint(function: str | ast.AST) -> str:
    """The sha256 of a function's AST, the same on Python 3.10 to 3.14.

    `function` is its source, decorators included and at any indentation, or its
    node.
    """
    node = parse_block(function) if isinstance(function, str) else function
    return hashlib.sha256(canonical(node).encode()).hexdigest()


def parse_block(source: str) -> ast.stmt:
    """The first statement of a source fragment that may be indented.

    Dedenting would change multi-line strings, hence the `if` around it.
    """
    if source[:1].isspace():
        return ast.parse("if 1:\n" + source).body[0].body[0]
    return ast.parse(source).body[0]


def canonical(node: object) -> str:
    """`ast.dump` as Python 3.11 writes it, without docstrings.

    Later Pythons add `type_params` and leave out empty lists; the first 3.12 add an
    empty constant to a format specification.
    """
    if isinstance(node, list):
        return "[" + ", ".join([canonical(item) for item in node]) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None and not (name == "value" and type(node) in _NONE_IS_A_VALUE):
            continue
        if name == "type_params" and not value:
            continue
        if name == "body" and isinstance(node, _WITH_DOCSTRING):
            value = value[_has_docstring(value) :]
        elif name == "values" and isinstance(node, ast.JoinedStr):
            value = [part for part in value if getattr(part, "value", None) != ""]
        fields.append(f"{name}={canonical(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def _has_docstring(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    )
