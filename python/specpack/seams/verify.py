"""Compares seams with SGLang's source; nothing is imported unless a probe must run."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from specpack.seams.fingerprint import canonical, parse_block
from specpack.seams.kinds import (
    ABSENT,
    Addition,
    Attribute,
    FunctionSeam,
    NewModule,
    Patch,
    Seam,
)
from specpack.seams.source import (
    Tree,
    defines,
    find_function,
    find_value,
    has_scope,
)

State = Literal["applies", "not needed", "drifted", "left out"]
RunProbe = Callable[[Patch], "tuple[bool, str]"]


@dataclass(frozen=True)
class Problem:
    """Why a seam does not fit; `can_force` where it could attach all the same."""

    seam: Seam
    reason: str
    can_force: bool = False

    def __str__(self) -> str:
        return f"{self.seam.target} {self.reason}"


@dataclass(frozen=True)
class Verdict:
    """What becomes of a patch; `note` says more where the state does not."""

    patch: Patch
    state: State
    problems: tuple[Problem, ...] = ()
    note: str = ""


def run_probe(patch: Patch) -> tuple[bool, str]:
    """Whether SGLang already behaves right, and why that could not be told."""
    try:
        return bool(patch.probe()), ""
    except Exception as error:
        return False, f"its probe failed with {type(error).__name__}: {error}"


def verify(
    patches: Iterable[Patch], tree: Tree, probe: RunProbe = run_probe
) -> tuple[Verdict, ...]:
    """The verdict on each patch, in order; a patch follows those it requires.

    Raises ValueError where a patch requires one that does not stand before it.
    """
    verdicts: dict[str, Verdict] = {}
    for patch in patches:
        missing = [name for name in patch.requires if name not in verdicts]
        if missing:
            raise ValueError(f"{patch.name} requires {missing}, not before it")
        verdict = _verdict(patch, tree, probe)
        if verdict.state == "applies":
            verdict = leave_out_dependent(verdict, verdicts)
        verdicts[patch.name] = verdict
    return tuple(verdicts.values())


def leave_out_dependent(verdict: Verdict, earlier: dict[str, Verdict]) -> Verdict:
    """The verdict, or `left out` where a required patch is not there."""
    for name in verdict.patch.requires:
        if earlier[name].state in ("drifted", "left out"):
            return Verdict(verdict.patch, "left out", note=f"requires {name}")
    return verdict


def _verdict(patch: Patch, tree: Tree, probe: RunProbe) -> Verdict:
    problems = tuple(p for seam in patch.seams for p in problems_of(seam, tree))
    if not problems:
        return Verdict(patch, "applies")
    fixed, note = probe(patch)
    return Verdict(patch, "not needed" if fixed else "drifted", problems, note)


def problems_of(seam: Seam, tree: Tree) -> list[Problem]:
    """What in the tree differs from what the seam was verified on."""
    if isinstance(seam, NewModule):
        found = _new_module_problem(seam, tree)
        return [found] if found else []
    text = tree.text(seam.module)
    if text is None:
        return [Problem(seam, "is in a module that this release does not have")]
    if isinstance(seam, FunctionSeam):
        found = _function_problem(seam, tree)
    elif isinstance(seam, Addition):
        found = _addition_problem(seam, text)
    elif isinstance(seam, Attribute):
        found = _attribute_problem(seam, text)
    else:
        raise TypeError(f"{seam.target}: no such kind of seam, {type(seam).__name__}")
    importers = [_importer_problem(seam, importer, tree) for importer in seam.importers]
    return [problem for problem in (found, *importers) if problem]


def _function_problem(seam: FunctionSeam, tree: Tree) -> Problem | None:
    found = tree.fingerprint(seam.module, seam.qualname)
    if found is None:
        return Problem(seam, "does not exist in this release")
    if found in seam.fingerprints.values():
        return None
    node = find_function(tree.text(seam.module), seam.qualname)
    different = parameter_difference(seam, node)
    if different:
        return Problem(seam, different)
    releases = ", ".join(seam.fingerprints) or "none"
    return Problem(
        seam, f"has changed since the releases it was verified on ({releases})", True
    )


def parameter_difference(seam: FunctionSeam, node: ast.AST) -> str | None:
    """How our functions' parameters differ from the target's, annotations aside."""
    theirs = parameters(node)
    for function in seam.functions:
        ours = parameters(parse_block(inspect.getsource(function)))
        if ours != theirs:
            return f"takes ({theirs}), not ({ours})"
    return None


def parameters(node: ast.AST) -> str:
    """A function's parameters as source, without annotations."""
    arguments = copy.deepcopy(node.args)
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return ast.unparse(arguments)


def _addition_problem(seam: Addition, text: str) -> Problem | None:
    if not has_scope(text, seam.qualname):
        return Problem(seam, "belongs to a class that this release does not have")
    if defines(text, seam.qualname):
        return Problem(seam, "exists already in this release")
    return None


def _new_module_problem(seam: NewModule, tree: Tree) -> Problem | None:
    if not tree.has_package(seam.module.rpartition(".")[0]):
        return Problem(seam, "belongs to a package that this release does not have")
    if tree.text(seam.module) is not None:
        return Problem(seam, "exists already in this release")
    return None


def _attribute_problem(seam: Attribute, text: str) -> Problem | None:
    if not has_scope(text, seam.qualname):
        return Problem(seam, "belongs to a class that this release does not have")
    if seam.expected is ABSENT:
        exists = defines(text, seam.qualname)
        return Problem(seam, "exists already in this release", True) if exists else None
    value = find_value(text, seam.qualname)
    if value is None:
        return Problem(seam, "does not exist in this release")
    if canonical(value) != canonical(ast.parse(seam.expected, mode="eval").body):
        return Problem(
            seam, f"is {ast.unparse(value)} here, not {seam.expected}", can_force=True
        )
    return None


def _importer_problem(seam: Seam, importer: str, tree: Tree) -> Problem | None:
    module, _, alias = importer.partition(":")
    text = tree.text(module)
    if text is None or not defines(text, alias or seam.name):
        return Problem(seam, f"is no longer imported by name in {module}")
    return None
