"""Products with weight-only quantized matrices, on torch's own CPU operators.

A matrix is symmetric int4 or int8 with one scale for each row and group of input
features, as compressed-tensors' ``pack-quantized`` format stores it: an unsigned
code ``u`` of ``bits`` bits stands for ``(u - 2 ** (bits - 1)) * scale``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F

# What _weight_int4pack_mm_for_cpu accepts.
INT4PACK_GROUPS = (256, 128, 64, 32)
INT4PACK_ROWS = 16
# Both int4pack operators count codes in 32 bits and crash the process beyond: a head of
# 248320 x 5120 bytes has that many. So they get some rows at a time, whole blocks of the
# layout; few where the codes take four bytes each.
INT4PACK_CODES = 2**31 - 1
INT4PACK_BLOCK = 64
INT4PACK_CONVERTED = 8192
# _weight_int8pack_mm reads bf16 rows in blocks without checking, of 8 with AVX2 (K = 132
# is silently wrong there and K = 130 crashes the process) and of 16 with AVX-512 (K = 136
# crashes); 32 is a whole vector of either.
INT8PACK_COLUMNS = 32


class Product(NamedTuple):
    """How the product with one matrix is computed.

    ``group`` is the number of input features that share a scale in the packed
    layout, ``rows`` the matrix's own rows, without those added as padding.
    """

    kernel: Literal["int4pack", "int8pack", "dequantized"]
    bits: int
    group: int
    rows: int


def unpack(packed: torch.Tensor, bits: int, columns: int) -> torch.Tensor:
    """``[N, ceil(K * bits / 32)]`` int32, little end first, as ``[N, K]`` uint8."""
    codes = packed.contiguous().view(torch.uint8)
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1)
    return codes[:, :columns].contiguous()


def choose(bits: int, rows: int, columns: int, group: int) -> Product:
    """The product for a ``[rows, columns]`` matrix with a scale for each ``group``."""
    if bits == 8 and group == columns and columns % INT8PACK_COLUMNS == 0:
        return Product("int8pack", bits, group, rows)
    fitting = [size for size in INT4PACK_GROUPS if group % size == 0]
    if fitting and columns % group == 0:
        return Product("int4pack", bits, fitting[0], rows)
    return Product("dequantized", bits, group, rows)


def pack(
    product: Product, codes: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and scales as ``multiply`` wants them.

    ``codes`` is ``[N, K]`` uint8 and ``scales`` ``[N, groups]``.
    """
    if product.kernel == "int4pack":
        return _pack_int4(product, codes, scales)
    signed = (codes.to(torch.int16) - (1 << (product.bits - 1))).to(torch.int8)
    return signed, scales.contiguous()


def multiply(
    product: Product, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """``x @ W.T`` for ``x`` of ``[..., K]``, in x's dtype, contiguous.

    Except for float32 through ``dequantized``, a row's result is bitwise the same
    for any number of rows up to 16: speculative and plain decoding agree.
    """
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    if not flat.shape[0]:
        return x.new_empty(*x.shape[:-1], product.rows)
    out = _KERNELS[product.kernel](product, flat, weight, scales.to(x.dtype))
    return out.reshape(*x.shape[:-1], product.rows)


def _pack_int4(
    product: Product, codes: torch.Tensor, scales: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The int4pack weight, and scales with zeros as ``[groups, N, 2]``.

    The operator computes ``(code - 8) * scale + zero``. A byte goes as two halves
    side by side along K, against the input given twice:
    ``u - 128 = 16 * (high - 8) + (low - 8) + 8``.
    """
    scales = scales.repeat_interleave(
        codes.shape[1] // (scales.shape[1] * product.group), 1
    )
    zeros = torch.zeros_like(scales)
    if product.bits == 8:
        codes = torch.cat([codes >> 4, codes & 15], 1)
        zeros = torch.cat([zeros, scales * 8], 1)
        scales = torch.cat([scales * 16, scales], 1)
    padding = (0, 0, 0, -product.rows % INT4PACK_ROWS)
    convert = torch.ops.aten._convert_weight_to_int4pack_for_cpu
    parts = F.pad(codes, padding).split(INT4PACK_CONVERTED)
    weight = torch.cat([convert(part.to(torch.int32), 1) for part in parts])
    scales_and_zeros = torch.stack([F.pad(scales, padding), F.pad(zeros, padding)], -1)
    return weight, scales_and_zeros.transpose(0, 1).contiguous()


def _int4pack(
    product: Product, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    if product.bits == 8:
        x = torch.cat([x, x], 1)
    rows = INT4PACK_CODES // x.shape[1] // INT4PACK_BLOCK * INT4PACK_BLOCK
    parts = [
        torch.ops.aten._weight_int4pack_mm_for_cpu(x, part, product.group, scale)
        for part, scale in zip(
            weight.split(rows), map(torch.Tensor.contiguous, scales.split(rows, 1))
        )
    ]
    return torch.cat(parts, 1)[:, : product.rows].contiguous()


def _int8pack(
    product: Product, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    return torch.ops.aten._weight_int8pack_mm(x, weight, scales.flatten())


def _dequantized(
    product: Product, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    columns = weight.shape[1]
    spread = scales.repeat_interleave(product.group, 1)[:, :columns]
    return x @ (weight.to(x.dtype) * spread).t()


_KERNELS = {"int4pack": _int4pack, "int8pack": _int8pack, "dequantized": _dequantized}
