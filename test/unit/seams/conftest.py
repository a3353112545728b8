"""A small package in the place of SGLang, new for each test."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from specpack.seams import applying, fingerprint
from specpack.seams.source import Tree, find_function

_numbers = itertools.count()


class Library:
    """A package on disk whose modules a test writes, seams target and it imports."""

    def __init__(self, folder: Path) -> None:
        # wrapt keeps the hooks of modules that were never imported: no name twice.
        self.name = f"library{next(_numbers)}"
        self.root = folder / self.name
        self.root.mkdir()
        (self.root / "__init__.py").touch()

    @property
    def tree(self) -> Tree:
        return Tree(self.root, "9.9.9")

    def write(self, module: str, source: str) -> None:
        text = textwrap.dedent(source).replace("LIBRARY", self.name)
        (self.root / f"{module}.py").write_text(text)

    def target(self, place: str) -> str:
        return f"{self.name}.{place}"

    def prints(self, place: str) -> dict[str, str]:
        module, qualname = place.split(":")
        text = (self.root / f"{module}.py").read_text()
        return {"9.9.8": fingerprint(find_function(text, qualname))}

    def load(self, module: str) -> ModuleType:
        return importlib.import_module(f"{self.name}.{module}")

    def is_loaded(self, module: str) -> bool:
        return f"{self.name}.{module}" in sys.modules


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """A library that `apply` takes for the installed SGLang."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SPECPACK_ON_DRIFT", raising=False)
    monkeypatch.setattr(applying, "installed", lambda: library.tree)
    library = Library(tmp_path)
    yield library
    for name in [name for name in sys.modules if name.startswith(library.name)]:
        del sys.modules[name]


@pytest.fixture
def never() -> Callable[[], bool]:
    """A probe that must not run."""

    def probe() -> bool:
        raise AssertionError("the probe ran though nothing had drifted")

    return probe
