"""The gated delta rule over whole sequences, chunk by chunk, with autograd.

Needs only torch. Every chunk is solved at once: with ``a`` the decay accumulated
since the chunk's start and ``S`` the state there, the written values ``u`` satisfy
the unit lower triangular system

    u_i + beta_i * sum_{j<i} (a_i / a_j) (k_i . k_j) u_j = beta_i (v_i - a_i S^T k_i)

whose right-hand side is linear in ``S``: one solve per chunk yields both terms, and
only a scan of matrix products over the chunks remains.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

L2_NORM_EPS = 1e-6


def l2_normalize(x: Tensor) -> Tensor:
    """Scale the last dimension to unit length, as the delta rule kernels do."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_NORM_EPS)


def _working_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _to_chunks(x: Tensor, size: int) -> Tensor:
    """Reshape ``[B, T, H, ...]`` to ``[B, H, chunks, size, ...]``, zero-padding T."""
    x = x.transpose(1, 2).to(_working_dtype(x))
    pad = -x.shape[2] % size
    x = F.pad(x, [0, 0] * (x.ndim - 3) + [0, pad])
    return x.unflatten(2, (-1, size))


def _repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    repeats = num_heads // x.shape[2]
    return x if repeats == 1 else x.repeat_interleave(repeats, dim=2)


def _pairwise_decay(log_decay: Tensor) -> Tensor:
    """Return ``a_i / a_j`` for ``j <= i`` and 0 above the diagonal."""
    difference = log_decay.unsqueeze(-1) - log_decay.unsqueeze(-2)
    future = torch.ones_like(difference, dtype=torch.bool).triu(1)
    return difference.masked_fill(future, float("-inf")).exp()


def _solve_chunks(
    k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``(u0, w)``: a chunk entered with state ``S`` writes ``u0 - w @ S``."""
    beta = beta.unsqueeze(-1)
    system = beta * (k @ k.transpose(-1, -2)) * decay
    right = beta * torch.cat([v, k * log_decay.exp().unsqueeze(-1)], dim=-1)
    solved = torch.linalg.solve_triangular(
        system, right, upper=False, unitriangular=True
    )
    return solved.split([v.shape[-1], k.shape[-1]], dim=-1)


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    chunk_size: int = 32,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated delta rule over sequences of equal length.

    Args:
        query, key: ``[B, T, H, K]``; ``H`` divides ``HV``.
        value: ``[B, T, HV, V]``.
        g: logarithm of the decay, ``[B, T, HV]``, never positive.
        beta: writing strength, ``[B, T, HV]``. A position with ``g = beta = 0``
            leaves the state as it is, so shorter sequences are padded with zeros.
        initial_state: ``[B, HV, K, V]``, zeros when None.
        output_final_state: whether to return the state after the last position.
        use_qk_l2norm_in_kernel: whether to normalise query and key first.
        chunk_size: positions solved together; the result does not depend on it.

    Returns:
        The output ``[B, T, HV, V]`` in the dtype of ``query``, and the final state
        ``[B, HV, K, V]`` (float32, or float64 for such inputs) or None.
    """
    length, num_heads = value.shape[1:3]
    size = max(1, min(chunk_size, length))
    q, k, v, log_decay, beta_chunks = (
        _to_chunks(x, size)
        for x in (
            _repeat_heads(query, num_heads),
            _repeat_heads(key, num_heads),
            value,
            g,
            beta,
        )
    )
    if use_qk_l2norm_in_kernel:
        q, k = l2_normalize(q), l2_normalize(k)
    q = q * q.shape[-1] ** -0.5
    log_decay = log_decay.cumsum(-1)
    decay = _pairwise_decay(log_decay)
    u0, w = _solve_chunks(k, v, beta_chunks, log_decay, decay)
    attention = (q @ k.transpose(-1, -2)) * decay
    q = q * log_decay.exp().unsqueeze(-1)
    k = k * decay[..., -1, :].unsqueeze(-1)
    chunk_decay = log_decay[..., -1].exp()[..., None, None]

    if initial_state is None:
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    else:
        state = initial_state.to(k.dtype)
    outputs = []
    for i in range(k.shape[2]):
        u = u0[:, :, i] - w[:, :, i] @ state
        outputs.append(q[:, :, i] @ state + attention[:, :, i] @ u)
        state = state * chunk_decay[:, :, i] + k[:, :, i].transpose(-1, -2) @ u
    out = torch.cat(outputs, dim=2)[:, :, :length].transpose(1, 2)
    return out.to(query.dtype), state if output_final_state else None
