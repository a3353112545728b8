"""Our functions as source: what of them becomes lines of SGLang's."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from specpack.export.imports import LINE_LENGTH, Import, imports_in
from specpack.export.sources import Refusal, body_line, docstring_node, parsed

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Code:
    """Lines of ours at indentation 0, and the imports they were written with."""

    lines: str
    imports: tuple[Import, ...]
    comment: str = ""

    @cached_property
    def node(self) -> ast.Module:
        return ast.parse(self.lines)


def our_source(function: Callable[..., Any]) -> tuple[str, ast.FunctionDef]:
    """A function's source at indentation 0, and its node there."""
    text = textwrap.dedent(inspect.getsource(function)).rstrip("\n")
    return text, ast.parse(text).body[0]


def body_of(function: Callable[..., Any]) -> Code:
    """A function's body without docstring and imports.

    What the docstring says after its first paragraph becomes the comment: the first
    says what the lines do, and so do the lines.
    """
    text, node = our_source(function)
    top = body_line(text, node) - 1
    lines, imports = _without_imports(text, node, top)
    body = textwrap.dedent("\n".join(lines[top:])).strip("\n")
    return Code(body, imports, _comment(ast.get_docstring(node) or ""))


def without_return(code: Code) -> Code:
    """The same without its last statement, a `return`."""
    last = code.node.body[-1]
    if not isinstance(last, ast.Return):
        raise Refusal(f"{ast.unparse(last)!r} is not the return a body ends in")
    lines = code.lines.split("\n")[: last.lineno - 1]
    return replace(code, lines="\n".join(lines).rstrip("\n"))


def definition_of(function: Callable[..., Any], name: str) -> Code:
    """A whole function under a name of the target's, without its imports."""
    text, node = our_source(function)
    top = body_line(text, node) - 1
    lines, imports = _without_imports(text, node, top)
    header = rf"^((?:async )?def ){function.__name__}\((\s*)(self: Any\b)?"
    source = re.sub(
        header,
        lambda found: f"{found[1]}{name}({found[2]}" + ("self" if found[3] else ""),
        "\n".join(lines),
        count=1,
        flags=re.M,
    )
    return Code(source, imports)


def _without_imports(
    text: str, node: ast.FunctionDef, top: int
) -> tuple[list[str], tuple[Import, ...]]:
    lines: list[str | None] = list(text.split("\n"))
    imports: list[Import] = []
    for statement in node.body:
        found = imports_in(statement)
        if found:
            imports += found
            for line in range(statement.lineno - 1, statement.end_lineno):
                lines[line] = None
    head = [line for line in lines[:top] if line is not None]
    body = [line for line in lines[top:] if line is not None]
    while body and not body[0].strip():
        del body[0]
    return head + body, tuple(imports)


def _comment(docstring: str) -> str:
    paragraphs = re.split(r"\n\s*\n", docstring)[1:]
    return " ".join(" ".join(paragraphs).replace("``", "`").split())


def commented(code: Code, indent: str) -> str:
    """The lines below their comment, indented for where they go."""
    width = LINE_LENGTH - len(indent) - 2
    comment = [f"# {line}" for line in textwrap.wrap(code.comment, width)]
    return formatted("\n".join([*comment, code.lines]), indent)


def formatted(source: str, indent: str) -> str:
    """Source at indentation 0 as black writes it at `indent`."""
    try:
        import black
    except ImportError as error:
        raise Refusal("export formats with black: pip install black") from error
    depth = len(indent) // 4
    headers = "".join(f"{'    ' * level}if 1:\n" for level in range(depth))
    nested = headers + _indented(source, indent) + "\n"
    mode = black.Mode(target_versions={black.TargetVersion.PY310})
    lines = black.format_str(nested, mode=mode).split("\n")[depth:]
    return "\n".join(lines).strip("\n")


def _indented(source: str, indent: str) -> str:
    """Indents each line that does not continue a string."""
    inside = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if not _is_docstring(source, node):
                inside.update(_continued(source, node))
    lines = source.split("\n")
    return "\n".join(
        line if number in inside or not line else indent + line
        for number, line in enumerate(lines, 1)
    )


def _is_docstring(source: str, node: ast.Constant) -> bool:
    return any(
        isinstance(part, (ast.FunctionDef, ast.ClassDef))
        and (found := docstring_node(part)) is not None
        and found.lineno == node.lineno
        for part in ast.walk(ast.parse(source))
    )


def _continued(source: str, node: ast.Constant) -> range:
    lines = source.split("\n")[node.lineno - 1 : node.end_lineno]
    triple = any(quote in line for line in lines for quote in ('"""', "'''"))
    return range(node.lineno + 1, node.end_lineno + 1) if triple else range(0)


def names_bound(node: ast.AST) -> set[str]:
    """The names that statements bind in their own scope."""
    names = set()
    for part in own_scope(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            names.add(part.id)
        elif isinstance(part, (*_FUNCTIONS[:2], ast.ClassDef)):
            names.add(part.name)
        elif isinstance(part, ast.ExceptHandler) and part.name:
            names.add(part.name)
        names.update(imported.bound for imported in imports_in(part))
    return names


def names_loaded(node: ast.AST) -> set[str]:
    """The names that statements read, in functions inside them too."""
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
    }


def own_scope(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below one that are not inside a function or class of their own."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            yield from own_scope(child)


def parameter_names(node: ast.FunctionDef) -> set[str]:
    """The names of a function's parameters."""
    return {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}


def free_names(node: ast.AST) -> set[str]:
    """The names that a function or its lines take from around them."""
    bound = set(dir(builtins))
    for part in ast.walk(node):
        if isinstance(part, _FUNCTIONS):
            bound |= parameter_names(part)
    for scope in [node, *ast.walk(node)]:
        bound |= names_bound(scope) if isinstance(scope, _FUNCTIONS[:2]) else set()
    outer = names_bound(node) if isinstance(node, ast.Module) else set()
    return names_loaded(node) - bound - outer


def module_imports(function: Callable[..., Any]) -> dict[str, Import]:
    """What the module of a function of ours imports, for type checkers too."""
    tree = parsed(inspect.getsource(inspect.getmodule(function)))
    found = [i for node in ast.walk(tree) for i in imports_in(node)]
    return {imported.bound: imported for imported in found}
