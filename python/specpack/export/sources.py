"""SGLang's source with our edits on top, and where things stand in it."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, field
from pathlib import Path

from specpack.seams.source import Tree

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Refusal(Exception):
    """Why nothing was exported; the text is for the user."""


@dataclass
class Sources:
    """A tree's modules; what is written stays in memory."""

    tree: Tree
    edited: dict[str, str] = field(default_factory=dict)

    def read(self, module: str) -> str | None:
        """The text of a module as edited so far, or None where there is none."""
        return self.edited.get(module) or self.tree.text(module)

    def path(self, module: str) -> Path:
        """The file of a module, of one that is new too."""
        path = self.tree.root.parent.joinpath(*module.split("."))
        package = path / "__init__.py"
        return package if package.is_file() else path.with_suffix(".py")


@functools.lru_cache(maxsize=64)
def parsed(text: str) -> ast.Module:
    """A module's tree; nobody changes it."""
    return ast.parse(text)


def find(text: str, qualname: str) -> Definition:
    """The definition a dotted name is bound to, the last one. Raises Refusal."""
    node: ast.AST = parsed(text)
    for name in qualname.split("."):
        found = [n for n in node.body if getattr(n, "name", None) == name]
        if not found:
            raise Refusal(f"there is no {qualname} outside of conditions")
        node = found[-1]
    return node


def first_line(node: ast.stmt) -> int:
    """The 1-based line where a statement starts, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def with_comments(text: str, node: ast.stmt) -> int:
    """The line where a statement and the comment lines right above it start."""
    lines = text.split("\n")
    line = first_line(node)
    indent = " " * node.col_offset
    while line > 1 and lines[line - 2].startswith(indent + "#"):
        line -= 1
    return line


def source_of(text: str, node: ast.stmt) -> str:
    """The lines of a statement, decorators included, without a final newline."""
    return "\n".join(text.split("\n")[first_line(node) - 1 : node.end_lineno])


def insert(text: str, line: int, block: str) -> str:
    """The text with a block of whole lines before the 1-based `line`."""
    lines = text.split("\n")
    return "\n".join([*lines[: line - 1], *block.split("\n"), *lines[line - 1 :]])


def replace(text: str, first: int, last: int, block: str) -> str:
    """The text with a block instead of the 1-based lines `first` to `last`."""
    lines = text.split("\n")
    return "\n".join([*lines[: first - 1], *block.split("\n"), *lines[last:]])


def docstring_node(node: Definition) -> ast.stmt | None:
    """The docstring's statement, if there is one."""
    first = node.body[0]
    value = first.value if isinstance(first, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return first if isinstance(text, str) else None


def body_line(text: str, node: Definition) -> int:
    """The line at which new statements go: below the header and the docstring.

    Raises Refusal where the body stands on the header's line.
    """
    docstring = docstring_node(node)
    if docstring is not None:
        return docstring.end_lineno + 1
    line = first_line(node.body[0])
    if line == node.lineno:
        raise Refusal(f"the body of {node.name} stands on its `def` line")
    lines = text.split("\n")
    while lines[line - 2].lstrip().startswith("#") or not lines[line - 2].strip():
        line -= 1
    return line
