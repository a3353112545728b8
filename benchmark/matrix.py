"""`specpack eval` on the demo's matrix: every row on held-out problems of the fixture.

    python benchmark/matrix.py [--examples 200]     # then benchmark/figures.py

Makes the checkpoints, writes the problems and the run file to build/eval, and evaluates
into out/eval-matrix; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice

import demo
import problems

BUILD = demo.ROOT / "build" / "eval"
SHOTS = 5
MAX_TOKENS = 96
READY_SECONDS = 600


def write_data(examples: int) -> None:
    """Rows of training problems for the shots, then held-out two-step problems."""
    shots = islice(problems.stream(2, held_out=False), SHOTS)
    asked = islice(problems.stream(3, held_out=True, steps=2), examples)
    rows = ({"question": p.question, "answer": p.answer} for p in (*shots, *asked))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (BUILD / f"problems-{examples}.jsonl").write_text(lines)


def name_of(key: demo.Key) -> str:
    return demo.label(key).replace(" ", "-")


def run_of(key: demo.Key) -> dict[str, str]:
    """A row of the demo as a [[runs]] table."""
    head, draft, sglang, speculation = key
    run = {"name": name_of(key), "target": str(demo.target_path(head))}
    run |= {"sglang": sglang, "target_head": head, "draft_label": draft or "–"}
    if speculation == "none":
        return run
    run |= {
        "algorithm": speculation,
        "reference": name_of((head, None, sglang, "none")),
    }
    if speculation == "DFLASH":
        run["draft"] = str(demo.draft_path(draft))
    if error := demo.TABLE[key].error:
        run["fails"] = error
    return run


def as_toml(examples: int, runs: Iterable[dict[str, str]]) -> str:
    """The run file; JSON's strings and lists of strings are TOML's too."""
    flags = [*demo.CPU_FLAGS, "--decode-log-interval", "10"]
    lines = [
        f'data = "problems-{examples}.jsonl"',
        *(f"examples = {examples}", f"num_shots = {SHOTS}"),
        *(f"max_tokens = {MAX_TOKENS}", 'api = "generate"'),
        *(f"flags = {json.dumps(flags)}", f"ready_seconds = {READY_SECONDS}"),
        *("[environment]", 'SGLANG_USE_CPU_ENGINE = "1"'),
    ]
    for run in runs:
        lines += ["[[runs]]", *(f"{k} = {json.dumps(v)}" for k, v in run.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=200)
    examples = parser.parse_args().examples
    BUILD.mkdir(parents=True, exist_ok=True)
    write_data(examples)
    path = BUILD / "matrix.toml"
    path.write_text(as_toml(examples, map(run_of, demo.TABLE)))
    out = demo.OUT / "eval-matrix"
    command = [sys.executable, "-m", "specpack", "eval", str(path), "--out", str(out)]
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main())
