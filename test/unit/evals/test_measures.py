from __future__ import annotations

import pytest

from specpack.evals import measures
from specpack.evals.client import Answer
from specpack.evals.gsm8k import Problem


def answer(number: int, text: str = "", ids=(1, 2), began=0.0, seconds=1.0, **counts):
    return Answer(
        number, tuple(ids), text, "stop", 9, len(ids), began, seconds, **counts
    )


def speculated(ids: int, histogram: tuple[int, ...]) -> Answer:
    correct = sum(n * ct for n, ct in enumerate(histogram))
    return answer(
        ids,
        ids=range(ids),
        spec_verify_ct=sum(histogram),
        spec_num_correct_drafts=correct,
        spec_correct_drafts_histogram=histogram,
    )


# Verify steps of 0, 2, 2 and of 3 correct drafts; 1 token comes from the prefill, and
# the second completion loses 2 of its last step's 4 tokens to its end.
ANSWERS = [speculated(1 + 1 + 3 + 3, (1, 0, 2)), speculated(1 + 4 - 2, (0, 0, 0, 1))]


def test_the_three_ways_to_count():
    assert measures.window_mean([3.0, 3.5]) == 3.25
    assert measures.tokens_per_verify_step(ANSWERS) == (8 + 3) / 4
    steps = measures.histogram(ANSWERS)
    assert steps == [1, 0, 2, 1]
    assert measures.histogram_mean(steps) == 1 + (2 + 2 + 3) / 4


def test_correct_shares_by_position():
    assert measures.correct_shares([1, 0, 2, 1]) == [0.75, 0.75, 0.25]


def test_nothing_to_count_is_no_number():
    assert measures.window_mean([]) is None
    assert measures.tokens_per_verify_step([]) is None
    assert measures.tokens_per_verify_step([answer(0)]) is None
    assert measures.histogram_mean(measures.histogram([answer(0)])) is None
    assert measures.tokens_per_second([]) is None
    assert measures.accuracy({}, [Problem(0, "", 1)]) is None


@pytest.mark.parametrize(
    "spans, seconds",
    [
        (((0, 2), (2, 1)), 3),  # one after the other
        (((0, 2), (1, 2)), 3),  # overlapping
        (((0, 9), (1, 2)), 9),  # one inside the other
        (((0, 1), (100, 1)), 2),  # resumed later
    ],
)
def test_busy_time(spans, seconds: float):
    answers = [answer(n, began=b, seconds=s) for n, (b, s) in enumerate(spans)]
    assert measures.busy_seconds(answers) == seconds
    assert measures.tokens_per_second(answers) == 4 / seconds


def test_accuracy_is_of_the_answered():
    asked = [Problem(n, "", n) for n in range(3)]
    assert measures.accuracy({0: answer(0, "0"), 1: answer(1, "7")}, asked) == 0.5


@pytest.mark.parametrize(
    "left, right, at",
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((), (4,), 0)],
)
def test_first_difference(left, right, at):
    assert measures.first_difference(left, right) == at


def test_agreement_is_over_what_both_answered():
    left = {0: answer(0), 1: answer(1, ids=(5,)), 2: answer(2)}
    right = {0: answer(0, text="other"), 1: answer(1)}
    assert measures.agreement(left, right) == (1, 2)
