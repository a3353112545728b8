"""Checkpoints that differ from a target of the tests in how they store its head."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
HEAD, EMBEDDING = "lm_head.", "model.language_model.embed_tokens.weight"
FIXED_TOKENS = 16  # special ones


def int_weights(bits: int, group: int | None) -> dict[str, Any]:
    """A config group's ``weights``: symmetric integers, by group or by channel."""
    strategy = "group" if group else "channel"
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": group,
    }


def compressed(weight: torch.Tensor, bits: int, group: int | None) -> Tensors:
    """A head's tensors as compressed-tensors' own compressor packs them."""
    args = QuantizationArgs(**int_weights(bits, group))
    grouped = weight.float().unflatten(1, (-1, group or weight.shape[1]))
    scale, _ = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
    dense = {"weight": weight, "weight_scale": scale.to(weight.dtype)}
    return _compressor().compress(dense, _scheme(args))


def decompressed(tensors: Tensors, bits: int, group: int | None) -> Tensors:
    """The dense head that such tensors stand for, by compressed-tensors itself."""
    args = QuantizationArgs(**int_weights(bits, group))
    return {"weight": _compressor().decompress(tensors, _scheme(args))["weight"]}


def _compressor() -> Any:
    return BaseCompressor.get_value_from_registry("pack-quantized")


def _scheme(args: QuantizationArgs) -> QuantizationScheme:
    return QuantizationScheme(targets=["lm_head"], weights=args)


def head_of(model: Path) -> Tensors:
    """The tensors of a checkpoint's head, by their own names."""
    tensors = load_file(model / "model.safetensors")
    return {k.removeprefix(HEAD): t for k, t in tensors.items() if k.startswith(HEAD)}


def with_head(
    source: Path,
    destination: Path,
    head: Tensors,
    describe: Callable[[dict[str, Any]], None] = lambda quantization: None,
) -> Path:
    """``source`` with another head; ``describe`` changes its quantization config."""
    return rewritten(
        source, destination, lambda tensors: _replace(tensors, head), describe
    )


def _replace(tensors: Tensors, head: Tensors) -> Tensors:
    body = {k: t for k, t in tensors.items() if not k.startswith(HEAD)}
    return body | {HEAD + name: tensor for name, tensor in head.items()}


def relabelled_ids(vocab: int) -> torch.Tensor:
    """Another id for each token but the special ones; it is its own inverse."""
    return torch.cat(
        [torch.arange(FIXED_TOKENS), torch.arange(vocab - 1, FIXED_TOKENS - 1, -1)]
    )


def relabelled(source: Path, destination: Path) -> Path:
    """``source`` with its tokens renamed: it maps renamed prompts to renamed answers."""

    def rename(tensors: Tensors) -> Tensors:
        ids = relabelled_ids(len(tensors[EMBEDDING]))
        rows = (EMBEDDING, HEAD + "weight_packed", HEAD + "weight_scale")
        return {k: t[ids] if k in rows else t for k, t in tensors.items()}

    return rewritten(source, destination, rename)


def rewritten(
    source: Path,
    destination: Path,
    change: Callable[[Tensors], Tensors],
    describe: Callable[[dict[str, Any]], None] = lambda quantization: None,
) -> Path:
    """A copy of a checkpoint with its tensors and its quantization config changed."""
    shutil.copytree(source, destination)
    weights = destination / "model.safetensors"
    tensors = change(load_file(weights))
    save_file(tensors, weights, metadata={"format": "pt"})
    names = {"metadata": {}, "weight_map": dict.fromkeys(tensors, weights.name)}
    (destination / "model.safetensors.index.json").write_text(json.dumps(names))
    config = json.loads((destination / "config.json").read_text())
    describe(config["quantization_config"])
    (destination / "config.json").write_text(json.dumps(config, indent=1))
    return destination
