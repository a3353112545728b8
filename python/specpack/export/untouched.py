"""The promise that an edit touches its functions and the imports, nothing else."""

from __future__ import annotations

import ast
import re

from specpack.export.imports import imports_in
from specpack.export.sources import find, parsed, with_comments


def same_elsewhere(before: str, after: str, qualnames: set[str]) -> bool:
    """Whether two texts of a module agree but for named definitions and imports.

    Imports may only gain names; blank lines do not count.
    """
    same = _residue(before, qualnames) == _residue(after, qualnames)
    return same and _imported(before) <= _imported(after)


def _imported(text: str) -> set[object]:
    return {i for node in parsed(text).body for i in imports_in(node)}


def _residue(text: str, qualnames: set[str]) -> str:
    lines: list[str | None] = list(text.split("\n"))
    tree = parsed(text)
    nodes = [node for node in tree.body if imports_in(node)]
    nodes += [node for name in qualnames for node in _named(text, name)]
    for node in nodes:
        start = node.lineno if imports_in(node) else with_comments(text, node)
        for line in range(start - 1, node.end_lineno):
            lines[line] = None
    kept = "\n".join(line for line in lines if line is not None)
    return re.sub(r"\n\s*\n+", "\n", kept).strip("\n")


def _named(text: str, qualname: str) -> list[ast.stmt]:
    """The last definition and the assignments of a name in its scope."""
    scope, _, name = qualname.rpartition(".")
    owner = find(text, scope) if scope else parsed(text)
    defined = [node for node in owner.body if getattr(node, "name", None) == name]
    return defined[-1:] + [node for node in owner.body if _assigns(node, name)]


def _assigns(node: ast.stmt, name: str) -> bool:
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return any(getattr(target, "id", None) == name for target in targets)
