"""The gated delta rule on SGLang's state pool, and the gates that drive it.

The pool is laid out ``[slots, value heads, V, K]``; everything is computed in
float32. A negative slot marks a padded request: its output is zero and its state is
neither read nor written.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sgl_kernel.delta_rule import chunk_gated_delta_rule, l2_normalize
from sgl_kernel.ragged import groups_of_similar_length, padded_index
from sgl_kernel.registry import not_provided, operator
from torch import Tensor


def _log_decay(
    A_log: Tensor, a: Tensor, dt_bias: Tensor, beta: float, threshold: float
) -> Tensor:
    step = F.softplus(a.float() + dt_bias.float(), beta, threshold)
    return -A_log.float().exp() * step


@operator(
    "fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias)"
    " -> (Tensor, Tensor)"
)
def fused_gdn_gating_cpu(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log decay and writing strength, float32 ``[1, tokens, value heads]``."""
    g = _log_decay(A_log, a, dt_bias, 1.0, 20.0)
    return g.unsqueeze(0), b.float().sigmoid().unsqueeze(0)


@operator(
    "fused_qkvzba_split_reshape_cat_contiguous_cpu(Tensor mixed_qkvz,"
    " Tensor mixed_ba, int num_heads_qk, int num_heads_v, int head_qk, int head_v)"
    " -> (Tensor, Tensor, Tensor, Tensor)"
)
def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    mixed_qkvz: Tensor,
    mixed_ba: Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Split ``[tokens, q|k|v|z]`` and ``[tokens, b|a]`` into qkv, z, b and a."""
    qkv_width = 2 * num_heads_qk * head_qk + num_heads_v * head_v
    qkv = mixed_qkvz[:, :qkv_width]
    z = mixed_qkvz[:, qkv_width:].unflatten(1, (num_heads_v, head_v))
    b, a = mixed_ba.split(num_heads_v, dim=1)
    qkv, z, b, a = (
        x.clone(memory_format=torch.contiguous_format) for x in (qkv, z, b, a)
    )
    return qkv, z, b, a


@operator(
    "chunk_gated_delta_rule_cpu(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,"
    " Tensor(a!) initial_state, Tensor cu_seqlens, bool use_qk_l2norm_in_kernel,"
    " Tensor initial_state_indices) -> Tensor"
)
def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
) -> Tensor:
    """Run packed prompts ``[1, tokens, heads, dim]`` and update their states."""
    lengths = cu_seqlens.diff()
    slots = initial_state_indices[: lengths.numel()].long()
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    lengths = lengths.where(slots >= 0, 0)
    for group in groups_of_similar_length(lengths):
        index, exists = padded_index(cu_seqlens[group], lengths[group])
        pool_rows = slots[group]
        absent = ~exists.unsqueeze(-1)
        group_out, state = chunk_gated_delta_rule(
            q[0, index],
            k[0, index],
            v[0, index],
            g[0, index].masked_fill(absent, 0),
            beta[0, index].masked_fill(absent, 0),
            initial_state=initial_state[pool_rows].float().transpose(-1, -2),
            output_final_state=True,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )
        out[0, index[exists]] = group_out[exists].to(out.dtype)
        initial_state[pool_rows] = state.transpose(-1, -2).to(initial_state.dtype)
    return out


def _padded_heads(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, normalize: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scaled queries, keys and values as float32 ``[B, steps, HV, dim]``."""
    q, k, v = (x[0, index].float() for x in (q, k, v))
    if normalize:
        q, k = l2_normalize(q), l2_normalize(k)
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    return q * q.shape[-1] ** -0.5, k, v


def _store_steps(buffer: Tensor, rows: Tensor, history: Tensor, exists: Tensor) -> None:
    """Copy the state after each existing step to the request's row of ``buffer``."""
    requests, places = exists.nonzero(as_tuple=True)
    states = history[requests, places + 1].to(buffer.dtype)
    buffer[rows[requests], places] = states


def _recurrent_states(
    history: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    parents: Tensor | None,
) -> None:
    """Fill ``history`` ``[B, 1 + steps, heads, V, K]`` from its first entry on."""
    requests = torch.arange(history.shape[0])
    state = history[:, 0]
    for step in range(k.shape[1]):
        if parents is not None and step > 0:
            state = history[requests, parents[:, step] + 1]
        key = k[:, step].unsqueeze(-1)
        state = state * decay[:, step, :, None, None]
        error = v[:, step].unsqueeze(-1) - state @ key
        write = beta[:, step, :, None, None] * error
        state = torch.addcmul(state, write, key.transpose(-1, -2))
        history[:, step + 1] = state


@operator(
    "fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias,"
    " Tensor q, Tensor k, Tensor v, Tensor a, Tensor b,"
    " Tensor(a!) initial_state_source, Tensor initial_state_indices,"
    " Tensor cu_seqlens, bool use_qk_l2norm_in_kernel=True, float softplus_beta=1.0,"
    " float softplus_threshold=20.0, bool is_kda=False,"
    " bool disable_state_update=False, Tensor(b!)? intermediate_states_buffer=None,"
    " Tensor? intermediate_state_indices=None, int? cache_steps=None,"
    " Tensor? retrieve_parent_token=None) -> Tensor"
)
def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool = True,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """Run one or a few tokens a request through the recurrence, step by step.

    Args:
        q, k, v: packed tokens ``[1, tokens, heads, dim]``.
        a, b: gate inputs ``[tokens, value heads]``.
        intermediate_states_buffer: ``[rows, steps, value heads, V, K]``, receives the
            state after every step (a verify pass).
        retrieve_parent_token: ``[B, steps]``, the step whose state each step follows,
            -1 for the state in the pool; None for a chain.
    """
    if is_kda:
        raise not_provided("fused_sigmoid_gating_delta_rule_update_cpu", "is_kda")
    batch, heads = cu_seqlens.numel() - 1, v.shape[2]
    slots = initial_state_indices[:batch].long()
    lengths = cu_seqlens.diff().long().where(slots >= 0, 0)
    index, exists = padded_index(cu_seqlens[:-1], lengths)
    steps = index.shape[1]
    queries, keys, values = _padded_heads(q, k, v, index, use_qk_l2norm_in_kernel)
    g = _log_decay(
        A_log, a.reshape(-1, heads), dt_bias, softplus_beta, softplus_threshold
    )
    beta = b.reshape(-1, heads).float().sigmoid()
    history = values.new_empty(batch, steps + 1, *initial_state_source.shape[1:])
    history[:, 0] = initial_state_source[slots.clamp(min=0)]
    parents = retrieve_parent_token
    if parents is not None:
        parents = parents[:batch, :steps].long().clamp(-1, steps - 1)
    _recurrent_states(history, keys, values, g.exp()[index], beta[index], parents)

    read = (history[:, 1:] @ queries.unsqueeze(-1)).squeeze(-1)
    out = torch.zeros_like(v, memory_format=torch.contiguous_format)
    out[0, index[exists]] = read[exists].to(out.dtype)
    if intermediate_states_buffer is not None:
        chosen = intermediate_state_indices
        rows = slots if chosen is None else chosen[:batch].long()
        _store_steps(intermediate_states_buffer, rows, history, exists)
    if not disable_state_update:
        real = slots >= 0
        final = history[torch.arange(batch), lengths]
        initial_state_source[slots[real]] = final[real].to(initial_state_source.dtype)
    return out
