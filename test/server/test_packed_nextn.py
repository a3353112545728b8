"""What users do with one server: stream, ask at once, sample, start again."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from asking import VOCAB, accept_length, agreement, complete_all, generate

from specpack.evals.server import Server

NEAR_TIES = 1  # of 16 completions


@pytest.fixture(scope="module")
def sequential(packed_nextn: Server, prompts: list[str]):
    return complete_all(packed_nextn, prompts, max_tokens=64)


def test_drafts_are_followed(sequential):
    assert accept_length(sequential) >= 3.0


def test_the_load_audit_has_nothing_to_say(packed_nextn: Server):
    assert "checkpoint does not fit" not in packed_nextn.log.read_text()


def test_streamed_text_is_the_text(packed_nextn: Server, prompts, sequential):
    request = {
        "text": prompts[0],
        "sampling_params": {"temperature": 0, "max_new_tokens": 64},
        "stream": True,
    }
    url = f"{packed_nextn.url}/generate"
    with httpx.stream("POST", url, json=request, timeout=60) as response:
        lines = [line[6:] for line in response.iter_lines() if line[:6] == "data: "]
    chunks = [json.loads(line)["text"] for line in lines if line != "[DONE]"]
    assert len(chunks) > 2
    assert chunks[-1] == sequential[0].text


def test_eight_requests_at_once(packed_nextn: Server, prompts, sequential):
    with ThreadPoolExecutor(8) as pool:
        at_once = list(
            pool.map(lambda p: complete_all(packed_nextn, [p], 64)[0], prompts)
        )
    assert agreement(at_once, sequential) >= len(prompts) - NEAR_TIES
    assert accept_length(at_once) >= 0.95 * accept_length(sequential)


def test_sampling_differs_between_draws_and_still_drafts(packed_nextn, prompts):
    draws = [
        generate(packed_nextn, prompts[0], temperature=5, max_new_tokens=48)
        for _ in range(4)
    ]
    assert len({tuple(draw["output_ids"]) for draw in draws}) > 1
    assert all(draw["meta_info"]["spec_verify_ct"] > 0 for draw in draws)
    assert all(0 <= i < VOCAB for draw in draws for i in draw["output_ids"])


def test_a_restart_answers_alike(start, packed_target, prompts, sequential):
    with start(packed_target, "specpack", "NEXTN") as again:
        answers = complete_all(again, prompts, max_tokens=64)
        assert agreement(answers, sequential) == len(prompts)
