"""The causal convolution against transformers' and a plain float64 loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sgl_kernel.mamba import causal_conv1d_fn_cpu, causal_conv1d_update_cpu
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    causal_conv1d_update as transformers_update,
)

CHANNELS, TAPS = 6, 4
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def reference(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve ``[channels, TAPS - 1 + tokens]``, history included, token by token."""
    inputs, weight = inputs.double(), weight.double()
    columns = []
    for end in range(TAPS, inputs.shape[1] + 1):
        total = (inputs[:, end - TAPS : end] * weight).sum(1)
        columns.append(total if bias is None else total + bias.double())
    return F.silu(torch.stack(columns, dim=1))


def prefill(x: Tensor, states: Tensor, lengths: list[int], slots: list[int], **kw):
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    return causal_conv1d_fn_cpu(
        x,
        kw.pop("weight"),
        kw.pop("bias", None),
        query_start_loc=starts,
        cache_indices=torch.tensor(slots, dtype=torch.int32),
        conv_states=states,
        seq_lens_cpu=lengths,
        **kw,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("with_bias", [False, True])
def test_ragged_prefill_continues_from_the_states(
    dtype: torch.dtype, with_bias: bool
) -> None:
    lengths, slots, initial = [5, 1, 2, 9], [3, 0, 5, 2], [True, True, False, False]
    x = normal(17, CHANNELS, seed=1, dtype=dtype).t()
    weight = normal(CHANNELS, TAPS, seed=2, dtype=dtype)
    bias = normal(CHANNELS, seed=3, dtype=dtype) if with_bias else None
    states = normal(7, CHANNELS, TAPS - 1, seed=4, dtype=dtype)
    before, at = states.clone(), 0
    out = prefill(
        x,
        states,
        lengths,
        slots,
        weight=weight,
        bias=bias,
        has_initial_state=torch.tensor(initial),
        activation="silu",
    )
    for length, slot, has_state in zip(lengths, slots, initial):
        history = before[slot] * has_state
        inputs = torch.cat([history, x[:, at : at + length]], dim=1)
        expected = reference(inputs, weight, bias)
        actual = out[:, at : at + length].double()
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
        assert torch.equal(states[slot], inputs[:, -(TAPS - 1) :])
        at += length
    untouched = [s for s in range(7) if s not in slots]
    assert torch.equal(states[untouched], before[untouched])


def test_prefill_leaves_padded_requests_and_rows_zero() -> None:
    x = normal(CHANNELS, 8, seed=1)
    states = normal(2, CHANNELS, TAPS - 1)
    before = states.clone()
    weight = normal(CHANNELS, TAPS, seed=2)
    out = prefill(x, states, [3, 2], [1, -1], weight=weight, activation="silu")
    assert out[:, :3].abs().sum() > 0
    assert torch.equal(out[:, 3:], torch.zeros(CHANNELS, 5))
    assert torch.equal(states[0], before[0])


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="gelu"):
        prefill(
            normal(CHANNELS, 2),
            normal(1, CHANNELS, TAPS - 1),
            [2],
            [0],
            weight=normal(CHANNELS, TAPS),
            activation="gelu",
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_decode_matches_transformers(dtype: torch.dtype) -> None:
    x = normal(2, 3, 2 * CHANNELS, seed=1, dtype=dtype)[0, :, :CHANNELS]
    weight = normal(CHANNELS, TAPS, seed=2, dtype=dtype)
    states = normal(5, CHANNELS, TAPS - 1, seed=3, dtype=dtype)
    slots = torch.tensor([4, 0, 2], dtype=torch.int32)
    theirs = torch.cat([torch.zeros(3, CHANNELS, 1), states[slots.long()]], -1)
    theirs = theirs.to(dtype)
    expected = transformers_update(
        x.unsqueeze(-1).contiguous(), theirs, weight, None, "silu"
    )
    out = causal_conv1d_update_cpu(
        x, states, weight, None, "silu", conv_state_indices=slots
    )
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        out, expected.squeeze(-1), atol=tolerance, rtol=tolerance
    )
    assert torch.equal(states[slots.long()], theirs[:, :, 1:])


def test_prefill_decode_and_verify_give_the_same_bits() -> None:
    tokens = normal(6, CHANNELS, seed=1, dtype=torch.bfloat16)
    weight = normal(CHANNELS, TAPS, seed=2, dtype=torch.bfloat16)
    zeros = torch.zeros(1, CHANNELS, TAPS - 1, dtype=torch.bfloat16)
    slot = torch.tensor([0])
    whole = prefill(tokens.t(), zeros.clone(), [6], [0], weight=weight).t()
    state, steps = zeros.clone(), []
    for token in tokens:
        steps.append(
            causal_conv1d_update_cpu(
                token[None], state, weight, None, "silu", conv_state_indices=slot
            )
        )
    verified = causal_conv1d_update_cpu(
        tokens.t()[None], zeros, weight, None, "silu", conv_state_indices=slot
    )
    assert torch.equal(torch.cat(steps), whole)
    assert torch.equal(verified[0].t(), whole)
    assert torch.equal(state, zeros)


def test_update_ignores_padded_requests() -> None:
    states = normal(2, CHANNELS, TAPS - 1)
    before = states.clone()
    windows = torch.zeros(3, 2, CHANNELS, TAPS - 1)
    slots = torch.tensor([-1, 1])
    out = causal_conv1d_update_cpu(
        normal(2, CHANNELS, 2, seed=1),
        states,
        normal(CHANNELS, TAPS, seed=2),
        None,
        "silu",
        conv_state_indices=slots,
        intermediate_conv_window=windows,
        intermediate_state_indices=torch.tensor([0, 2, 1]),
    )
    assert out[0].abs().sum() == 0 and out[1].abs().sum() > 0
    assert windows[:2].abs().sum() == 0 and windows[2].abs().sum() > 0
    assert torch.equal(states, before)


@pytest.mark.parametrize(
    "parents", [None, [-1, 0, 1, 2, 3], [-1, 0, 0, 1, 2], [0, 0, 1, 1, 0]]
)
def test_verify_follows_the_draft_tree(parents: list[int] | None) -> None:
    steps, slots, rows = 5, [3, 1], [0, 2]
    x = normal(2, steps, CHANNELS, seed=1).transpose(1, 2)
    weight, bias = normal(CHANNELS, TAPS, seed=2), normal(CHANNELS, seed=5)
    states = normal(4, CHANNELS, TAPS - 1, seed=3)
    before = states.clone()
    windows = torch.zeros(3, steps, CHANNELS, TAPS - 1)
    tree = None if parents is None else torch.tensor([parents, parents])
    out = causal_conv1d_update_cpu(
        x,
        states,
        weight,
        bias,
        "silu",
        conv_state_indices=torch.tensor(slots, dtype=torch.int32),
        intermediate_conv_window=windows,
        intermediate_state_indices=torch.tensor(rows, dtype=torch.int32),
        retrieve_parent_token=tree,
    )
    for request, (slot, row) in enumerate(zip(slots, rows)):
        for step in range(steps):
            path, node = [], step
            while node > 0:
                path.append(node)
                node = node - 1 if parents is None else parents[node]
            path = [0, *path[::-1]]
            inputs = torch.cat([before[slot], x[request][:, path]], dim=1)
            expected = reference(inputs, weight, bias)[:, -1]
            torch.testing.assert_close(
                out[request, :, step].double(), expected, atol=1e-5, rtol=1e-5
            )
            assert torch.equal(windows[row, step], inputs[:, -(TAPS - 1) :])
    assert torch.equal(states, before)
