"""Attention over SGLang's paged KV cache.

Keys and values lie in pools ``[slots, kv heads, dim]``; ``req_to_token[request, p]``
is the slot of a request's position ``p``. Scores and sums are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from sgl_kernel.registry import not_provided, operator
from torch import Tensor

# Floats in one block of scores: bounds the memory of long prompts to 64 MiB.
SCORES_PER_BLOCK = 1 << 24


class _Scoring(NamedTuple):
    scale: float
    cap: float
    sinks: Tensor | None


def _attend_block(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scoring: _Scoring
) -> Tensor:
    batch, num_queries, query_heads, _ = q.shape
    kv_heads = k.shape[2]
    group = query_heads // kv_heads
    q = q.float().transpose(1, 2).reshape(batch, kv_heads, group * num_queries, -1)
    scores = q @ k.permute(0, 2, 3, 1) * scoring.scale
    if scoring.cap > 0:
        scores = scoring.cap * torch.tanh(scores / scoring.cap)
    scores = scores.unflatten(2, (group, num_queries))
    # A finite floor: a padded query that sees nothing must not turn into NaN.
    floor = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(~visible[:, None, None], floor)
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(scores).view(1, kv_heads, group, 1, 1)
        sinks = sinks.expand(batch, -1, -1, num_queries, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1)[..., : k.shape[1]].flatten(2, 3)
    out = (weights @ v.transpose(1, 2)).view(batch, query_heads, num_queries, -1)
    return out.transpose(1, 2)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scoring: _Scoring
) -> Tensor:
    """Attend from ``q`` ``[B, n, heads, dim]`` to ``k``, ``v`` ``[B, L, kv heads, dim]``.

    ``visible`` is ``[B, n, L]``; consecutive query heads share a key head.
    """
    # Stale slots may hold NaN, which a weight of zero would let through.
    unseen = ~visible.any(1)
    k, v = k.float(), v.float().masked_fill(unseen[:, :, None, None], 0)
    per_query = q.shape[0] * q.shape[2] * k.shape[1]
    rows = max(1, SCORES_PER_BLOCK // max(1, per_query))
    blocks = zip(q.split(rows, dim=1), visible.split(rows, dim=1))
    return torch.cat([_attend_block(x, k, v, m, scoring) for x, m in blocks], dim=1)


def _gather(pool: Tensor, slots: Tensor, scale: float) -> Tensor:
    """Read pool rows; only an 8-bit pool holds scaled numbers."""
    rows = pool[slots]
    return rows.float() * scale if pool.dtype.itemsize == 1 else rows


def _slots_of(req_to_token: Tensor, requests: Tensor, lengths: Tensor) -> Tensor:
    """Return slots ``[B, max(lengths)]``, stale ones past the end of a request."""
    return req_to_token[requests.long(), : int(lengths.max())].long()


def _put(rows: Tensor, places: Tensor, new: Tensor) -> None:
    """Overwrite ``places`` ``[B, n]`` of ``rows`` ``[B, L, ...]``."""
    requests = torch.arange(len(rows)).unsqueeze(1)
    rows[requests, places] = new.to(rows.dtype)


def _as_heads(x: Tensor, pool: Tensor) -> Tensor:
    return x.reshape(x.shape[0], pool.shape[1], pool.shape[2])


def _visible(
    lengths: Tensor,
    prefixes: Tensor,
    num_queries: int,
    window: int,
    causal: bool,
    tree_mask: Tensor | None,
) -> Tensor:
    """Return which of ``max(lengths)`` keys each new query sees, ``[B, n, L]``."""
    keys = torch.arange(int(lengths.max()))
    queries = prefixes.unsqueeze(1) + torch.arange(num_queries)
    visible = (keys < lengths.unsqueeze(1)).unsqueeze(1).expand(-1, num_queries, -1)
    if tree_mask is not None:
        visible = visible & (keys < prefixes.unsqueeze(1)).unsqueeze(1)
        columns = queries.unsqueeze(1).expand(-1, num_queries, -1)
        visible = visible.scatter(2, columns, tree_mask)
    elif causal:
        visible = visible & (keys <= queries.unsqueeze(2))
    if window > 0:
        visible = visible & (keys > queries.unsqueeze(2) - window)
    return visible


def _check_provided(
    name: str, is_cross_attn: bool, tree_mask: Tensor | None, window: int
) -> None:
    if is_cross_attn:
        raise not_provided(name, "cross attention")
    if tree_mask is not None and window > 0:
        raise not_provided(name, "a token tree with a sliding window")


def _equal_length_groups(lengths: Tensor) -> list[Tensor]:
    """Return all requests together when they extend alike, else one by one."""
    if lengths.numel() and bool((lengths == lengths[0]).all()):
        groups = [torch.arange(lengths.numel())]
    else:
        groups = list(torch.arange(lengths.numel()).split(1))
    return [group for group in groups if int(lengths[group[0]]) > 0]


@operator(
    "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend,"
    " Tensor(a!) o_extend, Tensor k_buffer, Tensor v_buffer, float k_scale,"
    " float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens,"
    " Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend,"
    " float sm_scale, float logit_cap, bool is_cross_attn, int sliding_window_size,"
    " Tensor? encoder_lens=None, Tensor? sinks=None, Tensor? tree_mask=None,"
    " bool is_causal=True) -> ()"
)
def extend_attention_cpu(
    q_extend: Tensor,
    k_extend: Tensor | None,
    v_extend: Tensor | None,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Attend from each request's new tokens to its prefix and to themselves.

    Args:
        q_extend: packed queries ``[tokens, heads, dim]``; ``o_extend`` receives the
            result.
        k_extend, v_extend: keys and values of the new tokens; None when they are in
            the pools already.
        seq_lens: lengths with the new tokens, of which there are ``extend_seq_lens``
            from ``extend_start_loc`` on.
        sliding_window_size: positions a query sees, itself included; 0 for all.
        tree_mask: booleans ``[B, n, n]`` (flattened) among ``n`` new tokens a
            request: SGLang's ``QLEN_ONLY``. The prefix is always visible.
    """
    _check_provided(
        "extend_attention_cpu", is_cross_attn, tree_mask, sliding_window_size
    )
    scoring = _Scoring(sm_scale, logit_cap, sinks)
    mask_ends = extend_seq_lens.long().square().cumsum(0)
    for group in _equal_length_groups(extend_seq_lens):
        n, lengths = int(extend_seq_lens[group[0]]), seq_lens[group].long()
        new = torch.arange(n)
        rows = extend_start_loc[group].long().unsqueeze(1) + new
        slots = _slots_of(req_to_token, req_pool_indices[group], lengths)
        places = (lengths - n).unsqueeze(1) + new
        k = _gather(k_buffer, slots, k_scale)
        v = _gather(v_buffer, slots, v_scale)
        if k_extend is not None and v_extend is not None:
            _put(k, places, _as_heads(k_extend, k_buffer)[rows])
            _put(v, places, _as_heads(v_extend, v_buffer)[rows])
        tree = None
        if tree_mask is not None:
            entries = mask_ends[group].unsqueeze(1) - n * n + torch.arange(n * n)
            tree = tree_mask.view(-1)[entries].bool().unflatten(1, (n, n))
        visible = _visible(
            lengths, lengths - n, n, sliding_window_size, is_causal, tree
        )
        out = _attend(q_extend[rows], k, v, visible, scoring)
        o_extend[rows] = out.to(o_extend.dtype)


@operator(
    "decode_attention_cpu(Tensor query, Tensor(a!) k_buffer, Tensor(b!) v_buffer,"
    " float k_scale, float v_scale, Tensor(c!) output, Tensor? key, Tensor? value,"
    " Tensor? loc, Tensor(d!) attn_logits, Tensor req_to_token,"
    " Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap,"
    " bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens=None,"
    " Tensor? sinks=None) -> ()"
)
def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor | None,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Attend from one token a request, ``query`` ``[B, heads, dim]``, to all its tokens.

    A given ``key`` and ``value`` are first stored in the pools at ``loc``.
    ``attn_logits`` is scratch space of other implementations and is not touched.
    """
    _check_provided("decode_attention_cpu", is_cross_attn, None, sliding_window_size)
    if key is not None and value is not None and loc is not None:
        k_buffer[loc.long()] = _as_heads(key, k_buffer).to(k_buffer.dtype)
        v_buffer[loc.long()] = _as_heads(value, v_buffer).to(v_buffer.dtype)
    if seq_lens.numel() == 0:
        return
    lengths = seq_lens.long()
    slots = _slots_of(req_to_token, req_pool_indices, lengths)
    k, v = _gather(k_buffer, slots, k_scale), _gather(v_buffer, slots, v_scale)
    visible = _visible(lengths, lengths - 1, 1, sliding_window_size, True, None)
    scoring = _Scoring(sm_scale, logit_cap, sinks)
    out = _attend(query.unsqueeze(1), k, v, visible, scoring)
    output.copy_(out.squeeze(1))
