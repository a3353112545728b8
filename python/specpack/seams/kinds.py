"""The kinds of seam and the patch that groups them: plain tables, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final


class _Sentinel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


CONTINUE: Final = _Sentinel("CONTINUE")
"""What a guard returns to let the original run untouched."""

ABSENT: Final = _Sentinel("ABSENT")
"""`Attribute.expected` of an attribute that SGLang does not define."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seam:
    """One place where a patch attaches: `module:name` or `module:Class.name`."""

    kind: ClassVar[str]
    importers: ClassVar[tuple[str, ...]] = ()
    target: str

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        return self.target.partition(":")[2]

    @property
    def name(self) -> str:
        return self.qualname.rpartition(".")[2]


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionSeam(Seam):
    """A seam on an existing function.

    `fingerprints` maps each SGLang release it was verified on to the sha256 that
    `fingerprint` gives there. `importers` are the modules that import the target
    by name, each as `module` or, where they rename it, `module:alias`.
    """

    fingerprints: Mapping[str, str]
    importers: tuple[str, ...] = ()  # type: ignore[misc]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Our functions that take exactly the target's parameters."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, eq=False)
class Guard(FunctionSeam):
    """`function` runs first; any result but `CONTINUE` replaces the original's."""

    kind: ClassVar[str] = "guard"
    function: Callable[..., Any]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function,)


@dataclass(frozen=True, kw_only=True, eq=False)
class Around(FunctionSeam):
    """Code before and after the original.

    `before(*parameters)` returns the arguments it replaces by name, or None;
    `after(result, *parameters)` sees the replaced ones and returns the result.
    """

    kind: ClassVar[str] = "around"
    before: Callable[..., Mapping[str, Any] | None] | None = None
    after: Callable[..., Any] | None = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.before,) if self.before else ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Replace(FunctionSeam):
    """`function` instead of the original."""

    kind: ClassVar[str] = "replace"
    function: Callable[..., Any]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function,)


@dataclass(frozen=True, kw_only=True, eq=False)
class Addition(Seam):
    """A function or method that SGLang must not have yet."""

    kind: ClassVar[str] = "addition"
    function: Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribute(Seam):
    """A class or module attribute set to `value`.

    `expected` is the source text of the value it has in SGLang, or `ABSENT`.
    """

    kind: ClassVar[str] = "attribute"
    value: Any
    expected: Any = ABSENT


@dataclass(frozen=True, kw_only=True, eq=False)
class NewModule(Seam):
    """A module that SGLang must not have yet; `target` is its dotted name there.

    `source` is the module of ours whose file it is. That file is only found, never
    imported, under its name here: it may import SGLang and torch at its top, and
    must not refer to this package.
    """

    kind: ClassVar[str] = "new module"
    source: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Patch:
    """One fault and its seams.

    `probe` runs the fault's smallest case on SGLang as it stands and returns True
    when it already behaves right; it is called only where a seam has drifted.
    `upstream` is the issue or PR number, `removal` when the patch can go,
    `requires` the patches without which this one must not be applied. For the
    commit it is exported as: `title` its subject, `cost` what it costs at run time,
    `tests` its files below test/registered; one that several patches list travels
    with the last of them.
    """

    name: str
    symptom: str
    upstream: str
    removal: str
    probe: Callable[[], bool]
    seams: tuple[Seam, ...] = ()
    requires: tuple[str, ...] = ()
    title: str = ""
    cost: str = ""
    tests: tuple[str, ...] = ()
