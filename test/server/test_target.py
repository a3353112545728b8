"""The tiny target means something: it answers rightly, and its drafts are followed.

The control, a draft whose head is not shared, gives the same tokens and drafts
nothing: this is why no test of this project rests on token equality alone.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from asking import accept_length, agreement, complete_all
from matrix import problems

from specpack.evals.server import Server

UNSHARED = Path(__file__).parent / "unshared"


@pytest.fixture(scope="module")
def dense_nextn(start, dense_target: Path):
    with start(dense_target, "stock", "NEXTN") as server:
        yield server


def answer(text: str) -> str:
    """What follows the last mark: the number alone, unless the text goes on in a loop."""
    return text.rpartition("#### ")[2].strip()


@pytest.mark.parametrize(("steps", "share"), [(1, 0.8), (2, 0.4)])
def test_held_out_problems_are_solved(dense_nextn: Server, steps: int, share: float):
    asked = list(islice(problems.stream(5, held_out=True, steps=steps), 25))
    prompts = [problems.prompt(p.question) for p in asked]
    answers = complete_all(dense_nextn, prompts, max_tokens=128)
    right = sum(answer(a.text) == p.result for a, p in zip(answers, asked))
    assert right >= share * len(asked)


def test_an_unshared_head_keeps_the_tokens_and_drafts_nothing(
    start, dense_nextn: Server, dense_target: Path, prompts: list[str]
):
    shared = complete_all(dense_nextn, prompts[:8], max_tokens=64)
    with start(dense_target, "stock", "NEXTN", PYTHONPATH=str(UNSHARED)) as server:
        unshared = complete_all(server, prompts[:8], max_tokens=64)
    assert agreement(shared, unshared) >= len(shared) - 1
    assert accept_length(shared) >= 3.0
    assert accept_length(unshared) <= 1.1
