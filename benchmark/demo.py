"""The main job on real servers: what a packed head does to speculation, stock and fixed.

    python benchmark/demo.py [--prompts 32] [--max-tokens 64] [--fork build/sglang]

Starts one server per row on the CPU, prints the table, writes ``out/demo.json`` and
exits 1 when a row is not what it must be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
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

ENVIRONMENTS = {
    "stock": {"SGLANG_PLUGINS": "cpu-reference"},
    "specpack": {"SGLANG_PLUGINS": "cpu-reference,specpack"},
}
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
    "DFLASH": (
        *("--speculative-algorithm", "DFLASH", "--speculative-dflash-block-size", "8"),
    ),
}
WIDTH = 132  # of the table where the output is not a terminal
NEAR_TIES = 2  # completions that bf16 rounding may turn, of all prompts
HEAD_RATIO, DRAFT_RATIO = 0.98, 0.97  # accept length against the dense twin's
Key = tuple[str, str | None, str, str]


@dataclass
class Row:
    """What one server did."""

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
    def key(self) -> Key:
        return self.target_head, self.draft, self.sglang, self.speculation


@dataclass(frozen=True)
class Expectation:
    """What it must do: fail with ``error``, or draft ``ratio`` times as well as
    the dense twin ``of``; ``harmed`` rows must not serve as well as that."""

    error: str | None = None
    of: Key | None = None
    ratio: float = 0.0
    harmed: bool = False


DENSE_NEXTN = ("bf16", "mtp", "stock", "NEXTN")
DENSE_DFLASH = ("bf16", "dflash2-bf16", "stock", "DFLASH")
NO_WEIGHT = "'ParallelLMHead' object has no attribute 'weight'"
TABLE: dict[Key, Expectation] = {
    ("bf16", None, "stock", "none"): Expectation(),
    ("bf16", None, "specpack", "none"): Expectation(),
    DENSE_NEXTN: Expectation(),
    ("bf16", "mtp", "specpack", "NEXTN"): Expectation(of=DENSE_NEXTN, ratio=1.0),
    ("w8a16-packed", None, "stock", "none"): Expectation(),
    ("w8a16-packed", None, "specpack", "none"): Expectation(),
    ("w8a16-packed", "mtp", "stock", "NEXTN"): Expectation(error=NO_WEIGHT),
    ("w8a16-packed", "mtp", "specpack", "NEXTN"): Expectation(
        of=DENSE_NEXTN, ratio=HEAD_RATIO
    ),
    DENSE_DFLASH: Expectation(),
    ("bf16", "dflash2-bf16", "specpack", "DFLASH"): Expectation(
        of=DENSE_DFLASH, ratio=1.0
    ),
    ("w8a16-packed", "dflash2-bf16", "stock", "DFLASH"): Expectation(
        error="requires a dense FP16/BF16/FP32 target lm_head"
    ),
    ("w8a16-packed", "dflash2-bf16", "specpack", "DFLASH"): Expectation(
        of=DENSE_DFLASH, ratio=HEAD_RATIO
    ),
    ("bf16", "dflash2-w8a16", "stock", "DFLASH"): Expectation(
        of=DENSE_DFLASH, ratio=DRAFT_RATIO, harmed=True
    ),
    ("bf16", "dflash2-w8a16", "specpack", "DFLASH"): Expectation(
        of=DENSE_DFLASH, ratio=DRAFT_RATIO
    ),
    ("w8a16-packed", "dflash2-w8a16", "specpack", "DFLASH"): Expectation(
        of=DENSE_DFLASH, ratio=DRAFT_RATIO
    ),
}


def quantized(source: str, name: str, *command: str) -> Path:
    """A fixture quantized with llm-compressor, made once for these weights."""
    weights = (FIXTURES / source / "model.safetensors").read_bytes()
    path = BUILD / f"{name}-{sha256(weights).hexdigest()[:8]}"
    if not path.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        quantize = [sys.executable, "-m", "specpack", "quantize", source]
        paths = [str(FIXTURES / source), str(path)]
        subprocess.run([*quantize, *paths, *command], check=True)
    return path


def target_path(head: str) -> Path:
    """The target with a W4A16 body and the head ``bf16`` or ``w8a16-packed``."""
    option = "bf16" if head == "bf16" else "w8a16"
    return quantized("target", f"target-{head}", "--head", option)


def draft_path(draft: str) -> Path:
    if draft == "dflash2-bf16":
        return FIXTURES / "draft"
    return quantized("draft", draft)


PREPARED = (
    (target_path, "bf16"),
    (target_path, "w8a16-packed"),
    (draft_path, "dflash2-w8a16"),
)


def held_out_prompts(count: int) -> list[str]:
    """Two-step problems that the target was not trained on, with 0 to 5 shots."""
    shots = list(islice(problems.stream(2, held_out=False), 5))
    asked = islice(problems.stream(3, held_out=True, steps=2), count)
    return [problems.prompt(p.question, shots[: i % 6]) for i, p in enumerate(asked)]


def environment(sglang: str) -> dict[str, str]:
    return {"SGLANG_USE_CPU_ENGINE": "1"} | ENVIRONMENTS[sglang]


def serve_fixes_from(fork: Path) -> None:
    """Let the specpack rows run on a tree with the series in it, without the plugin."""
    paths = {"PYTHONPATH": str(fork / "python")}
    ENVIRONMENTS["specpack"] = ENVIRONMENTS["stock"] | paths


def speculation_flags(speculation: str, draft: str | None) -> tuple[str, ...]:
    flags = SPECULATION[speculation]
    if speculation == "DFLASH":
        return (*flags, "--speculative-draft-model-path", str(draft_path(draft)))
    return flags


def launch(row: Row) -> Launch:
    return Launch(
        model=target_path(row.target_head),
        flags=(*CPU_FLAGS, *speculation_flags(row.speculation, row.draft)),
        environment=environment(row.sglang),
    )


def run(
    row: Row, prompts: list[str], max_tokens: int, tick: Callable[[], None]
) -> list[Completion]:
    """Serve one row and fill in its result; a failing server leaves no completions."""
    log = OUT / "logs" / f"{label(row.key).replace(' ', '-')}.log"
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


Measured = tuple[dict[Key, Row], dict[Key, list[Completion]]]


def measure(
    prompts: list[str],
    max_tokens: int,
    keys: Iterable[Key] = TABLE,
    tick: Callable[[str], None] = lambda name: None,
) -> Measured:
    """Serve the rows ``keys``: what each did, and its completions.

    ``tick`` gets the row's name when its server starts, is ready, and has answered.
    """
    rows = {key: Row(*key) for key in keys}
    answers: dict[Key, list[Completion]] = {}
    for key, row in rows.items():
        tick(name := label(key))
        answers[key] = run(row, prompts, max_tokens, lambda: tick(name))
    for key, row in rows.items():
        plain = answers.get((row.target_head, None, row.sglang, "none"))
        if row.speculation != "none" and answers[key] and plain:
            row.agree, row.total = agreement(answers[key], plain), len(plain)
    return rows, answers


def label(key: Key) -> str:
    return " ".join(part for part in key if part)


def wrong(rows: dict[Key, Row], answers: dict[Key, list]) -> Iterator[str]:
    """What is not as the table must be."""
    for key, row in rows.items():
        for fault in faults(row, TABLE[key], rows):
            yield f"{label(key)}: {fault}"
        twin = (row.target_head, row.draft, "specpack", row.speculation)
        dense = row.target_head == "bf16" and row.draft in (None, "mtp", "dflash2-bf16")
        if dense and twin in answers and answers[key] != answers[twin]:
            yield f"{label(key)}: specpack changed what an unquantized head answers"


def faults(row: Row, wanted: Expectation, rows: dict[Key, Row]) -> Iterator[str]:
    dense = rows[wanted.of].accept_length if wanted.of in rows else None
    bound = wanted.ratio * (dense or 1.0)
    drafts = row.result == "serves" and (row.accept_length or bound) >= bound
    if wanted.error:
        if wanted.error not in (row.error or ""):
            yield f"expected “{wanted.error}”, got {row.error or 'answers'}"
    elif wanted.harmed:
        if drafts:
            yield "expected to fail or to draft badly, and it does not"
    elif row.result != "serves":
        yield str(row.error)
    elif not drafts:
        yield f"accept length {row.accept_length:.3f} < {bound:.3f}"
    elif row.agree is not None and row.agree < row.total - NEAR_TIES:
        yield f"{row.agree}/{row.total} completions agree"


def as_table(rows: Iterable[Row]) -> Table:
    table = Table(title="speculative decoding with packed weights, on real servers")
    for column in ("target lm_head", "draft", "sglang", "speculation"):
        table.add_column(column, no_wrap=True)
    table.add_column("result", overflow="fold")
    table.add_column("accept length", justify="right")
    table.add_column("equal to no\nspeculation", justify="right")
    for row in rows:
        length = f"{row.accept_length:.3f}" if row.accept_length else "–"
        equal = f"{row.agree}/{row.total}" if row.total else ""
        result = row.result if row.error is None else row.error.split(" (exit")[0]
        head, draft, sglang, speculation = row.key
        table.add_row(head, draft or "–", sglang, speculation, result, length, equal)
    return table


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--fork", type=Path, help="a tree of `make fork` for specpack")
    return parser.parse_args()


def measure_with_progress(console: Console, options: argparse.Namespace) -> Measured:
    prompts = held_out_prompts(options.prompts)
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(TABLE) * (len(prompts) + 2))

        def tick(name: str) -> None:
            progress.update(task, advance=1, description=name)

        measured = measure(prompts, options.max_tokens, tick=tick)
        progress.update(task, total=1, completed=1)  # a failing row asks less
    return measured


def main() -> int:
    options, start = arguments(), time.monotonic()
    if options.fork:
        serve_fixes_from(options.fork)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for path, name in PREPARED:
        path(name)
    rows, answers = measure_with_progress(console, options)
    console.print(as_table(rows.values()))
    report = {
        "rows": [asdict(row) for row in rows.values()],
        "versions": {n: version(n) for n in ("sglang", "torch", "sglang-specpack")},
        "seconds": round(time.monotonic() - start, 1),
    }
    OUT.mkdir(exist_ok=True)
    (OUT / "demo.json").write_text(json.dumps(report, indent=1) + "\n")
    found = list(wrong(rows, answers))
    for fault in found:
        console.print(f"[red]not as it must be:[/] {fault}", highlight=False)
    console.print(f"{report['seconds']:.0f} s, written to out/demo.json")
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, subprocess.CalledProcessError) as error:
        sys.exit(f"demo stopped: {error or 'interrupted'}")
