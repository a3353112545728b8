"""Norms and gates against transformers' Qwen3.5 layers."""

from __future__ import annotations

import pytest
import sgl_kernel
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5RMSNorm,
    Qwen3_5RMSNormGated,
)

EPS, HEADS, KV_HEADS, DIM, TOKENS = 1e-6, 4, 2, 16, 5
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def normal(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def gemma(weight: Tensor) -> Qwen3_5RMSNorm:
    norm = Qwen3_5RMSNorm(weight.numel(), eps=EPS)
    norm.weight.data = weight
    return norm


@DTYPES
@torch.no_grad()
def test_query_and_key_norm(dtype: torch.dtype) -> None:
    qkv = normal(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, seed=1, dtype=dtype)
    q, k, _ = qkv.split([HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
    q_weight, k_weight = normal(2, DIM, seed=2, dtype=dtype)
    q_out, k_out = sgl_kernel.fused_qk_gemma_rmsnorm_cpu(
        q, k, q_weight, k_weight, EPS, DIM
    )
    torch.testing.assert_close(q_out, gemma(q_weight)(q.reshape(-1, DIM)))
    torch.testing.assert_close(k_out, gemma(k_weight)(k.reshape(-1, DIM)))
    assert q_out.view(q.shape).dtype == dtype


@DTYPES
@pytest.mark.parametrize("tokens", [1, TOKENS])
@torch.no_grad()
def test_query_and_key_norm_with_gate(dtype: torch.dtype, tokens: int) -> None:
    qkv = normal(tokens, (2 * HEADS + 2 * KV_HEADS) * DIM, seed=1, dtype=dtype)
    q_gate, k, _ = qkv.split([2 * HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM], dim=1)
    q_weight, k_weight = normal(2, DIM, seed=2, dtype=dtype)
    q_out, k_out, gate = sgl_kernel.fused_qk_gemma_rmsnorm_with_gate_cpu(
        q_gate, k, q_weight, k_weight, EPS, DIM, HEADS
    )
    # As transformers' attention splits it: each head's query, then its gate.
    q, expected_gate = q_gate.reshape(tokens, -1, 2 * DIM).chunk(2, dim=-1)
    torch.testing.assert_close(q_out, gemma(q_weight)(q).reshape(-1, DIM))
    torch.testing.assert_close(k_out, gemma(k_weight)(k.reshape(-1, DIM)))
    assert torch.equal(gate, expected_gate.reshape(tokens, -1))


def test_norm_in_place_on_strided_views() -> None:
    dtype = torch.bfloat16
    qkv = normal(TOKENS, (HEADS + 2 * KV_HEADS) * DIM, seed=1, dtype=dtype)
    before = qkv.clone()
    sizes = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
    q, k, v = qkv.split(sizes, dim=1)
    weights = normal(2, DIM, seed=2, dtype=dtype)
    torch.ops.sgl_kernel.fused_qk_norm_cpu(q, k, *weights, EPS)
    q_before, k_before, v_before = before.split(sizes, dim=1)
    for x, original, weight in ((q, q_before, weights[0]), (k, k_before, weights[1])):
        heads = original.reshape(TOKENS, -1, DIM).double()
        expected = F.rms_norm(heads, (DIM,), weight.double(), EPS).flatten(1)
        torch.testing.assert_close(x.double(), expected, atol=2e-2, rtol=1e-2)
    assert torch.equal(v, v_before)


@DTYPES
def test_sigmoid_gate_in_place(dtype: torch.dtype) -> None:
    x, gate = normal(2, TOKENS, 2 * DIM, seed=1, dtype=dtype)
    x = x[:, :DIM]
    gate = gate[:, DIM:]
    expected = x.double() / (1 + (-gate.double()).exp())
    torch.ops.sgl_kernel.fused_sigmoid_mul_cpu(x, gate)
    torch.testing.assert_close(x, expected.to(dtype))


@DTYPES
@torch.no_grad()
def test_gated_norm(dtype: torch.dtype) -> None:
    x, gate = normal(2, TOKENS * HEADS, DIM, seed=1, dtype=dtype)
    theirs = Qwen3_5RMSNormGated(DIM, eps=EPS)
    theirs.weight.data = normal(DIM, seed=2, dtype=dtype)
    out = sgl_kernel.fused_rmsnorm_gated_cpu(x, theirs.weight, gate, EPS)
    assert out.dtype == dtype
    # transformers rounds once more before the weight.
    tolerance = {} if dtype == torch.float32 else {"atol": 1e-2, "rtol": 1.6e-2}
    torch.testing.assert_close(out, theirs(x, gate), **tolerance)
