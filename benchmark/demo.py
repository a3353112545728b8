"""The main job on real servers: what a packed head does to speculation, stock and fixed.

    python benchmark/demo.py [--prompts 32] [--max-tokens 64]

Starts one server per row on the CPU, prints the table, writes ``out/demo.json`` and
exits 1 when a row is not what it must be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib.metadata import version
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specpack.evals.generation import (
    Completion,
    accept_length,
    agreement,
    complete_all,
)
from specpack.evals.server import Launch, ServerError, serve

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "test" / "fixtures"
BUILD = ROOT / "build" / "demo"
OUT = ROOT / "out"
sys.path.insert(0, str(FIXTURES / "train"))
import problems  # noqa: E402  (the fixtures' generator, not a package)

PLUGINS = {"stock": "cpu-reference", "specpack": "cpu-reference,specpack"}
CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "intel_amx"),
    *("--disable-radix-cache", "--skip-server-warmup"),
    *("--max-total-tokens", "4096", "--max-running-requests", "4"),
)
SPECULATION = {
    "none": (),
    "NEXTN": (
        *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    ),
}
NEAR_TIES = 2  # completions that bf16 rounding may turn, of all prompts
HEAD_RATIO = 0.98  # accept length on a packed head against the dense one's


@dataclass
class Row:
    target_head: str
    draft: str | None
    sglang: str
    speculation: str
    result: str = ""
    error: str | None = None
    accept_length: float | None = None
    agree: int | None = None
    total: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.target_head, self.sglang, self.speculation


ROWS = tuple(
    Row(head, "mtp" if speculation == "NEXTN" else None, sglang, speculation)
    for head in ("bf16", "w8a16-packed")
    for sglang in ("stock", "specpack")
    for speculation in ("none", "NEXTN")
)


def quantized_target(head: str) -> Path:
    """The fixture quantized with llm-compressor, made once: W4A16 body, ``head``."""
    weights = (FIXTURES / "target" / "model.safetensors").read_bytes()
    path = BUILD / f"target-{head}-{sha256(weights).hexdigest()[:8]}"
    if not path.exists():
        option = "bf16" if head == "bf16" else "w8a16"
        BUILD.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "specpack", "quantize", "target"]
        paths = [str(FIXTURES / "target"), str(path)]
        subprocess.run([*command, *paths, "--head", option], check=True)
    return path


def held_out_prompts(count: int) -> list[str]:
    """Two-step problems that the target was not trained on, with 0 to 5 shots."""
    shots = list(islice(problems.stream(2, held_out=False), 5))
    asked = islice(problems.stream(3, held_out=True, steps=2), count)
    return [problems.prompt(p.question, shots[: i % 6]) for i, p in enumerate(asked)]


def environment(sglang: str) -> dict[str, str]:
    return {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": PLUGINS[sglang]}


def launch(row: Row) -> Launch:
    return Launch(
        model=quantized_target(row.target_head),
        flags=(*CPU_FLAGS, *SPECULATION[row.speculation]),
        environment=environment(row.sglang),
    )


def run(
    row: Row, prompts: list[str], max_tokens: int, tick: Callable[[], None]
) -> list[Completion]:
    """Serve one row and fill in its result; a failing server leaves no completions."""
    log = OUT / "logs" / f"{'-'.join(row.key)}.log"
    try:
        with serve(launch(row), log) as server:
            tick()
            completions = complete_all(server, prompts, max_tokens, tick)
        row.result = "serves"
        if row.speculation != "none":
            row.accept_length = accept_length(completions)
        return completions
    except ServerError as error:
        row.result, row.error = "fails", str(error)
        return []


def compare(rows: dict[tuple, Row], answers: dict[tuple, list[Completion]]) -> None:
    """Fill in how many completions equal the same target's without speculation."""
    for key, row in rows.items():
        plain = answers[(*key[:2], "none")]
        if row.speculation != "none" and answers[key] and plain:
            row.agree, row.total = agreement(answers[key], plain), len(plain)


def measure(
    prompts: list[str],
    max_tokens: int,
    tick: Callable[[str], None] = lambda name: None,
) -> tuple[dict[tuple, Row], dict[tuple, list[Completion]]]:
    """Serve every row: the rows and their completions, by (head, sglang, speculation).

    ``tick`` gets the row's name when its server starts, is ready, and has answered.
    """
    rows = {row.key: replace(row) for row in ROWS}
    answers = {}
    for key, row in rows.items():
        name = " ".join(key)
        tick(name)
        answers[key] = run(row, prompts, max_tokens, lambda: tick(name))
    compare(rows, answers)
    return rows, answers


def wrong(rows: dict[tuple, Row], answers: dict[tuple, list]) -> Iterator[str]:
    """What is not as the table must be."""
    for row in rows.values():
        name = " ".join(row.key)
        refused = row.key == ("w8a16-packed", "stock", "NEXTN")
        if refused and "AttributeError" not in (row.error or ""):
            yield f"{name}: expected an AttributeError, got {row.error or 'an answer'}"
        elif not refused and row.result != "serves":
            yield f"{name}: {row.error}"
        elif row.agree is not None and row.agree < row.total - NEAR_TIES:
            yield f"{name}: {row.agree}/{row.total} completions agree"
    dense = rows["bf16", "stock", "NEXTN"].accept_length
    packed = rows["w8a16-packed", "specpack", "NEXTN"].accept_length
    if dense and packed and packed < HEAD_RATIO * dense:
        yield f"packed head: accept length {packed:.3f} < {HEAD_RATIO} x {dense:.3f}"
    for speculation in ("none", "NEXTN"):
        pair = [answers["bf16", side, speculation] for side in PLUGINS]
        if pair[0] != pair[1]:
            yield f"bf16 {speculation}: specpack changed an unquantized head's answers"


def as_table(rows: list[Row]) -> Table:
    table = Table(title="speculative decoding with a packed lm_head, on real servers")
    for column in ("target lm_head", "sglang", "speculation", "result"):
        table.add_column(column, overflow="fold")
    table.add_column("accept length", justify="right")
    table.add_column("equal to no speculation", justify="right")
    for row in rows:
        length = f"{row.accept_length:.3f}" if row.accept_length else "–"
        equal = f"{row.agree}/{row.total}" if row.total else ""
        result = row.result if row.error is None else row.error.split(" (exit")[0]
        table.add_row(*row.key, result, length, equal)
    return table


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    return parser.parse_args()


def measure_with_progress(
    console: Console, options: argparse.Namespace
) -> tuple[dict[tuple, Row], dict[tuple, list[Completion]]]:
    prompts = held_out_prompts(options.prompts)
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(ROWS) * (len(prompts) + 2))

        def tick(name: str) -> None:
            progress.update(task, advance=1, description=name)

        return measure(prompts, options.max_tokens, tick)


def main() -> int:
    options, console, start = arguments(), Console(), time.monotonic()
    for head in ("bf16", "w8a16-packed"):
        quantized_target(head)
    rows, answers = measure_with_progress(console, options)
    console.print(as_table(list(rows.values())))
    report = {
        "rows": [asdict(row) for row in rows.values()],
        "versions": {n: version(n) for n in ("sglang", "torch", "sglang-specpack")},
        "seconds": round(time.monotonic() - start, 1),
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "demo.json").write_text(json.dumps(report, indent=1) + "\n")
    faults = list(wrong(rows, answers))
    for fault in faults:
        console.print(f"[red]not as it must be:[/] {fault}", highlight=False)
    console.print(f"{report['seconds']:.0f} s, written to out/demo.json")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, subprocess.CalledProcessError) as error:
        sys.exit(f"demo stopped: {error or 'interrupted'}")
