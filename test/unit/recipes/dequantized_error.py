"""Prints how far packed weights are from their source, by compressed-tensors' code.

usage: dequantized_error.py SOURCE RESULT, in the quantize environment. Prints JSON:
by weight, the greatest error as a part of what is allowed, and the root mean square
error in quantization steps. Allowed is half a step, and bfloat16's rounding of the
weight before (1/256 of it), since llm-compressor divides by the scale in bfloat16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils import match_quantizable_tensors
from safetensors.torch import load_file


def load(root: str) -> dict[str, torch.Tensor]:
    files = sorted(Path(root).glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def main() -> None:
    source, result = load(sys.argv[1]), load(sys.argv[2])
    written = json.loads((Path(sys.argv[2]) / "config.json").read_text())
    config = QuantizationConfig.model_validate(written["quantization_config"])
    report, seen = {}, set()
    for scheme in config.config_groups.values():
        matched = match_quantizable_tensors(source, config.ignore, scheme.targets)
        for module, name in matched:
            if name not in seen:
                seen.add(name)
                report[name] = compare(source[name].float(), module, result, scheme)
    print(json.dumps(report))


def compare(weight, module: str, result, scheme) -> dict[str, float]:
    parts = ("weight_packed", "weight_scale", "weight_shape")
    state = {part: result[f"{module}.{part}"] for part in parts}
    state["weight_scale"] = state["weight_scale"].float()
    pack_quantized = BaseCompressor.get_value_from_registry(scheme.format)
    error = (pack_quantized.decompress(state, scheme)["weight"] - weight).abs()
    step = state["weight_scale"].repeat_interleave(scheme.weights.group_size, dim=1)
    allowed = step / 2 + weight.abs() / 256
    return {
        "bits": scheme.weights.num_bits,
        "worst": (error / allowed).max().item(),
        "rms_steps": (error / step).square().mean().sqrt().item(),
    }


if __name__ == "__main__":
    main()
