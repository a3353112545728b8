"""Puts verified seams in place as their modules are imported, and checks each."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

from specpack.seams.kinds import (
    CONTINUE,
    Around,
    Attribute,
    Guard,
    NewModule,
    Replace,
    Seam,
)
from specpack.seams.modules import is_ours, provide

_MARK = "__specpack_seam__"
_MISSING = object()


class NotAttached(SystemExit):
    """A seam that is not in place.

    A SystemExit, because SGLang's plugin loader and its model registry catch every
    Exception and go on with a half-patched server.
    """


def attach_all(seams: Iterable[Seam]) -> None:
    """Attach each seam when its module is imported, at once where it already is."""
    by_module: dict[str, list[Seam]] = defaultdict(list)
    by_importer: dict[str, list[Seam]] = defaultdict(list)
    for seam in seams:
        if isinstance(seam, NewModule):
            provide(seam)
        by_module[seam.module].append(seam)
        for importer in seam.importers:
            by_importer[importer.partition(":")[0]].append(seam)
    for module, targets in by_module.items():
        register_post_import_hook(functools.partial(_on_target, targets), module)
    for module, imported in by_importer.items():
        register_post_import_hook(functools.partial(_on_importer, imported), module)


def _on_target(seams: list[Seam], module: ModuleType) -> None:
    for seam in seams:
        attach(seam, module)


def _on_importer(seams: list[Seam], module: ModuleType) -> None:
    for seam in seams:
        target = sys.modules.get(seam.module)
        if target is not None and is_attached(seam, target):
            _rebind(seam, target, module)


def attach(seam: Seam, module: ModuleType) -> None:
    """Put one seam in place and check every binding; harmless the second time.

    Raises NotAttached.
    """
    if not is_attached(seam, module):
        _install(seam, _owner(seam, module))
    if not is_attached(seam, module):
        raise NotAttached(
            f"specpack.seams: {seam.target} did not take our {seam.kind}."
        )
    _rebind_importers(seam, module)


def is_attached(seam: Seam, module: ModuleType) -> bool:
    """Whether the target's binding is ours, alone or below later wrappers."""
    if isinstance(seam, NewModule):
        return is_ours(seam, module)
    present = vars(_owner(seam, module)).get(seam.name, _MISSING)
    if isinstance(seam, Attribute):
        return present is seam.value
    ours = getattr(seam, "function", None)
    return any(
        layer is ours or vars(layer).get(_MARK) is seam for layer in layers(present)
    )


def original(function: Any) -> Any:
    """The function below every seam of ours: what SGLang itself defines."""
    function = _plain(function)
    while _MARK in vars(function):
        function = function.__wrapped__
    return function


def layers(function: Any) -> Iterator[Any]:
    """A function and what it wraps, outermost first."""
    function = _plain(function)
    while hasattr(function, "__dict__"):
        yield function
        function = vars(function).get("__wrapped__")


def _plain(function: Any) -> Any:
    if isinstance(function, property):
        return function.fget
    return getattr(function, "__func__", function)


def _owner(seam: Seam, module: ModuleType) -> Any:
    owner: Any = module
    for name in seam.qualname.split(".")[:-1]:
        owner = vars(owner).get(name)
        if owner is None:
            raise NotAttached(
                f"specpack.seams: {seam.target}: there is no {name} to patch."
            )
    return owner


def _install(seam: Seam, owner: Any) -> None:
    present = vars(owner).get(seam.name, _MISSING)
    if isinstance(seam, NewModule):
        raise NotAttached(f"specpack.seams: {seam.target} is not ours: {owner!r}.")
    if isinstance(seam, Attribute):
        setattr(owner, seam.name, seam.value)
    elif seam.kind == "addition":
        if present is not _MISSING:
            raise NotAttached(f"specpack.seams: {seam.target} exists already.")
        setattr(owner, seam.name, seam.function)
    else:
        if present is _MISSING:
            raise NotAttached(f"specpack.seams: {seam.target} is not there to patch.")
        setattr(owner, seam.name, _wrap_descriptor(seam, present))


def _wrap_descriptor(seam: Seam, present: Any) -> Any:
    if isinstance(present, (staticmethod, classmethod)):
        return type(present)(_wrap(seam, present.__func__))
    if isinstance(present, property):
        return property(_wrap(seam, present.fget), present.fset, present.fdel)
    return _wrap(seam, present)


def _wrap(seam: Seam, function: Callable[..., Any]) -> Callable[..., Any]:
    wrapped = functools.wraps(function)(_WRAPPERS[type(seam)](seam, function))
    setattr(wrapped, _MARK, seam)
    return wrapped


def _guarded(seam: Guard, function: Callable[..., Any]) -> Callable[..., Any]:
    ours = seam.function

    def guarded(*args: Any, **kwargs: Any) -> Any:
        result = ours(*args, **kwargs)
        return function(*args, **kwargs) if result is CONTINUE else result

    return guarded


def _surrounded(seam: Around, function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def surrounded(*args: Any, **kwargs: Any) -> Any:
        if seam.before:
            bound = signature.bind(*args, **kwargs)
            bound.arguments.update(seam.before(*args, **kwargs) or {})
            args, kwargs = bound.args, bound.kwargs
        result = function(*args, **kwargs)
        return seam.after(result, *args, **kwargs) if seam.after else result

    return surrounded


def _replaced(seam: Replace, function: Callable[..., Any]) -> Callable[..., Any]:
    ours = seam.function
    return lambda *args, **kwargs: ours(*args, **kwargs)


_WRAPPERS = {Guard: _guarded, Around: _surrounded, Replace: _replaced}


def _rebind_importers(seam: Seam, target: ModuleType) -> None:
    for entry in seam.importers:
        importer = sys.modules.get(entry.partition(":")[0])
        # One that is still being imported gets its turn when it is done.
        if importer is not None and not _is_importing(importer):
            _rebind(seam, target, importer)


def _rebind(seam: Seam, target: ModuleType, importer: ModuleType) -> None:
    """Make a module that imported the target by name see ours, and check it."""
    present = vars(target)[seam.name]
    for entry in seam.importers:
        module, _, alias = entry.partition(":")
        if module != importer.__name__:
            continue
        alias = alias or seam.name
        bound = vars(importer).get(alias, _MISSING)
        if any(bound is layer for layer in layers(present)):
            setattr(importer, alias, present)
        elif not any(layer is present for layer in layers(bound)):
            found = "missing" if bound is _MISSING else repr(bound)
            raise NotAttached(
                f"specpack.seams: {module}.{alias} is not our {seam.target} but {found}."
            )


def _is_importing(module: ModuleType) -> bool:
    return getattr(module.__spec__, "_initializing", False)
