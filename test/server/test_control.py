"""A draft whose head is not shared: the same tokens, and nothing drafted.

This is why no test of this project rests on token equality alone.
"""

from __future__ import annotations

from pathlib import Path

from specpack.evals.generation import accept_length, agreement, complete_all

UNSHARED = Path(__file__).parent / "unshared"


def test_tokens_stay_and_accept_length_falls_to_one(start, dense_target, prompts):
    with start(dense_target, "stock", "NEXTN") as server:
        shared = complete_all(server, prompts, max_tokens=64)
    with start(dense_target, "stock", "NEXTN", PYTHONPATH=str(UNSHARED)) as server:
        unshared = complete_all(server, prompts, max_tokens=64)
    assert agreement(shared, unshared) >= len(prompts) - 1
    assert accept_length(shared) >= 3.0
    assert accept_length(unshared) <= 1.1
