"""The products against compressed-tensors' own unpacking and dequantization."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import (
    pack_to_int32,
    unpack_from_int32,
)
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize

from sglang_cpu_reference import weight_only
from sglang_cpu_reference.weight_only import choose, multiply, pack, unpack

# rows, columns, group
SHAPES = [
    (48, 128, 32),
    (528, 256, 128),
    (521, 384, 128),
    (40, 96, 96),
    (24, 160, 160),
    (40, 136, 136),
    (24, 132, 132),
    (24, 130, 130),
    (24, 64, 16),
]


def quantized(bits: int, rows: int, columns: int, group: int) -> tuple:
    """Packed weights and scales as a checkpoint has them, and the matrix they mean.

    The matrix twice: as compressed-tensors dequantizes it, in bf16, and unrounded.
    """
    generator = torch.Generator().manual_seed(rows * columns + bits)
    limit = 1 << (bits - 1)
    codes = torch.randint(-limit, limit, (rows, columns), generator=generator)
    codes = codes.to(torch.int8)
    scales = torch.rand(rows, columns // group, generator=generator) / 64 + 0.001
    scales = scales.bfloat16()
    packed = pack_to_int32(codes, bits)
    unpacked = unpack_from_int32(packed, bits, codes.shape)
    strategy = "channel" if group == columns else "group"
    args = QuantizationArgs(
        num_bits=bits,
        strategy=strategy,
        group_size=None if strategy == "channel" else group,
    )
    zeros = torch.zeros_like(scales, dtype=torch.int8)
    dense = dequantize(unpacked, scales, zeros, args=args)
    exact = unpacked.double() * scales.double().repeat_interleave(group, 1)
    return packed, scales, dense, exact


def product_of(bits: int, rows: int, columns: int, group: int) -> tuple:
    packed, scales, dense, exact = quantized(bits, rows, columns, group)
    product = choose(bits, rows, columns, group)
    weight, scales = pack(product, unpack(packed, bits, columns), scales)
    return product, weight, scales, dense, exact


def inputs(columns: int, dtype: torch.dtype, rows: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(columns)
    return torch.randn(rows, columns, generator=generator).to(dtype)


def error(out: torch.Tensor, x: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of a typical output."""
    expected = x.double() @ exact.t()
    return ((out.double() - expected).abs().max() / expected.abs().mean()).item()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bf16_is_as_exact_as_the_dense_product(bits: int, shape: tuple) -> None:
    product, weight, scales, dense, exact = product_of(bits, *shape)
    x = inputs(shape[1], torch.bfloat16)
    out = multiply(product, x, weight, scales)
    assert out.dtype == torch.bfloat16 and out.is_contiguous()
    assert out.shape == (16, shape[0])
    assert error(out, x, exact) <= 1.5 * error(x @ dense.t(), x, exact)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_keeps_float32(bits: int, shape: tuple) -> None:
    product, weight, scales, _, exact = product_of(bits, *shape)
    x = inputs(shape[1], torch.float32)
    out = multiply(product, x, weight, scales)
    assert out.dtype == torch.float32
    assert error(out, x, exact) <= 1e-4


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_the_others(bits: int, shape: tuple) -> None:
    product, weight, scales, _, _ = product_of(bits, *shape)
    # torch's own float32 matmul does depend on the number of rows.
    dequantized = product.kernel == "dequantized"
    for dtype in [torch.bfloat16] + [torch.float32] * (not dequantized):
        x = inputs(shape[1], dtype)
        full = multiply(product, x, weight, scales)
        for rows in range(1, 17):
            assert torch.equal(multiply(product, x[:rows], weight, scales), full[:rows])


@pytest.mark.parametrize(
    ("bits", "columns", "group", "kernel"),
    [
        (4, 128, 128, "int4pack"),
        (4, 96, 96, "int4pack"),
        (8, 256, 128, "int4pack"),
        (8, 256, 256, "int8pack"),
        (8, 136, 136, "dequantized"),
        (8, 132, 132, "dequantized"),
        (8, 130, 130, "dequantized"),
        (4, 64, 16, "dequantized"),
    ],
)
def test_unsafe_shapes_go_to_no_kernel(
    bits: int, columns: int, group: int, kernel: str
) -> None:
    assert choose(bits, 48, columns, group).kernel == kernel


def test_unpacking_is_compressed_tensors() -> None:
    packed, _, _, _ = quantized(4, 24, 130, 130)
    signed = unpack_from_int32(packed, 4, torch.Size([24, 130]))
    assert torch.equal(unpack(packed, 4, 130).to(torch.int8) - 8, signed)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [128, 130])
def test_leading_dimensions_and_no_rows_at_all(bits: int, columns: int) -> None:
    product, weight, scales, _, _ = product_of(bits, 24, columns, columns)
    x = inputs(columns, torch.bfloat16, 6)
    flat = multiply(product, x, weight, scales)
    assert torch.equal(
        multiply(product, x.view(2, 3, columns), weight, scales), flat.view(2, 3, 24)
    )
    assert multiply(product, x[:0], weight, scales).shape == (0, 24)


def test_a_strided_input_is_read_right() -> None:
    product, weight, scales, _, _ = product_of(8, 24, 128, 128)
    wide = inputs(256, torch.bfloat16)
    narrow = wide[:, :128]
    assert torch.equal(
        multiply(product, narrow, weight, scales),
        multiply(product, narrow.contiguous(), weight, scales),
    )


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_in_parts_are_the_whole(bits: int, monkeypatch) -> None:
    """As a head is computed that has too many codes for one call."""
    rows, columns = 2 * weight_only.INT4PACK_BLOCK + 48, 256
    x = inputs(columns, torch.bfloat16)
    product, weight, scales, _, _ = product_of(bits, rows, columns, 128)
    whole = multiply(product, x, weight, scales)
    monkeypatch.setattr(weight_only, "INT4PACK_CODES", 64 * columns * bits // 4)
    monkeypatch.setattr(weight_only, "INT4PACK_CONVERTED", weight_only.INT4PACK_BLOCK)
    product, weight, scales, _, _ = product_of(bits, rows, columns, 128)
    assert product.kernel == "int4pack"
    assert torch.equal(multiply(product, x, weight, scales), whole)
