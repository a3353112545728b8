"""The demo's matrix: its servers, what each of them must do, and its run file.

A row is known by its target head, draft, branch of SGLang and speculation.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from specpack.evals.client import Answer
from specpack.evals.folder import Folder
from specpack.evals.settings import CPU_ENGINE, Run, plugins

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "test" / "fixtures"
CHECKPOINTS = ROOT / "build" / "demo"
sys.path.insert(0, str(FIXTURES / "train"))
import problems  # noqa: E402  (the fixtures' generator, not a package)

CPU_FLAGS = (
    *("--device", "cpu", "--attention-backend", "intel_amx"),
    *("--disable-radix-cache", "--skip-server-warmup"),
    *("--max-total-tokens", "4096", "--max-running-requests", "4"),
)
# Short runs have windows too, and no step goes on behind the end of its request.
MEASURING = ("--decode-log-interval", "10", "--disable-overlap-schedule")
# One thread is enough for the tiny models, and two would wait for each other on a
# machine that does anything else: 20 tokens/s became 4 beside one other server.
ENVIRONMENT = {CPU_ENGINE: "1", "OMP_NUM_THREADS": "1"}
SHOTS = 5
READY_SECONDS = 600
NEAR_TIES = 1 / 16  # of the completions: those that bf16 rounding may turn
HEAD_RATIO, DRAFT_RATIO = 0.98, 0.97  # accept length against the dense twin's
Key = tuple[str, str | None, str, str]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Expectation:
    """What a row must do: fail with ``error``, or draft ``ratio`` times as well as
    the dense twin ``of``; ``harmed`` rows must not serve as well as that."""

    error: str = ""
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
    path = CHECKPOINTS / f"{name}-{sha256(weights).hexdigest()[:8]}"
    if not path.exists():
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
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


def environment(sglang: str) -> dict[str, str]:
    """What a server of this branch is started with on a CPU."""
    loaded = plugins(Run(sglang=sglang), ENVIRONMENT)
    return ENVIRONMENT | {"SGLANG_PLUGINS": loaded}


def name_of(key: Key) -> str:
    return "-".join(part for part in key if part)


@dataclass(frozen=True)
class Matrix:
    """Some rows on some held-out problems, evaluated into ``out``.

    With ``fork``, a tree with the series in it, the specpack rows run on that instead
    of with the plugin.
    """

    out: Path
    examples: int
    max_tokens: int
    keys: tuple[Key, ...] = tuple(TABLE)
    fork: Path | None = None

    @property
    def run_file(self) -> Path:
        return self.out.with_suffix(".toml")

    def evaluate(self) -> int:
        """Run `specpack eval` on the matrix: its exit status."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        data = self.out.with_suffix(".jsonl")
        data.write_text("".join(json.dumps(row) + "\n" for row in rows(self.examples)))
        self.run_file.write_text(as_toml(self, data))
        options = [str(self.run_file), "--out", str(self.out)]
        return subprocess.call([sys.executable, "-m", "specpack", "eval", *options])

    def report(self) -> dict[Key, Row]:
        """The rows of ``report.json`` by their keys."""
        found = json.loads((self.out / "report.json").read_text())["rows"]
        return dict(zip(self.keys, found, strict=True))

    def answers(self, key: Key) -> dict[int, Answer]:
        """What a row answered, by request."""
        records = Folder(self.out).answers(name_of(key))
        return {n: r for n, r in records.items() if isinstance(r, Answer)}

    def completions(self, key: Key) -> dict[int, tuple[int, ...]]:
        """The token ids of a row, by request."""
        return {n: answer.token_ids for n, answer in self.answers(key).items()}

    def wrong(self) -> Iterator[str]:
        """What is not as the table says, of the rows that serve as `eval` was told."""
        found = self.report()
        for key, row in found.items():
            if row["result"] == "serves" and not TABLE[key].error:
                for fault in faults(row, TABLE[key], found):
                    yield f"{name_of(key)}: {fault}"
            twin = (*key[:2], "specpack", key[3])
            dense = key[0] == "bf16" and key[1] in (None, "mtp", "dflash2-bf16")
            if dense and twin in found:
                if self.completions(key) != self.completions(twin):
                    yield f"{name_of(twin)}: specpack changed an unquantized answer"


def faults(row: Row, wanted: Expectation, found: Mapping[Key, Row]) -> Iterator[str]:
    """Compared by the histogram: no window's rounding, no step of another request."""
    length = row["accept_length_histogram"]
    dense = found[wanted.of]["accept_length_histogram"] if wanted.of in found else None
    bound = wanted.ratio * (dense or 1.0)
    if wanted.harmed and length >= bound:
        yield "was to draft badly, and does not"
    elif not wanted.harmed and length is not None and length < bound:
        yield f"accept length {length:.3f} < {bound:.3f}"
    if row["compared"] and row["equal"] < row["compared"] * (1 - NEAR_TIES):
        yield f"{row['equal']} of {row['compared']} completions equal the reference's"


def rows(examples: int) -> Iterator[dict[str, str]]:
    """Training problems for the shots, then held-out problems of two steps."""
    shots = islice(problems.stream(2, held_out=False), SHOTS)
    asked = islice(problems.stream(3, held_out=True, steps=2), examples)
    for problem in (*shots, *asked):
        yield {"question": problem.question, "answer": problem.answer}


def as_toml(matrix: Matrix, data: Path) -> str:
    """The run file: JSON's strings and lists of strings are TOML's too."""
    settings = {
        "data": str(data),
        "examples": matrix.examples,
        "num_shots": SHOTS,
        "max_tokens": matrix.max_tokens,
        "api": "generate",
        "flags": [*CPU_FLAGS, *MEASURING],
        "ready_seconds": READY_SECONDS,
    }
    lines = [*assignments(settings), "[environment]", *assignments(ENVIRONMENT)]
    for key in matrix.keys:
        lines += ["[[runs]]", *assignments(run_of(key, matrix))]
        if matrix.fork and key[2] == "specpack":
            lines += ["[runs.environment]", *assignments(forked(matrix.fork))]
    return "\n".join(lines) + "\n"


def assignments(table: Mapping[str, Any]) -> Iterable[str]:
    return (f"{name} = {json.dumps(value)}" for name, value in table.items())


def forked(tree: Path) -> dict[str, str]:
    return {"SGLANG_PLUGINS": "cpu-reference", "PYTHONPATH": str(tree / "python")}


def run_of(key: Key, matrix: Matrix) -> dict[str, str]:
    """A row as a [[runs]] table."""
    head, draft, sglang, speculation = key
    run = {"name": name_of(key), "target": str(target_path(head))}
    run |= {"sglang": sglang, "target_head": head, "draft_label": draft or "–"}
    if speculation == "none":
        return run
    run["algorithm"] = speculation
    if (plain := (head, None, sglang, "none")) in matrix.keys:
        run["reference"] = name_of(plain)
    if speculation == "DFLASH":
        run["draft"] = str(draft_path(draft))
    if error := TABLE[key].error:
        run["fails"] = error
    return run
