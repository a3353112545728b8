"""The served target against transformers' own Qwen3.5 on the same files."""

from __future__ import annotations

import pytest
import torch
from asking import complete_all, logprobs, relative_error
from matrix import FIXTURES
from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration

TARGET = FIXTURES / "target"
NEAR_TIE = 0.15  # difference of two logits that bf16 rounding may turn


def reference(dtype: torch.dtype) -> Qwen3_5ForConditionalGeneration:
    return Qwen3_5ForConditionalGeneration.from_pretrained(TARGET, dtype=dtype).eval()


@torch.no_grad()
def expected_logprobs(prompt: str, dtype: torch.dtype) -> torch.Tensor:
    """[T, V] log-probabilities after each token of the prompt."""
    ids = AutoTokenizer.from_pretrained(TARGET)(prompt, return_tensors="pt").input_ids
    return reference(dtype)(input_ids=ids).logits[0].float().log_softmax(-1)


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)]
)
def test_prefill_logits(start, prompts, dtype: torch.dtype, limit: float):
    name = str(dtype).removeprefix("torch.")
    with start(TARGET, "stock", "none", "--dtype", name) as server:
        found = logprobs(server, prompts[3])
        completions = complete_all(server, prompts[:8], max_tokens=64)
    expected = expected_logprobs(prompts[3], dtype)[:-1]
    assert relative_error(found, expected) <= limit
    for prompt, completion in zip(prompts, completions):
        assert_greedy(prompt, completion.token_ids, dtype)


@torch.no_grad()
def assert_greedy(prompt: str, token_ids: tuple[int, ...], dtype: torch.dtype) -> None:
    """Every served token is transformers' greedy one, or within a near-tie of it."""
    ids = AutoTokenizer.from_pretrained(TARGET)(prompt).input_ids
    joined = torch.tensor([ids + list(token_ids)])
    logits = reference(dtype)(input_ids=joined).logits[0, len(ids) - 1 : -1].float()
    chosen = logits.gather(1, torch.tensor(token_ids)[:, None])[:, 0]
    margins = logits.max(-1).values - chosen
    assert margins.max().item() <= (NEAR_TIE if dtype == torch.bfloat16 else 1e-3)
