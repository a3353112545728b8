"""GSM8K as SGLang 0.5.23 asks and scores it (`sglang.test.run_eval`)."""

from __future__ import annotations

import json
import os
import re
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from specpack.evals.errors import EvalError

URL = (
    "https://raw.githubusercontent.com/openai/grade-school-math/master/"
    "grade_school_math/data/test.jsonl"
)
SGLANG_CACHE = Path("/tmp/test.jsonl")  # where SGLang's own download puts and finds it
DOWNLOAD_SECONDS = 60
NUMBER = re.compile(r"-?\d+\.?\d*")


@dataclass(frozen=True)
class Problem:
    """One question as it is sent; ``id`` is its row in the data, from 0."""

    id: int
    prompt: str
    result: float


@dataclass(frozen=True)
class Row:
    """One line of the data."""

    question: str
    answer: str


@dataclass(frozen=True)
class Data:
    """The rows of one file; ``digest`` is the file's sha256."""

    rows: tuple[Row, ...]
    digest: str
    source: str


def last_number(text: str) -> float | None:
    """The last number of an answer, thousands separators ignored; None without one.

    A number that Python cannot read (007) is none either, as in SGLang.
    """
    numbers = NUMBER.findall(text.replace(",", ""))
    try:
        return literal_eval(numbers[-1]) if numbers else None
    except (SyntaxError, ValueError):
        return None


def is_correct(text: str, problem: Problem) -> bool:
    return last_number(text) == problem.result


def question(row: Row) -> str:
    return f"Question: {row.question}\nAnswer:"


def problems(data: Data, num_shots: int, examples: int) -> list[Problem]:
    """The first rows become the shots of every prompt, those after them are asked.

    Raises:
        EvalError: the data has fewer rows than that.
    """
    left = len(data.rows) - num_shots
    if left < examples:
        raise EvalError(
            f"{data.source} has {len(data.rows)} rows: {num_shots} shots leave "
            f"{max(left, 0)}, fewer than the {examples} examples asked for"
        )
    solved = "".join(f"{question(r)} {r.answer}\n\n" for r in data.rows[:num_shots])
    asked = list(enumerate(data.rows))[num_shots : num_shots + examples]
    return [
        Problem(number, solved + question(row), last_number(row.answer))
        for number, row in asked
    ]


def load(path: Path | None) -> Data:
    """The rows of a jsonl file with ``question`` and ``answer``, or of GSM8K's test set.

    Raises:
        EvalError: no such file, a line that is not such a row, or no network.
    """
    path = path or downloaded()
    try:
        content = path.read_bytes()
        rows = tuple(parsed(content.decode(), path))
    except OSError as error:
        raise EvalError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise EvalError(f"{path} is not UTF-8 text") from None
    return Data(rows, sha256(content).hexdigest(), str(path))


def parsed(text: str, path: Path) -> Sequence[Row]:
    # Not splitlines(): a question may hold other line separators, such as U+2028.
    lines = enumerate(text.split("\n"), 1)
    return [
        row(line, f"{path}, line {number}")
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]


def row(line: str, where: str) -> Row:
    """The row of one line; its answer must hold the number that is scored."""
    try:
        fields = json.loads(line)
        found = Row(fields["question"], fields["answer"])
    except (ValueError, TypeError, KeyError):
        raise EvalError(f"{where}: no JSON object with question and answer") from None
    if not isinstance(found.question, str) or not isinstance(found.answer, str):
        raise EvalError(f"{where}: question and answer must be strings")
    if last_number(found.answer) is None:
        raise EvalError(f"{where}: no number in the answer to score by")
    return found


def downloaded() -> Path:
    """GSM8K's test set in SGLang's cache, fetched when it is not there."""
    if SGLANG_CACHE.exists():
        return SGLANG_CACHE
    import httpx

    try:
        response = httpx.get(URL, timeout=DOWNLOAD_SECONDS, follow_redirects=True)
        response.raise_for_status()
    except httpx.HTTPError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EvalError(
            f"GSM8K could not be downloaded ({reason}): fetch {URL} where there is a "
            "network and pass it with --data test.jsonl"
        ) from None
    partial = SGLANG_CACHE.with_name(f"{SGLANG_CACHE.name}.{os.getpid()}")
    partial.write_bytes(response.content)
    partial.replace(SGLANG_CACHE)
    return SGLANG_CACHE
