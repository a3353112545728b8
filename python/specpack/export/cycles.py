"""Whether a module-level import would close a circle: read from source, not tried."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from specpack.export.sources import Sources

_IMPORT = re.compile(
    r"^(?P<indent> *)(?:from +(?P<source>[.\w]+) +import +(?P<names>\([^)]*\)|[^\n]*)"
    r"|import +(?P<plain>[^\n]*))",
    re.M,
)
_SKIPPED = ("def ", "class ", "async ", "@", "if TYPE_CHECKING", "if typing.TYPE")


def closes_circle(sources: Sources, importer: str, imported: str) -> bool:
    """Whether importing `imported` imports `importer`, as far as its source says."""
    # Its own packages are loaded before it is.
    seen: set[str] = set(_packages(importer))
    waiting = [imported]
    while waiting:
        module = waiting.pop()
        if module == importer:
            return True
        if module in seen:
            continue
        seen.add(module)
        waiting += imports_of(sources, module)
    return False


def imports_of(sources: Sources, module: str) -> set[str]:
    """The SGLang modules that importing a module imports, its packages included."""
    found = set(_packages(module))
    for match in _immediate(sources.read(module) or ""):
        for name in _modules(sources, module, match):
            found.update([name, *_packages(name)])
    return found - {module}


@functools.lru_cache(maxsize=None)
def _immediate(text: str) -> tuple[re.Match[str], ...]:
    """The import statements that run when the module is imported."""
    return tuple(
        match
        for match in _IMPORT.finditer(text)
        if not match["indent"] or not _is_deferred(text, match.start())
    )


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts)))


def _is_deferred(text: str, position: int) -> bool:
    """Whether an indented import runs later or never: judged by its block's header."""
    start = position
    while start:
        start = text.rfind("\n", 0, start - 1) + 1
        if text[start : start + 1] not in (" ", "\n", "#", ")", ""):
            return text.startswith(_SKIPPED, start)
    return False


def _modules(sources: Sources, module: str, match: re.Match[str]) -> Iterator[str]:
    if match["plain"] is not None:
        names = [part.split()[0] for part in match["plain"].split(",") if part.strip()]
        yield from (name for name in names if name.startswith("sglang"))
        return
    base = _absolute(sources, module, match["source"])
    if base.partition(".")[0] != "sglang":
        return
    yield base
    for name in re.findall(r"\w+", re.sub(r"#.*", "", match["names"])):
        if sources.read(f"{base}.{name}") is not None:
            yield f"{base}.{name}"


def _absolute(sources: Sources, module: str, source: str) -> str:
    dots = len(source) - len(source.lstrip("."))
    if not dots:
        return source
    is_package = sources.path(module).name == "__init__.py"
    parts = module.split(".")
    parts = parts[: len(parts) - dots + is_package]
    return ".".join([*parts, *filter(None, [source[dots:]])])
