"""`specpack status`: how the series fits a SGLang tree, without importing torch."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from specpack.seams.kinds import Patch
from specpack.seams.source import Tree, installed, tree_at
from specpack.seams.verify import Verdict, verify
from specpack.series import SERIES

PROBE_SECONDS = 300
_FIXED, _FAULTY = 0, 3


def add_parser(subparsers: Any) -> None:
    """Add the command `status`."""
    parser = subparsers.add_parser(
        "status",
        help="which patches apply to the installed SGLang",
        description="Which patches apply to SGLang. Exits 1 where one has drifted.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--root", type=Path, help="another SGLang: a checkout or an unpacked wheel"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdicts; 0 where every patch applies or is not needed, else 1."""
    tree = tree_at(arguments.root) if arguments.root else installed()
    if tree is None:
        print(_no_tree(arguments.root), file=sys.stderr)
        return 1
    verdicts = verify(SERIES, tree, lambda patch: probe_apart(patch, tree))
    if arguments.json:
        print(json.dumps(as_json(verdicts, tree), indent=2))
    else:
        print(as_text(verdicts, tree))
    return int(any(v.state in ("drifted", "left out") for v in verdicts))


def _no_tree(root: Path | None) -> str:
    if root is not None:
        return f"There is no SGLang at {root}."
    return "SGLang is not installed: pip install 'sglang-specpack[serve]'."


def as_text(verdicts: tuple[Verdict, ...], tree: Tree) -> str:
    """The release and one line per patch, with a line per seam that differs."""
    width = max((len(verdict.patch.name) for verdict in verdicts), default=0)
    lines = [f"SGLang {tree.version} at {tree.root}"]
    for verdict in verdicts:
        state = verdict.state
        if verdict.problems:
            state += ": " + "; ".join(str(problem) for problem in verdict.problems)
        if verdict.note:
            state += f" ({verdict.note})"
        lines.append(f"{verdict.patch.name:<{width}}  {state}")
    return "\n".join(lines)


def as_json(verdicts: tuple[Verdict, ...], tree: Tree) -> dict[str, Any]:
    """The same as data."""
    return {
        "sglang": tree.version,
        "root": str(tree.root),
        "patches": [_patch_json(verdict) for verdict in verdicts],
    }


def _patch_json(verdict: Verdict) -> dict[str, Any]:
    reasons = {id(problem.seam): problem.reason for problem in verdict.problems}
    return {
        "name": verdict.patch.name,
        "state": verdict.state,
        "symptom": verdict.patch.symptom,
        "upstream": verdict.patch.upstream,
        "note": verdict.note or None,
        "seams": [
            {"target": seam.target, "kind": seam.kind, "problem": reasons.get(id(seam))}
            for seam in verdict.patch.seams
        ],
    }


def probe_apart(patch: Patch, tree: Tree) -> tuple[bool, str]:
    """What `run_probe` says, from a process of its own: a probe imports torch."""
    path = os.pathsep.join([str(tree.root.parent), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "specpack.status", patch.name],
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False, f"its probe took more than {PROBE_SECONDS} s"
    if done.returncode in (_FIXED, _FAULTY):
        return done.returncode == _FIXED, ""
    last = (done.stderr.strip() or "no message").splitlines()[-1]
    return False, f"its probe failed with {last}"


def _probe_here(name: str) -> int:
    patch = next(patch for patch in SERIES if patch.name == name)
    return _FIXED if patch.probe() else _FAULTY


if __name__ == "__main__":
    sys.exit(_probe_here(sys.argv[1]))
