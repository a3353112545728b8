"""RMS norms and gates of Qwen3.5's layers, computed in float32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sgl_kernel.registry import operator
from torch import Tensor


def _rms_normalize(x: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _gemma_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension; the weight is stored as its distance from 1."""
    return (_rms_normalize(x, eps) * (1 + weight.float())).to(x.dtype)


@operator(
    "fused_qk_gemma_rmsnorm_cpu(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight,"
    " float eps, int head_dim) -> (Tensor, Tensor)"
)
def fused_qk_gemma_rmsnorm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Normalise each head of q and k; the results are ``[tokens * heads, head_dim]``."""
    return (
        _gemma_norm(q.reshape(-1, head_dim), q_weight, eps),
        _gemma_norm(k.reshape(-1, head_dim), k_weight, eps),
    )


@operator(
    "fused_qk_gemma_rmsnorm_with_gate_cpu(Tensor q_gate, Tensor k, Tensor q_weight,"
    " Tensor k_weight, float eps, int head_dim, int num_heads)"
    " -> (Tensor, Tensor, Tensor)"
)
def fused_qk_gemma_rmsnorm_with_gate_cpu(
    q_gate: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for ``q_gate`` ``[tokens, heads * (q|gate)]``; also returns the gate."""
    q, gate = q_gate.unflatten(-1, (num_heads, 2, head_dim)).unbind(-2)
    return (
        _gemma_norm(q.reshape(-1, head_dim), q_weight, eps),
        _gemma_norm(k.reshape(-1, head_dim), k_weight, eps),
        gate.clone(memory_format=torch.contiguous_format).flatten(1),
    )


@operator(
    "fused_qk_norm_cpu(Tensor(a!) q, Tensor(b!) k, Tensor q_weight, Tensor k_weight,"
    " float eps) -> ()"
)
def fused_qk_norm_cpu(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float
) -> None:
    """Normalise each head of q and k in place, ``[tokens, heads * head_dim]`` each.

    The tensors may be strided views into one projection; a head is as wide as its
    weight.
    """
    for x, weight in ((q, q_weight), (k, k_weight)):
        heads = x.unflatten(-1, (-1, weight.numel()))
        heads.copy_(_rms_normalize(heads, eps) * weight.float())


@operator("fused_sigmoid_mul_cpu(Tensor(a!) x, Tensor gate) -> ()")
def fused_sigmoid_mul_cpu(x: Tensor, gate: Tensor) -> None:
    """Multiply ``x`` in place by the sigmoid of ``gate``, which has as many elements."""
    x.copy_(x.float() * gate.float().sigmoid().reshape(x.shape))


@operator(
    "fused_rmsnorm_gated_cpu(Tensor x, Tensor weight, Tensor gate, float eps) -> Tensor"
)
def fused_rmsnorm_gated_cpu(
    x: Tensor, weight: Tensor, gate: Tensor, eps: float
) -> Tensor:
    """Normalise ``x``, then weigh and gate it with ``silu(gate)``."""
    normalized = _rms_normalize(x, eps) * weight.float()
    return (normalized * F.silu(gate.float())).to(x.dtype)
