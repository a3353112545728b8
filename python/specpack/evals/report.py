"""``report.json``: everything that was measured, from what the folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specpack.evals import measures
from specpack.evals.client import Answer
from specpack.evals.decode_log import windows_of
from specpack.evals.folder import Folder
from specpack.evals.gsm8k import Problem
from specpack.evals.labels import draft_label, head_label
from specpack.evals.settings import Evaluation, Run

Row = dict[str, Any]
NO_WINDOW = (
    "its log has no decode-log window: ask more examples, or give the server a smaller "
    "--decode-log-interval"
)


def report(
    whole: Evaluation,
    setting: Mapping[str, Any],
    problems: Sequence[Problem],
    folder: Folder,
) -> dict[str, Any]:
    """The setting, each start of a server, and a row per run."""
    answers = {run.name: answered(folder, run) for run in whole.runs}
    rows = [row(run, folder, problems, answers) for run in whole.runs]
    starts = {run.name: folder.starts(run.name) for run in whole.runs}
    return {"setting": dict(setting), "starts": starts, "rows": rows}


def answered(folder: Folder, run: Run) -> dict[int, Answer]:
    records = folder.answers(run.name)
    return {n: r for n, r in sorted(records.items()) if isinstance(r, Answer)}


def row(
    run: Run,
    folder: Folder,
    problems: Sequence[Problem],
    answers: Mapping[str, Mapping[int, Answer]],
) -> Row:
    own, error = answers[run.name], folder.error(run.name)
    starts, seen = folder.starts(run.name), folder.answers(run.name)
    found = {
        "name": run.name,
        "target_head": head_label(run),
        "draft": draft_label(run),
        "sglang": run.sglang,
        "speculation": speculation(run, starts),
        "result": result_of(error, own, problems),
        "error": error,
        "asked": len(problems),
        "answered": len(own),
        "failed": len(seen) - len(own),
        "starts": len(starts),
        "accuracy": measures.accuracy(own, problems),
        "tokens_per_second": measures.tokens_per_second(list(own.values())),
        "completion_tokens": sum(a.completion_tokens for a in own.values()),
    }
    found |= accept_lengths(folder, starts, own)
    found |= compared(run, answers)
    return found | {"faults": list(faults(run, found))}


def speculation(run: Run, starts: Sequence[Mapping[str, Any]]) -> str:
    """The algorithm asked for; of a server at a url, the one it says it has."""
    if run.algorithm != "none" or not starts:
        return run.algorithm
    return starts[0]["server"]["speculative_algorithm"] or "none"


def result_of(
    error: str | None, own: Mapping[int, Answer], problems: Sequence[Problem]
) -> str:
    if error is not None:
        return "fails"
    return "serves" if own or not problems else "not run"


def accept_lengths(
    folder: Folder, starts: Sequence[Mapping[str, Any]], own: Mapping[int, Answer]
) -> Row:
    """The three ways to count, each None where the run gives nothing to count."""
    logged = [
        window
        for start in starts
        if start["log"]
        for window in windows_of(folder.path / start["log"], start["start"])
    ]
    steps = measures.histogram(own.values())
    return {
        "accept_length": measures.window_mean(logged),
        "windows": len(logged),
        "accept_length_per_request": measures.tokens_per_verify_step(own.values()),
        "accept_length_histogram": measures.histogram_mean(steps),
        "verify_steps": sum(steps),
        "correct_draft_shares": measures.correct_shares(steps),
    }


def compared(run: Run, answers: Mapping[str, Mapping[int, Answer]]) -> Row:
    if not run.reference or run.reference == run.name:
        return {"reference": None, "equal": None, "compared": None}
    equal, common = measures.agreement(answers[run.name], answers[run.reference])
    return {"reference": run.reference, "equal": equal, "compared": common}


def faults(run: Run, found: Row) -> Iterator[str]:
    """What keeps the row from being evidence."""
    if found["result"] == "fails":
        if not run.fails or run.fails not in found["error"]:
            yield found["error"]
        return
    if run.fails:
        yield f"was to fail with “{run.fails}”, and serves"
    if missing := found["asked"] - found["answered"] - found["failed"]:
        yield f"{missing} of {found['asked']} requests were never asked"
    if found["failed"]:
        yield f"{found['failed']} of {found['asked']} requests failed"
    if found["speculation"] != "none" and found["accept_length"] is None:
        yield NO_WINDOW


def failures(folder: Folder, run: Run) -> list[dict[str, Any]]:
    """The requests without an answer, and why."""
    records = folder.answers(run.name).values()
    return [asdict(r) for r in records if not isinstance(r, Answer)]
