"""Questions to a server of the tests, asked as `specpack eval` asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from types import MappingProxyType
from typing import Any

import httpx
import torch

from specpack.evals.client import Answer, Sampling, ask, server_info
from specpack.evals.gsm8k import Problem
from specpack.evals.measures import histogram, histogram_mean
from specpack.evals.server import Server

VOCAB = 648  # of the fixtures


def complete_all(
    server: Server, prompts: Sequence[str], max_tokens: int
) -> list[Answer]:
    """The prompts completed in order, greedily, one request at a time."""
    speculates = server_info(server)["speculative_algorithm"] not in (None, "NONE")
    sampling = Sampling("generate", max_tokens, temperature=0)
    asked = [Problem(n, prompt, result=nan) for n, prompt in enumerate(prompts)]
    with httpx.Client(timeout=300) as client:
        found = [ask(client, server, p, sampling, speculates) for p in asked]
    failed = [each for each in found if not isinstance(each, Answer)]
    assert not failed, failed
    return found


def generate(
    server: Server,
    text: str | None,
    request: Mapping[str, Any] = MappingProxyType({}),
    **sampling: Any,
) -> dict[str, Any]:
    """A whole ``/generate`` response: ``sampling`` are its sampling parameters,
    ``request`` its other fields."""
    request = {"text": text, "sampling_params": sampling, **request}
    response = httpx.post(f"{server.url}/generate", json=request, timeout=300)
    return response.raise_for_status().json()


def accept_length(answers: Sequence[Answer]) -> float:
    """Tokens a verify step yields, bonus token included, pooled over all requests."""
    found = histogram_mean(histogram(answers))
    assert found is not None, "no verify step was counted: nothing was speculated"
    return found


def agreement(left: Sequence[Answer], right: Sequence[Answer]) -> int:
    """How many completions have the same token ids on both sides."""
    pairs = zip(left, right, strict=True)
    return sum(a.token_ids == b.token_ids for a, b in pairs)


def logprobs(server: Server, prompt: str | list[int]) -> torch.Tensor:
    """``[T - 1, VOCAB]`` log-probabilities of a prefill, after all tokens but one."""
    ids = {} if isinstance(prompt, str) else {"input_ids": prompt}
    answer = generate(
        server,
        prompt if isinstance(prompt, str) else None,
        request=dict(
            ids, return_logprob=True, logprob_start_len=0, top_logprobs_num=VOCAB
        ),
        temperature=0,
        max_new_tokens=1,
    )
    rows = answer["meta_info"]["input_top_logprobs"][1:]
    table = torch.zeros(len(rows), VOCAB)
    for row, entries in zip(table, rows):
        values, indices, _ = zip(*entries)
        row[list(indices)] = torch.tensor(values)
    return table


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()
