"""New modules: files of ours that are imported under a name of SGLang's."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from specpack.seams.kinds import NewModule

_sources: dict[str, str] = {}


class NewModuleFinder:
    """Finds new modules on `sys.meta_path`, before what may lie in SGLang's folder."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The file of ours as a module of that name."""
        source = _sources.get(name)
        if source is None:
            return None
        return importlib.util.spec_from_file_location(name, source_file(source))


def source_file(source: str) -> Path:
    """The file of a module of ours; its packages are imported, it is not.

    Raises ModuleNotFoundError.
    """
    spec = importlib.util.find_spec(source)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"There is no module {source}.", name=source)
    return Path(spec.origin)


def provide(seam: NewModule) -> None:
    """Make the module importable; nothing is looked up before somebody imports it."""
    _sources[seam.module] = seam.source
    if NewModuleFinder not in sys.meta_path:
        sys.meta_path.insert(0, NewModuleFinder)


def is_ours(seam: NewModule, module: ModuleType) -> bool:
    """Whether a module was made from the seam's file."""
    return getattr(module, "__file__", None) == str(source_file(seam.source))
