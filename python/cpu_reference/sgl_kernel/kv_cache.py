"""Moves cache slots and the tables that say which slot holds which token.

``req_to_token`` is ``[requests, positions]``; ``pool_len`` repeats its width for
kernels that see only a pointer, and is checked here.
"""

from __future__ import annotations

import ctypes

import torch
from sgl_kernel.ragged import owners_and_offsets
from sgl_kernel.registry import not_provided, operator
from torch import Tensor


def _check_width(req_to_token: Tensor, pool_len: int) -> None:
    if req_to_token.shape[1] != pool_len:
        raise ValueError(
            f"req_to_token has {req_to_token.shape[1]} columns, pool_len is {pool_len}"
        )


def _ranges(
    req_pool_indices: Tensor, start_offset: Tensor, end_offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Return table row and column of every position from start to end, packed."""
    owners, offsets = owners_and_offsets((end_offset - start_offset).clamp(min=0))
    return req_pool_indices.long()[owners], start_offset.long()[owners] + offsets


@operator(
    "assign_req_to_token_pool_cpu(Tensor req_pool_indices, Tensor(a!) req_to_token,"
    " Tensor start_offset, Tensor end_offset, Tensor out_cache_loc, int pool_len)"
    " -> ()"
)
def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write packed slots to each request's positions from start to end."""
    _check_width(req_to_token, pool_len)
    rows, columns = _ranges(req_pool_indices, start_offset, end_offset)
    slots = out_cache_loc[: rows.numel()]
    req_to_token[rows, columns] = slots.to(req_to_token.dtype)


@operator(
    "assign_extend_cache_locs_cpu(Tensor req_pool_indices, Tensor req_to_token,"
    " Tensor start_offset, Tensor end_offset, Tensor(a!) out_cache_loc, int pool_len)"
    " -> ()"
)
def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Read the slots of each request's positions from start to end, packed."""
    _check_width(req_to_token, pool_len)
    rows, columns = _ranges(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


@operator(
    "assign_draft_cache_locs_contiguous_cpu(Tensor req_pool_indices,"
    " Tensor req_to_token, Tensor seq_lens, Tensor(a!) out_cache_loc, int pool_len,"
    " int topk, int speculative_num_steps) -> ()"
)
def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Read the ``topk * speculative_num_steps`` slots behind each request's tokens."""
    _check_width(req_to_token, pool_len)
    columns = seq_lens.long().unsqueeze(1) + torch.arange(topk * speculative_num_steps)
    slots = req_to_token[req_pool_indices.long().unsqueeze(1), columns].flatten()
    out_cache_loc[: slots.numel()] = slots.to(out_cache_loc.dtype)


@operator(
    "build_draft_decode_metadata_cpu(Tensor req_to_token, Tensor req_pool_indices,"
    " Tensor seq_lens, int topk, int num_steps, int pool_len) -> Tensor"
)
def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """Return one row of ``req_to_token`` for each draft branch, here one a request.

    With one branch the draft's slots stand right behind the request's own.
    """
    if topk != 1:
        raise not_provided("build_draft_decode_metadata_cpu", f"topk {topk}, only 1")
    _check_width(req_to_token, pool_len)
    return req_to_token[req_pool_indices.long()]


@operator(
    "fill_accept_out_cache_loc_cpu(Tensor accept_index, Tensor out_cache_loc,"
    " Tensor(a!) accept_out_cache_loc) -> ()"
)
def fill_accept_out_cache_loc_cpu(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Pack the slots that ``accept_index`` names, leaving out its -1 entries."""
    chosen = accept_index[accept_index >= 0].long()
    slots = out_cache_loc[chosen].to(accept_out_cache_loc.dtype)
    accept_out_cache_loc[: chosen.numel()] = slots


def _bytes_at(pointer: int, rows: int, row_bytes: int) -> Tensor:
    """View memory as uint8 ``[rows, row_bytes]``; the caller vouches for it."""
    memory = (ctypes.c_uint8 * (rows * row_bytes)).from_address(pointer)
    return torch.frombuffer(memory, dtype=torch.uint8).view(rows, row_bytes)


@operator(
    "copy_all_layer_kv_cache_cpu(Tensor data_ptrs, Tensor strides, Tensor tgt_loc,"
    " Tensor src_loc) -> ()"
)
def copy_all_layer_kv_cache_cpu(
    data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor
) -> None:
    """Copy slots ``src_loc`` onto ``tgt_loc`` in every buffer, overlaps included.

    Args:
        data_ptrs: addresses of contiguous buffers (uint64); not owned, so how far a
            buffer reaches cannot be checked here.
        strides: bytes a slot takes in each.

    Raises:
        ValueError: for a null address, a stride below 1, a negative slot, or lists
            that do not match. Nothing has been written then.
    """
    pointers, row_bytes = data_ptrs.tolist(), strides.tolist()
    if len(pointers) != len(row_bytes):
        raise ValueError(f"{len(pointers)} addresses but {len(row_bytes)} strides")
    if tgt_loc.numel() != src_loc.numel():
        raise ValueError(f"{src_loc.numel()} slots to copy to {tgt_loc.numel()}")
    if any(p == 0 for p in pointers) or any(s < 1 for s in row_bytes):
        raise ValueError("an address is null or a stride is not positive")
    if tgt_loc.numel() == 0:
        return
    slots = torch.cat([tgt_loc, src_loc]).long()
    if int(slots.min()) < 0:
        raise ValueError(f"negative slot {int(slots.min())}")
    rows = int(slots.max()) + 1
    target, source = slots.split(tgt_loc.numel())
    for pointer, stride in zip(pointers, row_bytes):
        buffer = _bytes_at(pointer, rows, stride)
        buffer[target] = buffer[source]
