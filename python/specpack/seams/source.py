"""SGLang's source, read by path: nothing here imports SGLang."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path

from specpack.seams.fingerprint import fingerprint, parse_block

_MAX_EXTENSIONS = 20
_WORD = re.compile(r"\w")


@dataclass(frozen=True)
class Tree:
    """A SGLang source tree: the `sglang` package folder and its version."""

    root: Path
    version: str
    _texts: dict[str, str | None] = field(default_factory=dict, repr=False)
    _prints: dict[str, str | None] = field(default_factory=dict, repr=False)

    def text(self, module: str) -> str | None:
        """The source of a module, or None where the tree has no such module."""
        if module not in self._texts:
            self._texts[module] = self._read(module)
        return self._texts[module]

    def fingerprint(self, module: str, qualname: str) -> str | None:
        """The fingerprint of a function, or None where the tree has none such."""
        place = f"{module}:{qualname}"
        if place not in self._prints:
            node = find_function(self.text(module) or "", qualname)
            self._prints[place] = node and fingerprint(node)
        return self._prints[place]

    def has_package(self, package: str) -> bool:
        """Whether the tree has a folder for a package, `__init__.py` in it or not."""
        return self.root.parent.joinpath(*package.split(".")).is_dir()

    def _read(self, module: str) -> str | None:
        path = self.root.parent.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
        return None


def installed() -> Tree | None:
    """The SGLang that this interpreter would import, or None."""
    spec = util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    return Tree(root, _version_file(root) or _version_metadata())


def tree_at(path: Path) -> Tree | None:
    """The SGLang under a folder: the package, its parent, or a git checkout."""
    for root in (path, path / "sglang", path / "python" / "sglang"):
        if (root / "srt").is_dir():
            return Tree(root, _version_file(root) or "unknown")
    return None


def _version_file(root: Path) -> str | None:
    file = root / "_version.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(r"^__version__ = .*?['\"]([^'\"]+)['\"]", text, re.M)
    return found and found[1]


def _version_metadata() -> str:
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return "unknown"


def find_function(text: str, qualname: str) -> ast.stmt | None:
    """The node of the function or class that `qualname` is bound to, the last one.

    Only its own lines are parsed; the whole module only where that fails.
    """
    scope = _scope(text, qualname)
    if scope is not None:
        start, stop, indent, name = scope
        header = _last_header(text, name, indent, start, stop)
        if header >= 0:
            node = _parse_at(text, _decorated(text, header, indent), indent)
            if node is not None:
                return node
    return _find_by_parsing(text, qualname)


def find_value(text: str, qualname: str) -> ast.expr | None:
    """The value that a class body or module assigns to `qualname`, the last one."""
    scope = _scope(text, qualname)
    if scope is None:
        return None
    start, stop, indent, name = scope
    found = _last(rf"^{indent}{name} *(?::[^=\n]+)?=(?!=)", text, start, stop)
    node = found and _parse_at(text, found.start(), indent)
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None


def defines(text: str, qualname: str) -> bool:
    """Whether a module or class body defines, assigns or imports a name."""
    scope = _scope(text, qualname)
    if scope is None or scope[-1] not in text:
        return False
    start, stop, indent, name = scope
    binds = (
        rf"^{indent}(?:(?:async +)?def|class) +{name}\b"
        rf"|^{indent}{name} *(?::[^=\n]+)?=(?!=)"
        rf"|^{indent}(?:from +\S+ +)?import\b[^(\n]*\b{name}\b"
        rf"|^{indent}from +\S+ +import +\([^)]*\b{name}\b"
    )
    return _last(binds, text, start, stop) is not None


def has_scope(text: str, qualname: str) -> bool:
    """Whether the class that holds `qualname` exists (a module always does)."""
    return _scope(text, qualname) is not None


def _scope(text: str, qualname: str) -> tuple[int, int, str, str] | None:
    """Where the body that defines `qualname` lies, its indentation and the name."""
    owner, _, name = qualname.rpartition(".")
    body = _body(text, owner)
    return body and (*body, name)


@functools.lru_cache(maxsize=8)  # one class is asked for several times in a row
def _body(text: str, owner: str) -> tuple[int, int, str] | None:
    """Where a class's body lies and its indentation; the module's for no name."""
    start, stop, indent = 0, len(text), ""
    for name in filter(None, owner.split(".")):
        start = _last_header(text, name, indent, start, stop)
        if start < 0:
            return None
        stop = min(stop, _end(text, text.find("\n", start), indent))
        indent += "    "
    return start, stop, indent


def _last_header(text: str, name: str, indent: str, start: int, stop: int) -> int:
    """Where the last `def` or `class` line of a name starts, or -1.

    String search, because compiling a pattern for each name costs more.
    """
    headers = [f"{indent}{word} {name}" for word in ("def", "class", "async def")]
    return max(_last_line(text, header, start, stop) for header in headers)


def _last_line(text: str, head: str, start: int, stop: int) -> int:
    """Where the last line starts that begins with `head` as whole words, or -1."""
    found = text.rfind("\n" + head, start, stop) + 1
    while found and _WORD.match(text, found + len(head)):
        found = text.rfind("\n" + head, start, found - 1) + 1
    return found or (0 if start == 0 and text.startswith(head) else -1)


def _last(pattern: str, text: str, start: int, stop: int) -> re.Match[str] | None:
    found = None
    for found in re.compile(pattern, re.M).finditer(text, start, stop):
        pass
    return found


def _end(text: str, start: int, indent: str) -> int:
    """Where the block whose header is at `start` ends, judged by indentation.

    A line that closes a bracket belongs to the block, and so does a comment.
    """
    found = re.compile(rf"^ {{0,{len(indent)}}}[^\s#)\]}}]", re.M).search(text, start)
    return found.start() if found else len(text)


def _decorated(text: str, header: int, indent: str) -> int:
    """Where the decorators above a header start."""
    start = line = header
    while line:
        line = text.rfind("\n", 0, line - 1) + 1
        head = text[line : text.find("\n", line)]
        if head.startswith(indent + "@"):
            start = line
        elif head.strip() and not head.startswith((indent + " ", indent + ")")):
            break
    return start


def _parse_at(text: str, start: int, indent: str) -> ast.stmt | None:
    """The statement that starts at `start`.

    A multi-line string may hold lines that look like the block's end: then the
    shorter text does not parse, and a longer one is tried.
    """
    decorators = re.compile(rf"(?:{indent}(?:@.*|[ )].*|)\n)*").match(text, start)
    stop = decorators.end()
    for _ in range(_MAX_EXTENSIONS):
        stop = _end(text, text.find("\n", stop) + 1 or len(text), indent)
        try:
            return parse_block(text[start:stop])
        except SyntaxError:
            if stop == len(text):
                return None
    return None


def _find_by_parsing(text: str, qualname: str) -> ast.stmt | None:
    node: ast.AST = ast.parse(text)
    for name in qualname.split("."):
        found = [n for n in node.body if getattr(n, "name", None) == name]
        if not found:
            return None
        node = found[-1]
    return node
