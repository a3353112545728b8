"""Slot tables and cache moves against per-element loops."""

from __future__ import annotations

import pytest
import sgl_kernel
import torch
from torch import Tensor

ROWS = torch.tensor([3, 0, 2])
STARTS = torch.tensor([4, 0, 7], dtype=torch.int32)
ENDS = torch.tensor([6, 5, 7], dtype=torch.int32)


def table() -> Tensor:
    return torch.arange(40, dtype=torch.int32).view(4, 10) + 100


def test_slots_of_ranges_are_read_packed() -> None:
    out = torch.full((9,), -1, dtype=torch.int64)
    sgl_kernel.assign_extend_cache_locs_cpu(ROWS, table(), STARTS, ENDS, out, 10)
    assert out.tolist() == [134, 135, 100, 101, 102, 103, 104, -1, -1]


def test_slots_are_written_to_ranges() -> None:
    written = table()
    slots = torch.arange(9)
    sgl_kernel.assign_req_to_token_pool_cpu(ROWS, written, STARTS, ENDS, slots, 10)
    expected = table()
    expected[3, 4:6] = torch.tensor([0, 1])
    expected[0, 0:5] = torch.tensor([2, 3, 4, 5, 6])
    assert torch.equal(written, expected)


def test_draft_slots_stand_behind_the_tokens() -> None:
    out = torch.full((10,), -1, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        ROWS, table(), STARTS, out, 10, 1, 3
    )
    assert out.tolist() == [134, 135, 136, 100, 101, 102, 127, 128, 129, -1]


def test_draft_metadata_is_one_row_a_request() -> None:
    rows = sgl_kernel.build_draft_decode_metadata_cpu(
        ROWS.new_zeros(1, 5), ROWS[:0], STARTS[:0], 1, 3, 5
    )
    assert rows.shape == (0, 5)
    source = table()
    rows = sgl_kernel.build_draft_decode_metadata_cpu(source, ROWS, STARTS, 1, 3, 10)
    assert torch.equal(rows, source[[3, 0, 2]])
    rows.zero_()
    assert torch.equal(source, table())


def test_draft_metadata_refuses_branches() -> None:
    with pytest.raises(NotImplementedError, match="topk 2, only 1"):
        sgl_kernel.build_draft_decode_metadata_cpu(table(), ROWS, STARTS, 2, 3, 10)


def test_a_width_that_is_not_the_table_s_is_refused() -> None:
    out = torch.zeros(9, dtype=torch.int64)
    with pytest.raises(ValueError, match="10 columns, pool_len is 11"):
        sgl_kernel.assign_extend_cache_locs_cpu(ROWS, table(), STARTS, ENDS, out, 11)


def test_accepted_slots_are_packed() -> None:
    accept = torch.tensor([[0, 1, -1], [3, -1, -1], [6, 7, 8]], dtype=torch.int32)
    out = torch.full((8,), -1)
    sgl_kernel.fill_accept_out_cache_loc_cpu(accept, torch.arange(9) + 50, out)
    assert out.tolist() == [50, 51, 53, 56, 57, 58, -1, -1]


def buffers() -> list[Tensor]:
    return [
        torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)
        for seed, dtype in enumerate([torch.bfloat16, torch.float32])
    ]


def pointers(pools: list[Tensor]) -> tuple[Tensor, Tensor]:
    addresses = torch.tensor([x.data_ptr() for x in pools], dtype=torch.uint64)
    return addresses, torch.tensor([x.stride(0) * x.dtype.itemsize for x in pools])


@pytest.mark.parametrize("target, source", [([1, 4], [0, 3]), ([0, 1, 2], [1, 2, 3])])
def test_slots_are_copied_in_every_buffer(target: list[int], source: list[int]) -> None:
    pools, expected = buffers(), buffers()
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        *pointers(pools), torch.tensor(target), torch.tensor(source)
    )
    for pool, original in zip(pools, expected):
        copied = original[source].clone()
        original[target] = copied
        assert torch.equal(pool, original)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tgt_loc": torch.tensor([-1, 0])}, "negative slot -1"),
        ({"src_loc": torch.tensor([1])}, "1 slots to copy to 2"),
        ({"strides": torch.tensor([16])}, "2 addresses but 1 strides"),
        ({"strides": torch.tensor([16, 0])}, "stride is not positive"),
        ({"data_ptrs": torch.tensor([0, 1], dtype=torch.uint64)}, "address is null"),
    ],
)
def test_a_copy_that_cannot_be_right_writes_nothing(
    change: dict[str, Tensor], message: str
) -> None:
    pools = buffers()
    data_ptrs, strides = pointers(pools)
    arguments = {
        "data_ptrs": data_ptrs,
        "strides": strides,
        "tgt_loc": torch.tensor([1, 0]),
        "src_loc": torch.tensor([2, 3]),
    }
    with pytest.raises(ValueError, match=message):
        sgl_kernel.copy_all_layer_kv_cache_cpu(**{**arguments, **change})
    for pool, original in zip(pools, buffers()):
        assert torch.equal(pool, original)


def test_copying_no_slot_is_fine() -> None:
    empty = torch.tensor([], dtype=torch.int64)
    sgl_kernel.copy_all_layer_kv_cache_cpu(*pointers(buffers()), empty, empty)
