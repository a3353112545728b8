"""compressed-tensors' weight-only layers without Marlin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Around, Guard, Patch

if TYPE_CHECKING:
    import torch

_CONFIG = (
    "sglang.srt.layers.quantization.compressed_tensors.compressed_tensors:"
    "CompressedTensorsConfig"
)
_WNA16 = (
    "sglang.srt.layers.quantization.compressed_tensors.schemes."
    "compressed_tensors_wNa16:CompressedTensorsWNA16"
)


def scheme_supported(self: Any, min_capability: int, error: bool = True) -> bool:
    """A CPU has no compute capability; only a question for native FP4 gets a no."""
    from sglang.srt.utils import is_cpu

    if is_cpu():
        return error
    return CONTINUE


def refuse_unsupported_layer(
    result: Any,
    self: Any,
    layer: torch.nn.Module,
    layer_name: str | None = None,
    matched_target: str | None = None,
) -> Any:
    """Name the layer whose weights the CPU cannot serve, before any is loaded."""
    from sglang.srt.layers.quantization.compressed_tensors.schemes import (
        CompressedTensorsWNA16,
    )

    from sglang_cpu_reference.wna16 import unsupported

    reason = isinstance(result, CompressedTensorsWNA16) and unsupported(result)
    if reason:
        raise NotImplementedError(
            f"{layer_name}: {reason} is not supported on the CPU; "
            "only symmetric weights in checkpoint order are."
        )
    return result


def process_weights(self: Any, layer: torch.nn.Module) -> None:
    """Lay the weights out for torch's CPU operators instead of Marlin."""
    if layer.weight_packed.device.type != "cpu":
        return CONTINUE
    from sglang_cpu_reference import wna16

    wna16.process_weights(self, layer)
    return None


def apply_weights(
    self: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product on the CPU."""
    if layer.weight_packed.device.type != "cpu":
        return CONTINUE
    from sglang_cpu_reference import wna16

    return wna16.apply_weights(layer, x, bias)


def _accepts_cpu() -> bool:
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    config = CompressedTensorsConfig({}, [], "pack-quantized", {}, [], {})
    try:
        return config._check_scheme_supported(80)
    except Exception:
        return False


QUANTIZATION = (
    Patch(
        name="cpu-wna16",
        symptom="A pack-quantized checkpoint asks for a CUDA capability and is "
        "repacked for Marlin, which a CPU does not have.",
        upstream="",
        removal="when CompressedTensorsWNA16 has a CPU kernel",
        probe=_accepts_cpu,
        seams=(
            Guard(
                target=f"{_CONFIG}._check_scheme_supported",
                function=scheme_supported,
                fingerprints={
                    "0.5.23": "5fff20fa4f388e5e798d2a573634a0dc"
                    "923fdf2c690e6dcf21929d7a1314c285"
                },
            ),
            Around(
                target=f"{_CONFIG}.get_linear_scheme",
                after=refuse_unsupported_layer,
                fingerprints={
                    "0.5.23": "7523e2f56fd243638eba1610186b645b"
                    "ac83a81556f8bd5851f0f6fcc5848d40"
                },
            ),
            Guard(
                target=f"{_WNA16}.process_weights_after_loading",
                function=process_weights,
                fingerprints={
                    "0.5.23": "68cf0d891745b8dfe7de2e501a2ba88e"
                    "2a47d24131ac66ce97f7ba688a86679c"
                },
            ),
            Guard(
                target=f"{_WNA16}.apply_weights",
                function=apply_weights,
                fingerprints={
                    "0.5.23": "388f9fff3c2274175f19824e86b95500"
                    "1872a3ad6ccf846156c4e6fc2b39b962"
                },
            ),
        ),
    ),
)
