"""Where new definitions and attributes go: where an engineer would look for them."""

from __future__ import annotations

import ast

from specpack.export.sources import (
    find,
    first_line,
    insert,
    parsed,
    replace,
    with_comments,
)
from specpack.seams.kinds import Addition, Attribute, Patch

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definition(text: str, seam: Addition, patch: Patch, source: str) -> str:
    """The text with a new function or method.

    A method goes to the end of its class; a function before the definition that the
    patch makes use it, else to the end of the module's definitions.
    """
    if "." in seam.qualname:
        owner = find(text, seam.qualname.rpartition(".")[0])
        return insert(text, owner.end_lineno + 1, "\n" + source)
    body = parsed(text).body
    user = _user(seam, patch)
    for node in body:
        if user is not None and getattr(node, "name", None) == user:
            line = with_comments(text, node)
            return insert(text, line, source + "\n\n")
    last = [node for node in body if isinstance(node, _DEFINITIONS)] or body[-1:]
    line = last[-1].end_lineno + 1 if last else 1
    return insert(text, line, "\n\n" + source)


def _user(seam: Addition, patch: Patch) -> str | None:
    """The definition at module level whose lines the patch edits in this module."""
    for other in patch.seams:
        is_function = isinstance(other, Addition) and "." not in other.qualname
        if other.module == seam.module and not is_function:
            return other.qualname.partition(".")[0]
    return None


def assignment(text: str, seam: Attribute, source: str) -> str:
    """The text with an attribute set: its line replaced, or one more at the top."""
    owner = parsed(text)
    if "." in seam.qualname:
        owner = find(text, seam.qualname.rpartition(".")[0])
    present = [node for node in owner.body if seam.name in _assigned(node)]
    if present:
        node = present[-1]
        return replace(text, node.lineno, node.end_lineno, source)
    above = None
    for node in owner.body:
        if isinstance(node, _DEFINITIONS):
            break
        above = node
    if above is not None:
        return insert(text, above.end_lineno + 1, source)
    return insert(text, first_line(owner.body[0]), source + "\n")


def _assigned(node: ast.stmt) -> set[str]:
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return {target.id for target in targets if isinstance(target, ast.Name)}
