"""`specpack export CHECKOUT`: all of it, or one explanation and nothing written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specpack.export import git
from specpack.export.git import Checkout
from specpack.export.message import subject
from specpack.export.plan import Commit, Plan, choose, make_plan
from specpack.export.sources import Refusal
from specpack.series import SERIES
from specpack.status import together

BRANCH = "specpack"
DESCRIPTION = """\
Writes the patch series onto a SGLang checkout: a branch with one commit per patch, on
top of the commit checked out, each with its tests. Nothing is written unless all of it
can be. A branch that an earlier export made is moved; any other is refused.
"""


def add_parser(subparsers: Any) -> None:
    """Add the command `export`."""
    parser = subparsers.add_parser(
        "export",
        help="write the series as commits onto a SGLang checkout",
        description=DESCRIPTION,
    )
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="these patches and those they require",
    )
    parser.add_argument("--branch", default=BRANCH, help="default: specpack")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="compare the commits that are there with the series; write nothing",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export or verify; 0 where that worked out, else 1."""
    try:
        checkout = git.open_checkout(arguments.checkout)
        if arguments.verify:
            return _verify(checkout)
        _export(checkout, choose(SERIES, arguments.only), arguments.branch)
    except Refusal as refusal:
        print(f"specpack export: {refusal}", file=sys.stderr)
        return 1
    return 0


def _subjects() -> set[str]:
    return {subject(patch) for patch in SERIES}


def _base(checkout: Checkout, tip: str) -> tuple[str, list[str]]:
    """The commit below the series at a tip, and the series' commits there."""
    commits = git.series_below(checkout, tip, _subjects())
    base = f"{commits[0]}^" if commits else tip
    return checkout.git("rev-parse", "--verify", base), commits


def _plan(checkout: Checkout, chosen: Sequence[Any], base: str) -> Plan:
    def present(path: str) -> str | None:
        text = git.file_at(checkout, base, path)
        return text if text is not None else _untracked(checkout, path)

    with git.tree_of(checkout, base) as tree:
        probe = together(chosen, tree)
        return make_plan(SERIES, chosen, tree, checkout.package, present, probe)


def _untracked(checkout: Checkout, path: str) -> str | None:
    """The text of a file that git does not know and so could not bring back."""
    file = checkout.top / path
    if not file.is_file() or checkout.git("ls-files", "--", path):
        return None
    return file.read_text(encoding="utf-8", errors="replace")


def _export(checkout: Checkout, chosen: Sequence[Any], branch: str) -> None:
    git.refuse_dirty(checkout)
    base, _ = _base(checkout, "HEAD")
    present = _present_commits(checkout, branch, base)
    plan = _plan(checkout, chosen, base)
    for note in plan.notes:
        print(note)
    if not plan.commits:
        print("nothing to export")
    elif present and not _differences(checkout, plan.commits, present):
        checkout.git("checkout", "--quiet", branch)
        print(f"{branch} has these {len(present)} commits already")
    else:
        contents = [(commit.message, commit.files) for commit in plan.commits]
        tip = git.commit_files(checkout, base, contents)
        checkout.git("checkout", "--quiet", "-B", branch, tip)
        for commit in plan.commits:
            print(f"{commit.patch.name}: {subject(commit.patch)}")
        print(f"{len(plan.commits)} commits on {base[:12]}: branch {branch}")


def _present_commits(checkout: Checkout, branch: str, base: str) -> list[str]:
    """The commits of a branch that an export may move, none where it is new."""
    ref = f"refs/heads/{branch}"
    if not checkout.has(ref):
        return []
    below, commits = _base(checkout, ref)
    if below == base:
        return commits
    try:
        checkout.git("merge-base", "--is-ancestor", below, base)
    except Refusal as refusal:
        raise Refusal(
            f"the branch {branch} has commits of its own: name another with --branch."
        ) from refusal
    return []


def _differences(
    checkout: Checkout, planned: Sequence[Commit], present: Sequence[str]
) -> list[str]:
    """What differs between the planned commits and those there, a line each."""
    if len(planned) != len(present):
        return [f"{len(present)} commits, not {len(planned)}"]
    lines = []
    for commit, there in zip(planned, present):
        paths = checkout.git("diff", "--name-only", f"{there}^", there).splitlines()
        for path in sorted({*paths, *commit.files}):
            found = git.file_at(checkout, there, path)
            if path not in commit.files or found != commit.files[path]:
                lines.append(f"{commit.patch.name}: {path} differs in {there[:12]}")
    return lines


def _verify(checkout: Checkout) -> int:
    base, commits = _base(checkout, "HEAD")
    if not commits:
        raise Refusal(f"HEAD of {checkout.top} is no commit of the series.")
    found = checkout.git("log", "--format=%s", f"{base}..HEAD").splitlines()
    chosen = [patch for patch in SERIES if subject(patch) in found]
    plan = _plan(checkout, chosen, base)
    differences = _differences(checkout, plan.commits, commits)
    for line in [*plan.notes, *differences]:
        print(line)
    if not differences:
        print(f"{len(commits)} commits on {base[:12]} are the series as it stands")
    return int(bool(differences))
