"""compressed-tensors' WNA16 scheme on the CPU, without Marlin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sglang_cpu_reference.weight_only import choose, multiply, pack, unpack

if TYPE_CHECKING:
    from sglang.srt.layers.quantization.compressed_tensors.schemes import (
        CompressedTensorsWNA16,
    )


def unsupported(scheme: CompressedTensorsWNA16) -> str | None:
    """Why this scheme's weights cannot be served on the CPU, if they cannot."""
    if not scheme.symmetric:
        return "asymmetric weights (weight_zero_point)"
    if scheme.has_g_idx:
        return "activation reordering (actorder group, weight_g_idx)"
    return None


def process_weights(scheme: CompressedTensorsWNA16, layer: torch.nn.Module) -> None:
    """Re-lay a loaded layer's weights for its product, under their own names."""
    columns, rows = scheme.kernel_config.partition_weight_shape
    bits = 32 // scheme.pack_factor
    group = columns if scheme.group_size == -1 else scheme.group_size
    product = choose(bits, rows, columns, group)
    codes = unpack(layer.weight_packed.data, bits, columns)
    weight, scales = pack(product, codes, layer.weight_scale.data)
    # Not replace_parameter: it copies in place when the byte sizes agree.
    for name, data in (("weight_packed", weight), ("weight_scale", scales)):
        layer.register_parameter(name, torch.nn.Parameter(data, requires_grad=False))
    layer.weight_only_product = product


def apply_weights(
    layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """``x @ W.T + bias`` for ``x`` of ``[..., K]``, in x's dtype."""
    product = layer.weight_only_product
    out = multiply(product, x, layer.weight_packed, layer.weight_scale)
    return out if bias is None else out + bias
