"""The chunked gated delta rule against transformers' step-by-step recurrence."""

from __future__ import annotations

import pytest
import torch
from sgl_kernel.delta_rule import chunk_gated_delta_rule
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_recurrent_gated_delta_rule,
)

INPUTS = ("query", "key", "value", "g", "beta", "initial_state")


def make_inputs(
    batch: int, length: int, key_heads: int, value_heads: int
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "query": normal(batch, length, key_heads, 16),
        "key": normal(batch, length, key_heads, 16),
        "value": normal(batch, length, value_heads, 24),
        "g": -normal(batch, length, value_heads).exp(),
        "beta": normal(batch, length, value_heads).sigmoid(),
        "initial_state": normal(batch, value_heads, 16, 24),
    }


def run(function, inputs: dict[str, Tensor], **options) -> tuple[Tensor, Tensor]:
    query, key, value = (inputs[n] for n in INPUTS[:3])
    rest = {n: inputs[n] for n in INPUTS[3:]}
    return function(
        query,
        key,
        value,
        **rest,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        **options,
    )


def recurrent(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    repeats = inputs["value"].shape[2] // inputs["query"].shape[2]
    heads = {n: inputs[n].repeat_interleave(repeats, 2) for n in ("query", "key")}
    return run(torch_recurrent_gated_delta_rule, {**inputs, **heads})


@pytest.mark.parametrize("length", [1, 5, 63, 64, 65, 200])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_matches_the_recurrence(length: int, key_heads: int) -> None:
    inputs = make_inputs(2, length, key_heads, 4)
    out, state = run(chunk_gated_delta_rule, inputs)
    expected_out, expected_state = recurrent(inputs)
    torch.testing.assert_close(out, expected_out, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state, expected_state, atol=2e-5, rtol=1e-4)


def test_gradients_match_the_recurrence() -> None:
    grads = []
    for function in (lambda x: run(chunk_gated_delta_rule, x), recurrent):
        inputs = {n: x.requires_grad_() for n, x in make_inputs(2, 90, 2, 4).items()}
        out, state = function(inputs)
        loss = out.square().sum() + state.sin().sum()
        grads.append(torch.autograd.grad(loss, list(inputs.values())))
    for name, ours, theirs in zip(INPUTS, *grads):
        relative = (ours - theirs).norm() / theirs.norm()
        assert relative < 1e-4, (name, float(relative))


def test_gradcheck_in_float64() -> None:
    inputs = make_inputs(1, 7, 1, 2)
    inputs["initial_state"] = inputs["initial_state"][:, :, :3]
    tensors = [x[..., :3] if x.ndim == 4 else x for x in inputs.values()]
    tensors = [x.double().requires_grad_() for x in tensors]

    def function(*args: Tensor) -> tuple[Tensor, Tensor]:
        return run(chunk_gated_delta_rule, dict(zip(INPUTS, args)), chunk_size=3)

    assert torch.autograd.gradcheck(function, tensors)


def test_zero_padding_leaves_output_and_state() -> None:
    inputs = make_inputs(2, 70, 2, 4)
    padded = {
        n: x if n == "initial_state" else torch.cat([x, torch.zeros_like(x)], 1)
        for n, x in inputs.items()
    }
    out, state = run(chunk_gated_delta_rule, inputs)
    padded_out, padded_state = run(chunk_gated_delta_rule, padded)
    torch.testing.assert_close(padded_out[:, :70], out)
    torch.testing.assert_close(padded_state, state)


def test_keeps_the_dtype_of_the_query_and_a_float32_state() -> None:
    inputs = {n: x.bfloat16() for n, x in make_inputs(1, 10, 2, 2).items()}
    out, state = run(chunk_gated_delta_rule, inputs)
    assert (out.dtype, state.dtype) == (torch.bfloat16, torch.float32)


def test_state_is_optional() -> None:
    inputs = make_inputs(1, 10, 2, 2)
    del inputs["initial_state"]
    out, state = chunk_gated_delta_rule(**inputs)
    zeros = torch.zeros(1, 2, 16, 24)
    expected, _ = chunk_gated_delta_rule(**inputs, initial_state=zeros)
    assert state is None
    torch.testing.assert_close(out, expected)
