"""What the requests of a run add up to; nothing that is missing becomes a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from specpack.evals.client import Answer
from specpack.evals.gsm8k import Problem, is_correct

Answers = Mapping[int, Answer]


def window_mean(windows: Sequence[float]) -> float | None:
    """The scheduler's accept length, every decode-log window counting the same."""
    return sum(windows) / len(windows) if windows else None


def tokens_per_verify_step(answers: Iterable[Answer]) -> float | None:
    """Completion tokens per verify step, pooled: the prefill's token is among them."""
    pairs = [(a.completion_tokens, a.spec_verify_ct or 0) for a in answers]
    tokens, steps = (sum(column) for column in zip(*pairs)) if pairs else (0, 0)
    return tokens / steps if steps else None


def histogram(answers: Iterable[Answer]) -> list[int]:
    """Verify steps by their number of correct drafts."""
    columns = zip_longest(
        *(a.spec_correct_drafts_histogram or () for a in answers), fillvalue=0
    )
    return [sum(column) for column in columns]


def histogram_mean(steps: Sequence[int]) -> float | None:
    """Correct drafts per verify step, and the bonus token."""
    total = sum(steps)
    return 1 + sum(n * ct for n, ct in enumerate(steps)) / total if total else None


def correct_shares(steps: Sequence[int]) -> list[float]:
    """The share of verify steps whose draft is correct up to each position, from 1."""
    total = sum(steps)
    return [sum(steps[n:]) / total for n in range(1, len(steps))] if total else []


def busy_seconds(answers: Iterable[Answer]) -> float:
    """How long at least one of the requests was being answered."""
    busy = end = 0.0
    for began, ended in sorted((a.began, a.began + a.seconds) for a in answers):
        busy += max(0.0, ended - max(began, end))
        end = max(end, ended)
    return busy


def tokens_per_second(answers: Sequence[Answer]) -> float | None:
    """Completion tokens per second of the time with a request at work."""
    seconds = busy_seconds(answers)
    return sum(a.completion_tokens for a in answers) / seconds if seconds else None


def accuracy(answers: Answers, problems: Sequence[Problem]) -> float | None:
    """The share of right answers among the requests that were answered."""
    scored = [is_correct(answers[p.id].text, p) for p in problems if p.id in answers]
    return sum(scored) / len(scored) if scored else None


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """The first index where two completions differ, or where one has ended."""
    pairs = zip_longest(left, right)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), None)


def agreement(left: Answers, right: Answers) -> tuple[int, int]:
    """How many completions have the same token ids, of those that both have."""
    common = left.keys() & right.keys()
    equal = sum(left[i].token_ids == right[i].token_ids for i in common)
    return equal, len(common)
