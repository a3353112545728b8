"""Heads as checkpoints store them, and the configs that describe them."""

import contextlib
import json
import struct
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.model_loader import loader

VOCAB, HIDDEN = 200, 256

_DTYPES = {
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
}


def write_safetensors(path, tensors):
    """A safetensors file, written with the standard library."""
    header, body = {}, b""
    for name, tensor in tensors.items():
        data = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


def pack(values, bits):
    """``[N, K]`` integers as compressed-tensors packs them, little end first."""
    codes = (values + (1 << (bits - 1))).to(torch.int64)
    per_word = 32 // bits
    words = codes.view(len(codes), -1, per_word)
    shifts = torch.arange(per_word) * bits
    return (words << shifts).sum(-1).to(torch.int32)


def unpack(packed, bits):
    """The ``[N, K]`` integers of packed words."""
    shifts = torch.arange(32 // bits) * bits
    codes = (packed.to(torch.int64).unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    return codes.flatten(1) - (1 << (bits - 1))


def packed_head(bits, group=None, rows=VOCAB, seed=0):
    """A head's packed tensors and the ``[rows, HIDDEN]`` floats they stand for."""
    generator = torch.Generator().manual_seed(seed)
    limit = 1 << (bits - 1)
    values = torch.randint(-limit, limit, (rows, HIDDEN), generator=generator)
    columns = HIDDEN // (group or HIDDEN)
    scale = torch.randint(1, 8, (rows, columns), generator=generator) / 8
    tensors = {
        "weight_packed": pack(values, bits),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor([rows, HIDDEN]),
    }
    return tensors, values * scale.repeat_interleave(HIDDEN // columns, 1)


def fp8_head(scale_shape):
    """An FP8 head's tensors and the floats they stand for."""
    weight = (torch.arange(VOCAB * HIDDEN).view(VOCAB, HIDDEN) % 15 - 7.0).to(
        torch.float8_e4m3fn
    )
    count = torch.Size(scale_shape).numel()
    scale = (torch.arange(count) % 4 + 1.0).view(scale_shape) / 4
    return {"weight": weight, "weight_scale": scale}, weight.float() * scale


def dense_head():
    """A BF16 head's tensors."""
    return {"weight": torch.ones(VOCAB, HIDDEN, dtype=torch.bfloat16)}


def int_weights(bits, group=None):
    """The ``weights`` of a config group: symmetric integers."""
    return {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group" if group else "channel",
        "group_size": group,
    }


def fp8_weights(strategy, **fields):
    """The ``weights`` of a config group: FP8."""
    return {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": strategy,
        **fields,
    }


FP8_INPUT = {
    "num_bits": 8,
    "type": "float",
    "symmetric": True,
    "strategy": "token",
    "dynamic": True,
}


def quantization(*groups, ignore=(), weight_format="pack-quantized"):
    """A ``quantization_config`` of groups ``(targets, weights[, input])``."""
    config_groups = {
        f"group_{i}": {
            "targets": list(targets),
            "weights": weights,
            "input_activations": rest[0] if rest else None,
        }
        for i, (targets, weights, *rest) in enumerate(groups)
    }
    return {
        "quant_method": "compressed-tensors",
        "format": weight_format,
        "config_groups": config_groups,
        "ignore": list(ignore),
    }


@contextlib.contextmanager
def any_device():
    """Let a scheme be built that this machine could not run."""
    with mock.patch.object(
        CompressedTensorsConfig, "_check_scheme_supported", return_value=True
    ):
        yield


class Model:
    """A model class without mappings of its own."""


def read_config(config, tensors, method="compressed-tensors", **fields):
    """The quant config that the loader makes for a checkpoint of these tensors."""
    with tempfile.TemporaryDirectory() as folder:
        write_safetensors(Path(folder) / "model.safetensors", tensors)
        model_config = SimpleNamespace(
            model_path=folder,
            revision=None,
            quantization=method,
            dtype=torch.bfloat16,
            is_draft_model=False,
            hf_config={"quantization_config": config, "architectures": ["Model"]},
            **fields,
        )
        architecture = mock.patch.object(
            loader, "get_model_architecture", return_value=(Model, "Model")
        )
        with architecture:
            return loader._get_quantization_config(model_config, LoadConfig())
