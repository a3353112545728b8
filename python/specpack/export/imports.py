"""Imports as values, and where isort's black profile puts them in a module."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specpack.export.sources import Refusal, insert, parsed, replace

LINE_LENGTH = 88
_TYPE_CHECKING = ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@dataclass(frozen=True)
class Import:
    """One imported name: `import module` where `name` is None."""

    module: str
    name: str | None = None
    alias: str | None = None

    @property
    def bound(self) -> str:
        """The name it binds."""
        return self.alias or self.name or self.module.partition(".")[0]

    @property
    def item(self) -> str:
        """What stands behind the keyword `import`."""
        item = self.name or self.module
        return f"{item} as {self.alias}" if self.alias else item

    def same_as(self, other: Import) -> bool:
        """Whether both bind the same thing, one perhaps through its package."""
        one, two = sorted([self.module, other.module], key=len)
        return self.name == other.name and (two + ".").startswith(one + ".")


def imports_in(node: ast.stmt) -> tuple[Import, ...]:
    """What an import statement imports; nothing for any other statement."""
    if isinstance(node, ast.Import):
        return tuple(Import(alias.name, None, alias.asname) for alias in node.names)
    if isinstance(node, ast.ImportFrom) and not node.level:
        return tuple(Import(node.module, a.name, a.asname) for a in node.names)
    return ()


def at_runtime(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """A module's statements, those under `if` and `try` included.

    Blocks for type checkers only are left out.
    """
    for node in body:
        checked = isinstance(node, ast.If) and ast.unparse(node.test) in _TYPE_CHECKING
        if isinstance(node, (ast.If, ast.Try)):
            parts = [] if checked else [*node.body, *getattr(node, "finalbody", [])]
            for handler in getattr(node, "handlers", []):
                parts += handler.body
            yield from at_runtime([*parts, *node.orelse])
        else:
            yield node


def bound_names(text: str) -> dict[str, Import | None]:
    """The names a module binds, each with its import where it is one."""
    names: dict[str, Import | None] = {}
    for node in at_runtime(parsed(text).body):
        for imported in imports_in(node):
            names[imported.bound] = imported
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[node.name] = None
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(dict.fromkeys(_stored(node)))
    return names


def _stored(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id


def statement(module: str, items: Iterable[str], indent: str = "") -> str:
    """A `from` import as black writes it."""
    ordered = sorted(set(items), key=_item_key)
    line = f"{indent}from {module} import {', '.join(ordered)}"
    if len(line) <= LINE_LENGTH:
        return line
    rows = "".join(f"{indent}    {item},\n" for item in ordered)
    return f"{indent}from {module} import (\n{rows}{indent})"


def block(imports: Iterable[Import], indent: str = "") -> str:
    """Import statements in isort's order, as they stand inside a function."""
    by_module: dict[str, list[str]] = {}
    plain = []
    for imported in imports:
        if imported.name is None:
            plain.append(imported)
        else:
            by_module.setdefault(imported.module, []).append(imported.item)
    written = [(_key(i.module), f"{indent}import {i.item}") for i in plain]
    written += [
        (_key(module, min(items, key=_item_key)), statement(module, items, indent))
        for module, items in by_module.items()
    ]
    lines: list[str] = []
    last = None
    for key, source in sorted(written):
        if last not in (None, key[0]):
            lines.append("")
        lines.append(source)
        last = key[0]
    return "\n".join(lines)


def in_their_order(text: str) -> str:
    """The imports as SGLang's isort has them, to which `sglang` is the first party."""
    try:
        import isort
    except ImportError as error:
        raise Refusal("export formats with isort: pip install isort") from error
    return isort.code(text, profile="black", known_first_party=["sglang"])


def add(text: str, imported: Import) -> str:
    """The module's text with one more import, at its place in isort's order."""
    nodes = _header_imports(text)
    for node in nodes if imported.name else []:
        if _can_extend(text, node, imported):
            names = [Import("", a.name, a.asname).item for a in node.names]
            source = statement(imported.module, [*names, imported.item])
            return replace(text, node.lineno, node.end_lineno, source)
    return _add_statement(text, nodes, imported)


def _header_imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    nodes = []
    for node in parsed(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            break
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            nodes.append(node)
    return nodes


def _can_extend(text: str, node: ast.stmt, imported: Import) -> bool:
    # isort keeps `as` imports in statements of their own.
    if not isinstance(node, ast.ImportFrom) or node.module != imported.module:
        return False
    lines = text.split("\n")[node.lineno - 1 : node.end_lineno]
    renames = any(alias.asname for alias in node.names) or imported.alias
    return not node.level and not renames and not any("#" in line for line in lines)


def _add_statement(text: str, nodes: list[ast.stmt], imported: Import) -> str:
    key = _key(imported.module, imported.name)
    source = block([imported])
    keys = [_node_key(node) for node in nodes]
    after = next((i for i, other in enumerate(keys) if other > key), len(nodes))
    if after and keys[after - 1][0] == key[0]:
        return insert(text, nodes[after - 1].end_lineno + 1, source)
    if after < len(nodes) and keys[after][0] == key[0]:
        return insert(text, nodes[after].lineno, source)
    if after < len(nodes):
        return insert(text, nodes[after].lineno, source + "\n")
    if nodes:
        return insert(text, nodes[-1].end_lineno + 1, "\n" + source)
    return insert(text, _below_docstring(text), source + "\n")


def _below_docstring(text: str) -> int:
    module = parsed(text)
    documented = ast.get_docstring(module) is not None
    return module.body[0].end_lineno + 2 if documented else 1


def _node_key(node: ast.Import | ast.ImportFrom) -> tuple:
    if isinstance(node, ast.Import):
        return _key(node.names[0].name)
    return _key("." * node.level + (node.module or ""), node.names[0].name)


def _key(module: str, name: str | None = None) -> tuple:
    natural = _natural(module.lower())
    return _section(module), name is not None, natural, _item_key(name or "")


def _section(module: str) -> int:
    top = module.partition(".")[0]
    if top in ("", "sglang"):
        return 4 if top == "" else 3
    if top == "__future__":
        return 0
    return 1 if top in sys.stdlib_module_names else 2


def _item_key(item: str) -> tuple:
    name = item.partition(" ")[0]
    constant = name.isupper() and len(name) > 1
    kind = 0 if constant else 1 if name[:1].isupper() else 2
    return kind, _natural(name.lower())


def _natural(name: str) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts]
