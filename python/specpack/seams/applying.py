"""All or nothing: verify every patch, then attach, or leave with one paragraph."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from specpack.seams.attach import NotAttached, attach_all
from specpack.seams.kinds import Patch
from specpack.seams.source import Tree, installed
from specpack.seams.verify import Verdict, leave_out_dependent, verify

ON_DRIFT = "SPECPACK_ON_DRIFT"
logger = logging.getLogger("specpack")


def apply(patches: Iterable[Patch], plugin: str = "specpack") -> tuple[Verdict, ...]:
    """Apply the patches to the installed SGLang; harmless the second time.

    Returns the verdicts. Raises SystemExit, with nothing applied, where a seam has
    drifted and SPECPACK_ON_DRIFT does not say otherwise: SGLang's plugin loader
    would swallow any other exception.
    """
    policy = os.environ.get(ON_DRIFT, "")
    if policy not in ("", "apply", "skip"):
        raise SystemExit(f"{plugin}: {ON_DRIFT} is {policy!r}, not apply or skip.")
    tree = installed()
    if tree is None:
        raise SystemExit(f"{plugin}: SGLang is not installed, so nothing was applied.")
    verdicts = settle(verify(patches, tree), policy)
    drifted = [verdict for verdict in verdicts if verdict.state == "drifted"]
    if drifted:
        raise SystemExit(drift_paragraph(drifted, tree, plugin))
    _report(verdicts, plugin)
    chosen = [verdict.patch for verdict in verdicts if verdict.state == "applies"]
    try:
        attach_all(seam for patch in chosen for seam in patch.seams)
    except Exception as error:
        raise NotAttached(f"{plugin}: attaching failed, {error!r}.") from error
    return verdicts


def settle(verdicts: Iterable[Verdict], policy: str) -> tuple[Verdict, ...]:
    """The verdicts once the policy has decided what becomes of drifted patches."""
    settled: dict[str, Verdict] = {}
    for verdict in verdicts:
        settled[verdict.patch.name] = _settle_one(verdict, policy, settled)
    return tuple(settled.values())


def _settle_one(verdict: Verdict, policy: str, earlier: dict[str, Verdict]) -> Verdict:
    forced = all(problem.can_force for problem in verdict.problems)
    if verdict.state == "drifted" and policy == "skip":
        return Verdict(verdict.patch, "left out", verdict.problems, "has drifted")
    if verdict.state == "drifted" and policy == "apply" and forced:
        verdict = Verdict(verdict.patch, "applies", verdict.problems, "has drifted")
    elif verdict.state == "left out":
        verdict = Verdict(verdict.patch, "applies")
    if verdict.state == "applies":
        return leave_out_dependent(verdict, earlier)
    return verdict


def drift_paragraph(drifted: list[Verdict], tree: Tree, plugin: str) -> str:
    """What has drifted, the release found and what to do, in one paragraph."""
    seams = "; ".join(
        f"{problem} (patch {verdict.patch.name}"
        + (f", {verdict.note})" if verdict.note else ")")
        for verdict in drifted
        for problem in verdict.problems
    )
    return (
        f"{plugin} does not fit SGLang {tree.version} at {tree.root}, and nothing was "
        f"applied: {seams}. The fault is still there in this release, as far as the "
        "probe can tell. Install a release it was verified on, or leave every plugin "
        "out with SGLANG_PLUGINS=none (no plugin has that name; an empty value loads "
        f"all of them), or set {ON_DRIFT}=skip to leave out what drifted, or "
        f"{ON_DRIFT}=apply to apply it all the same where it still can attach."
    )


def _report(verdicts: Iterable[Verdict], plugin: str) -> None:
    # Warnings, because SGLang's processes load plugins before they set up logging,
    # and lines below that level are lost there.
    for verdict in verdicts:
        name = verdict.patch.name
        if verdict.state == "not needed":
            logger.warning("%s: patch %s is not needed here", plugin, name)
        elif verdict.state == "left out":
            logger.warning("%s: patch %s left out: %s", plugin, name, verdict.note)
        elif verdict.problems:
            logger.warning("%s: patch %s applied, drifted", plugin, name)
