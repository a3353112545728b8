"""`specpack status`: how the series fits a SGLang tree, without importing torch."""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specpack.seams.kinds import Patch
from specpack.seams.source import Tree, installed, tree_at
from specpack.seams.verify import RunProbe, Verdict, problems_of, run_probe, verify
from specpack.series import SERIES

PROBE_SECONDS = 300


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
    parser.add_argument(
        "--against",
        type=Path,
        metavar="WHEEL",
        help="a release's wheel, or a folder: show what changed in each drifted seam",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdicts; 0 where every patch applies or is not needed, else 1."""
    root = arguments.against or arguments.root
    with unpacked(root) as folder:
        tree = tree_at(folder) if folder else installed()
        if tree is None:
            print(_no_tree(root), file=sys.stderr)
            return 1
        return _print_verdicts(tree, arguments)


def _print_verdicts(tree: Tree, arguments: argparse.Namespace) -> int:
    verdicts = verify(SERIES, tree, together(SERIES, tree))
    drifted = [v for v in verdicts if v.state in ("drifted", "left out")]
    if arguments.json:
        print(json.dumps(as_json(verdicts, tree), indent=2))
    else:
        print(as_text(verdicts, tree))
    if drifted and arguments.against and not arguments.json:
        from specpack.export.drift import explain

        print(explain(drifted, tree))
    return int(bool(drifted))


@contextmanager
def unpacked(path: Path | None) -> Iterator[Path | None]:
    """The folder a wheel is unpacked to for the while; any other path is itself."""
    if path is None or not zipfile.is_zipfile(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as wheel:
        wheel.extractall(folder)
        yield Path(folder)


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


def together(patches: Sequence[Patch], tree: Tree) -> RunProbe:
    """A `run_probe` that probes all patches with a problem at once, when first asked."""

    @functools.cache
    def outcomes() -> dict[str, tuple[bool, str]]:
        doubtful = [
            patch
            for patch in patches
            if any(problems_of(seam, tree) for seam in patch.seams)
        ]
        return probe_apart([patch.name for patch in doubtful], tree)

    return lambda patch: outcomes()[patch.name]


def probe_apart(names: Sequence[str], tree: Tree) -> dict[str, tuple[bool, str]]:
    """What `run_probe` says of each patch, from another process: probes import torch."""
    path = os.pathsep.join([str(tree.root.parent), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "specpack.status", *names],
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(names, (False, f"probing took over {PROBE_SECONDS} s"))
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return dict.fromkeys(names, (False, f"its probe failed with {last}"))
    outcomes = json.loads(done.stdout.splitlines()[-1])
    return {name: (fixed, note) for name, (fixed, note) in outcomes.items()}


def _probe_here(names: Sequence[str]) -> dict[str, tuple[bool, str]]:
    return {patch.name: run_probe(patch) for patch in SERIES if patch.name in names}


if __name__ == "__main__":
    print(json.dumps(_probe_here(sys.argv[1:])))
