"""A counter that a server does not send is an error, never a number."""

from __future__ import annotations

import pytest

from specpack.evals.client import Sampling, counted, generate_request

META = {
    "prompt_tokens": 4,
    "completion_tokens": 3,
    "finish_reason": {"type": "length"},
    "spec_verify_ct": 1,
    "spec_num_correct_drafts": 1,
    "spec_correct_drafts_histogram": [0, 1],
}


def test_counters():
    found = counted(([1, 2, 3], "text", META), speculates=True)
    assert found["spec_correct_drafts_histogram"] == (0, 1)
    assert (found["spec_verify_ct"], found["finish_reason"]) == (1, "length")


@pytest.mark.parametrize("name", META)
def test_a_missing_field_is_an_error(name: str):
    meta = {k: v for k, v in META.items() if k != name}
    with pytest.raises(KeyError, match=name):
        counted(([1, 2, 3], "", meta), speculates=True)


def test_a_server_without_speculation_counts_nothing():
    meta = {k: v for k, v in META.items() if not k.startswith("spec_")}
    assert "spec_verify_ct" not in counted(([1], "", meta), speculates=False)


def test_a_request_that_the_prefill_ended_has_no_verify_step():
    meta = {k: v for k, v in META.items() if not k.startswith("spec_")}
    found = counted(([1], "", meta | {"completion_tokens": 1}), speculates=True)
    assert found["spec_verify_ct"] == 0
    assert found["spec_correct_drafts_histogram"] == ()


def test_generate_stops_where_sglangs_evaluation_does():
    _, request = generate_request("p", Sampling("generate", 8, 0.0))
    stop = request["sampling_params"]["stop"]
    assert stop == ["Question", "Assistant:", "<|separator|>"]
