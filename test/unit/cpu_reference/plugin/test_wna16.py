"""SGLang's own layers, sharded and padded, over pack-quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from sglang.srt.layers import linear
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsWNA16,
)
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

from sglang_cpu_reference.wna16 import apply_weights, process_weights, unsupported

SCHEMES = [(4, 32), (8, 128), (4, None), (8, None)]


class Quantized:
    """A quantization config that gives every layer the same scheme."""

    def __init__(self, bits: int, group: int | None) -> None:
        self.arguments = dict(
            strategy="group" if group else "channel", num_bits=bits, group_size=group
        )

    def get_quant_method(self, layer: Any, prefix: str) -> Any:
        layer.scheme = CompressedTensorsWNA16(**self.arguments)
        return CompressedTensorsLinearMethod(self)

    def get_name(self) -> str:
        return "compressed-tensors"


@pytest.fixture
def become_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Build layers as this rank of a group, without a process group."""

    def become(number: int, size: int = 2) -> None:
        group = SimpleNamespace(rank_in_group=number, world_size=size)
        monkeypatch.setattr(linear, "_resolve_linear_group", lambda _: group)

    return become


def checkpoint(bits: int, group: int | None, rows: int, columns: int) -> tuple:
    """A matrix's tensors by name, and the matrix itself in float64."""
    generator = torch.Generator().manual_seed(rows + columns)
    limit = 1 << (bits - 1)
    codes = torch.randint(-limit, limit, (rows, columns), generator=generator)
    groups = columns // group if group else 1
    scales = (torch.rand(rows, groups, generator=generator) / 64 + 0.001).bfloat16()
    tensors = {
        "weight_packed": pack_to_int32(codes.to(torch.int8), bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([rows, columns]),
    }
    spread = scales.double().repeat_interleave(columns // groups, 1)
    return tensors, codes.double() * spread


def load(layer: torch.nn.Module, tensors: dict, *shard: Any) -> None:
    for name, tensor in tensors.items():
        parameter = getattr(layer, name)
        parameter.weight_loader(parameter, tensor, *shard)


def assert_multiplies_like(
    layer: torch.nn.Module, matrix: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    assert not hasattr(layer, "weight")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, matrix.shape[1], generator=generator)
    for dtype, tolerance in ((torch.bfloat16, 4e-2), (torch.float32, 1e-4)):
        offset = bias.to(dtype) if bias is not None else None
        out = apply_weights(layer, x.to(dtype), offset)
        expected = x.to(dtype).double() @ matrix.t()
        if bias is not None:
            expected += bias.double()
        assert out.dtype == dtype and out.is_contiguous()
        error = (out[:, : len(matrix)].double() - expected).abs().max()
        assert error / expected.abs().mean() < tolerance


@pytest.mark.parametrize(("bits", "group"), SCHEMES)
@pytest.mark.parametrize("number", [0, 1])
def test_row_parallel_shard(
    bits: int, group: int | None, number: int, become_rank: Callable[..., None]
) -> None:
    become_rank(number)
    layer = RowParallelLinear(
        256,
        96,
        bias=False,
        params_dtype=torch.bfloat16,
        quant_config=Quantized(bits, group),
    )
    tensors, matrix = checkpoint(bits, group, 96, 256)
    load(layer, tensors)
    process_weights(layer.scheme, layer)
    bias = torch.linspace(-1, 1, 96)
    assert_multiplies_like(layer, matrix[:, number * 128 : number * 128 + 128], bias)


@pytest.mark.parametrize(("bits", "group"), SCHEMES)
@pytest.mark.parametrize("number", [0, 1])
def test_merged_column_shards(
    bits: int, group: int | None, number: int, become_rank: Callable[..., None]
) -> None:
    become_rank(number)
    layer = MergedColumnParallelLinear(
        128,
        [48, 80],
        bias=False,
        params_dtype=torch.bfloat16,
        quant_config=Quantized(bits, group),
    )
    parts = []
    for shard, rows in enumerate((48, 80)):
        tensors, matrix = checkpoint(bits, group, rows, 128)
        load(layer, tensors, shard)
        parts.append(matrix.chunk(2)[number])
    process_weights(layer.scheme, layer)
    assert_multiplies_like(layer, torch.cat(parts))


@pytest.mark.parametrize(("bits", "group"), SCHEMES)
def test_padded_head(bits: int, group: int | None) -> None:
    head = ParallelLMHead(
        520,
        256,
        params_dtype=torch.bfloat16,
        quant_config=Quantized(bits, group),
        prefix="lm_head",
        enable_tp=False,
    )
    tensors, matrix = checkpoint(bits, group, 520, 256)
    load(head, tensors)
    process_weights(head.scheme, head)
    assert_multiplies_like(head, matrix)
    logits = apply_weights(head, torch.ones(1, 256, dtype=torch.bfloat16), None)
    assert logits.shape == (1, head.num_embeddings_padded) == (1, 576)
    assert not logits[:, 520:].any()


def test_the_parameters_keep_their_checkpoint_names(
    become_rank: Callable[..., None],
) -> None:
    become_rank(0, 1)
    layer = RowParallelLinear(
        128,
        48,
        bias=False,
        params_dtype=torch.bfloat16,
        quant_config=Quantized(8, None),
    )
    load(layer, checkpoint(8, None, 48, 128)[0])
    process_weights(layer.scheme, layer)
    names = {name for name, _ in layer.named_parameters()}
    assert names == {"weight_packed", "weight_scale", "weight_shape"}


def test_what_is_not_supported_says_why() -> None:
    group = dict(strategy="group", num_bits=4, group_size=32)
    assert unsupported(CompressedTensorsWNA16(**group)) is None
    asymmetric = CompressedTensorsWNA16(**group, symmetric=False)
    assert "weight_zero_point" in unsupported(asymmetric)
    reordered = CompressedTensorsWNA16(**group, actorder="group")
    assert "weight_g_idx" in unsupported(reordered)
