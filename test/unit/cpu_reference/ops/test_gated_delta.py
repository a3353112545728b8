"""The gated delta rule operators against a plain float64 loop."""

from __future__ import annotations

import math

import pytest
import sgl_kernel
import torch
from sgl_kernel.mamba import chunk_gated_delta_rule_cpu
from torch import Tensor

KEY_HEADS, HEADS, K, V = 2, 4, 8, 12
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
update = sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu


class Layer:
    """Random inputs of one layer for packed tokens, and the loop over them."""

    def __init__(self, tokens: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(tokens)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        width = 2 * KEY_HEADS * K + HEADS * V
        # As in a layer: strided views into one projection.
        mixed = normal(tokens, width).to(dtype)
        q, k, v = mixed.split([KEY_HEADS * K, KEY_HEADS * K, HEADS * V], dim=1)
        self.q = q.view(1, tokens, KEY_HEADS, K)
        self.k = k.view(1, tokens, KEY_HEADS, K)
        self.v = v.view(1, tokens, HEADS, V)
        self.a, self.b = normal(2, tokens, HEADS).to(dtype)
        self.A_log, self.dt_bias = normal(HEADS), normal(HEADS)
        self.states = normal(6, HEADS, V, K)

    def step(self, state: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """Advance ``state`` ``[heads, V, K]`` in float64 with scalars per head."""
        state, outs = state.double().clone(), []
        for head in range(HEADS):
            group = head // (HEADS // KEY_HEADS)
            q, k = self.q[0, token, group].double(), self.k[0, token, group].double()
            q, k = (x / (x.dot(x) + 1e-6).sqrt() for x in (q, k))
            gate = float(self.a[token, head]) + float(self.dt_bias[head])
            decay = math.exp(
                -math.exp(float(self.A_log[head])) * math.log1p(math.exp(gate))
            )
            beta = 1 / (1 + math.exp(-float(self.b[token, head])))
            memory = decay * state[head]
            error = self.v[0, token, head].double() - memory @ k
            state[head] = memory + beta * torch.outer(error, k)
            outs.append(state[head] @ q / math.sqrt(K))
        return state, torch.stack(outs)

    def gates(self) -> dict[str, Tensor]:
        return {
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "a": self.a,
            "b": self.b,
        }


def starts_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(
        actual.double(), expected, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_ragged_prefill(dtype: torch.dtype) -> None:
    lengths, slots = [3, 150, 1, 70], [5, 0, 2, 3]
    layer = Layer(sum(lengths), dtype)
    states = layer.states.clone()
    g, beta = sgl_kernel.fused_gdn_gating_cpu(
        layer.A_log, layer.a, layer.b, layer.dt_bias
    )
    out, last, chunks = chunk_gated_delta_rule_cpu(
        q=layer.q,
        k=layer.k,
        v=layer.v,
        g=g,
        beta=beta,
        initial_state=states,
        cu_seqlens=starts_of(lengths),
        head_first=False,
        use_qk_l2norm_in_kernel=True,
        initial_state_indices=torch.tensor(slots, dtype=torch.int32),
    )
    assert last is None and chunks is None
    assert out.dtype == dtype and out.shape == layer.v.shape
    token = 0
    for length, slot in zip(lengths, slots):
        state = layer.states[slot]
        for _ in range(length):
            state, expected = layer.step(state, token)
            close(out[0, token], expected, dtype)
            token += 1
        close(states[slot], state, torch.float32)
    assert torch.equal(states[[1, 4]], layer.states[[1, 4]])


def test_prefill_skips_padded_requests() -> None:
    layer = Layer(7, torch.float32)
    states = layer.states.clone()
    g, beta = sgl_kernel.fused_gdn_gating_cpu(
        layer.A_log, layer.a, layer.b, layer.dt_bias
    )
    out, _, _ = chunk_gated_delta_rule_cpu(
        layer.q,
        layer.k,
        layer.v,
        g,
        beta,
        states,
        starts_of([4, 3, 0]),
        use_qk_l2norm_in_kernel=True,
        initial_state_indices=torch.tensor([-1, 2, 1]),
    )
    assert out[0, :4].abs().sum() == 0 and out[0, 4:].abs().sum() > 0
    changed = [not torch.equal(a, b) for a, b in zip(states, layer.states)]
    assert changed == [False, False, True, False, False, False]


def test_gating() -> None:
    layer = Layer(5, torch.bfloat16)
    g, beta = sgl_kernel.fused_gdn_gating_cpu(
        layer.A_log, layer.a, layer.b, layer.dt_bias
    )
    assert g.shape == beta.shape == (1, 5, HEADS)
    assert g.dtype == beta.dtype == torch.float32
    gate = layer.a.double() + layer.dt_bias.double()
    close(g[0], -layer.A_log.double().exp() * gate.exp().log1p(), torch.float32)
    close(beta[0], 1 / (1 + (-layer.b.double()).exp()), torch.float32)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_decode_updates_the_slots(dtype: torch.dtype) -> None:
    layer = Layer(3, dtype)
    states = layer.states.clone()
    slots = [4, -1, 1]
    out = update(
        **layer.gates(),
        initial_state_source=states,
        initial_state_indices=torch.tensor(slots, dtype=torch.int32),
        cu_seqlens=starts_of([1, 1, 1]),
        use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0,
        softplus_threshold=20.0,
    )
    for token, slot in ((0, 4), (2, 1)):
        state, expected = layer.step(layer.states[slot], token)
        close(out[0, token], expected, dtype)
        close(states[slot], state, torch.float32)
    assert out[0, 1].abs().sum() == 0
    assert torch.equal(states[[0, 2, 3, 5]], layer.states[[0, 2, 3, 5]])


@pytest.mark.parametrize("lengths", [[4, 4], [4, 2], [0, 3]])
@pytest.mark.parametrize(
    "parents", [None, [-1, 0, 1, 2], [-1, 0, 0, 1], [-1, -1, 0, -1]]
)
def test_verify_keeps_the_state_after_every_step(
    lengths: list[int], parents: list[int] | None
) -> None:
    layer = Layer(sum(lengths), torch.float32)
    states, slots, rows = layer.states.clone(), [3, 1], [2, 0]
    buffer = torch.zeros(3, 4, HEADS, V, K)
    tree = None if parents is None else torch.tensor([parents, parents])
    out = update(
        **layer.gates(),
        initial_state_source=states,
        initial_state_indices=torch.tensor(slots, dtype=torch.int32),
        cu_seqlens=starts_of(lengths),
        is_kda=False,
        disable_state_update=True,
        intermediate_states_buffer=buffer,
        # SGLang hands over the whole pool's indices.
        intermediate_state_indices=torch.tensor([*rows, 1], dtype=torch.int32),
        cache_steps=4,
        retrieve_parent_token=tree,
    )
    token = 0
    for length, slot, row in zip(lengths, slots, rows):
        after: list[Tensor] = []
        for step in range(length):
            parent = step - 1 if parents is None else parents[step]
            state = layer.states[slot] if parent < 0 else after[parent]
            state, expected = layer.step(state, token)
            after.append(state)
            close(out[0, token], expected, torch.float32)
            close(buffer[row, step], state, torch.float32)
            token += 1
        assert buffer[row, length:].abs().sum() == 0
    assert torch.equal(states, layer.states)


def test_verify_and_step_by_step_decode_give_the_same_bits() -> None:
    layer = Layer(6, torch.bfloat16)
    common = {"use_qk_l2norm_in_kernel": True}
    buffer = torch.zeros(2, 3, HEADS, V, K)
    slots = torch.tensor([4, 1])
    verified = update(
        **layer.gates(),
        initial_state_source=layer.states.clone(),
        initial_state_indices=slots,
        cu_seqlens=starts_of([3, 3]),
        disable_state_update=True,
        intermediate_states_buffer=buffer,
        intermediate_state_indices=torch.tensor([0, 1]),
        **common,
    )
    states = layer.states.clone()
    for step in range(3):
        token = {
            n: x[:, step : step + 1] for n, x in layer.gates().items() if x.ndim > 3
        }
        rest = {
            n: x[step : step + 1] if x.ndim == 2 else x
            for n, x in layer.gates().items()
            if x.ndim < 3
        }
        decoded = update(
            **token,
            **rest,
            initial_state_source=states,
            initial_state_indices=slots[:1],
            cu_seqlens=starts_of([1]),
            **common,
        )
        assert torch.equal(decoded[0, 0], verified[0, step])
        assert torch.equal(states[4], buffer[0, step])


def test_other_gatings_are_refused() -> None:
    layer = Layer(1, torch.float32)
    with pytest.raises(NotImplementedError, match="is_kda"):
        update(
            **layer.gates(),
            initial_state_source=layer.states,
            initial_state_indices=torch.tensor([0]),
            cu_seqlens=starts_of([1]),
            is_kda=True,
        )


@pytest.mark.parametrize("tokens", [1, 3])
def test_projection_split_copies_each_part(tokens: int) -> None:
    width = 2 * KEY_HEADS * K + 2 * HEADS * V
    qkvz = torch.arange(float(tokens * width)).view(tokens, width)
    ba = torch.arange(float(tokens * 2 * HEADS)).view(tokens, 2 * HEADS)
    split = sgl_kernel.fused_qkvzba_split_reshape_cat_contiguous_cpu
    qkv, z, b, a = split(qkvz, ba, KEY_HEADS, HEADS, K, V)
    assert torch.equal(torch.cat([qkv, z.flatten(1)], dim=1), qkvz)
    assert torch.equal(torch.cat([b, a], dim=1), ba)
    assert z.shape == (tokens, HEADS, V)
    for part in (qkv, z, b, a):
        assert part.is_contiguous()
        part.zero_()
    assert qkvz.sum() > 0 and ba.sum() > 0
