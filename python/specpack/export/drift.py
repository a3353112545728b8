"""What changed upstream in a seam that has drifted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from specpack.export.sources import Refusal, find, source_of
from specpack.seams.fingerprint import fingerprint
from specpack.seams.kinds import FunctionSeam, NewModule, Seam
from specpack.seams.source import Tree, installed
from specpack.seams.verify import Problem, Verdict

_HEAD = 12


def explain(verdicts: Iterable[Verdict], tree: Tree) -> str:
    """Each drifted seam by name, with what changed upstream."""
    verified = installed()
    parts = []
    for verdict in verdicts:
        note = f" ({verdict.note})" if verdict.note else ""
        parts.append(f"{verdict.patch.name}: {verdict.state}{note}")
        for problem in verdict.problems:
            parts += [f"  {problem}", *_changes(problem, tree, verified)]
    return "\n".join(parts)


def _changes(problem: Problem, tree: Tree, verified: Tree | None) -> list[str]:
    """The difference from a verified release, else the head of what was found."""
    seam = problem.seam
    found = _function(seam, tree)
    known = verified and _function(seam, verified)
    if known and _is_verified(seam, known):
        lines = difflib.unified_diff(
            known.splitlines(),
            (found or "").splitlines(),
            f"{seam.target} in {verified.version}",
            f"{seam.target} in {tree.version}",
            lineterm="",
        )
        return [f"    {line}" for line in lines]
    return [f"    {line}" for line in (found or "").splitlines()[:_HEAD]]


def _function(seam: Seam, tree: Tree) -> str | None:
    text = tree.text(seam.module)
    if isinstance(seam, NewModule):
        return text
    try:
        return text and source_of(text, find(text, seam.qualname))
    except Refusal:
        return None


def _is_verified(seam: Seam, source: str) -> bool:
    known = seam.fingerprints.values() if isinstance(seam, FunctionSeam) else ()
    return fingerprint(source) in known
