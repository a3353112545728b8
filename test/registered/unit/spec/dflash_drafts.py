"""Tiny DFlash drafts on disk, dense and quantized, and SGLang's own loader over them."""

import contextlib
import json
import os
import tempfile
from unittest import mock

import torch
import torch.nn.functional as F
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsWNA16,
)
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_loader.loader import get_model_loader

HIDDEN, HEAD_DIM, VOCAB, LAYERS, TAPS, BLOCK = 256, 64, 200, 2, 2, 4
FUSED = {
    "qkv_proj": {
        "q_proj": 4 * HEAD_DIM,
        "k_proj": 2 * HEAD_DIM,
        "v_proj": 2 * HEAD_DIM,
    },
    "gate_up_proj": {"gate_proj": 512, "up_proj": 512},
}
DFLASH2 = {
    "conv_kernel_size": 3,
    "conv_group_size": 32,
    "selector_rank": 16,
    "selector_top_k": 4,
}


def make_config(architecture="DFlash2DraftModel", dflash=DFLASH2, **fields):
    """The `config.json` of a draft."""
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "hidden_size": HIDDEN,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "num_target_layers": 8,
        "block_size": BLOCK,
        "dflash_config": {
            "block_size": BLOCK,
            "target_layer_ids": [1, 3],
            "mask_token_id": 0,
            **dflash,
        },
        **fields,
    }


def compressed_tensors(bits=8, group=128, ignore=(), targets=("Linear",)):
    """A `quantization_config` of packed integers; a group of None is a whole row."""
    strategy = "channel" if group is None else "group"
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": group,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": list(targets), "weights": weights}},
        "ignore": list(ignore),
    }


def checkpoint_names(model, name):
    """The names, and row counts where it is fused, that a parameter has on disk."""
    for fused, shards in FUSED.items():
        if f".{fused}." in name:
            return {name.replace(fused, shard): n for shard, n in shards.items()}
    return {name: model.get_parameter(name).shape[0]}


def make_tensors(config, seed=0):
    """Every tensor of a dense draft with this config, in bfloat16."""
    torch.manual_seed(seed)
    dense = {k: v for k, v in config.items() if k != "quantization_config"}
    tensors = {}
    with checkpoint(dense, {}) as folder:
        model = initialize(folder)
    for name, parameter in model.named_parameters():
        for on_disk, rows in checkpoint_names(model, name).items():
            value = torch.randn((rows, *parameter.shape[1:])) * 0.05
            tensors[on_disk] = (value + (parameter.ndim == 1)).to(torch.bfloat16)
    return tensors


def quantize(weight, bits, group):
    """Packed codes, scales and shape of a matrix, and the matrix they stand for."""
    rows, columns = weight.shape
    limit = 2 ** (bits - 1)
    grouped = weight.float().view(rows, -1, group or columns)
    scale = (grouped.abs().amax(-1, keepdim=True) / (limit - 1)).to(torch.bfloat16)
    codes = (grouped / scale.float()).round().clamp(-limit, limit - 1)
    unsigned = (codes.view(rows, -1, 32 // bits) + limit).long()
    shifts = torch.arange(0, 32, bits)
    packed = (unsigned << shifts).sum(-1).to(torch.int32)
    stored = {
        "weight_packed": packed,
        "weight_scale": scale.squeeze(-1),
        "weight_shape": torch.tensor(weight.shape),
    }
    return stored, (codes * scale.float()).view(rows, columns).to(torch.bfloat16)


def quantize_modules(tensors, modules, bits=8, group=128):
    """The tensors with these modules packed, and the dense ones they stand for."""
    packed, dense = dict(tensors), dict(tensors)
    for module in modules:
        weight = packed.pop(f"{module}.weight")
        stored, dense[f"{module}.weight"] = quantize(weight, bits, group)
        packed.update({f"{module}.{name}": value for name, value in stored.items()})
    return packed, dense


def projections(tensors, *kinds):
    """The modules whose last name is one of these kinds."""
    names = (name.removesuffix(".weight") for name in tensors)
    return [name for name in names if name.rpartition(".")[2] in kinds]


@contextlib.contextmanager
def checkpoint(config, tensors, hf_quant_config=None):
    """A folder with a draft in it."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"config.json": config, "hf_quant_config.json": hf_quant_config}
        for name, content in files.items():
            if content is not None:
                with open(os.path.join(folder, name), "w") as file:
                    json.dump(content, file)
        torch.save(tensors, os.path.join(folder, "pytorch_model.bin"))
        yield folder


def model_config(folder, **options):
    return ModelConfig(
        model_path=folder, is_draft_model=True, dtype="bfloat16", **options
    )


def initialize(folder, **options):
    """The draft as the loader builds it, its parameters not loaded."""
    config = model_config(folder, **options)
    with weight_only_on_cpu():
        return get_model_loader(LoadConfig(), config).initialize_model_for_startup(
            model_config=config, device_config=DeviceConfig("cpu")
        )


def build(config, **options):
    with checkpoint(config, {}, options.pop("hf_quant_config", None)) as folder:
        return initialize(folder, **options)


def load(config, tensors, **options):
    """A draft that the loader has loaded and finished."""
    hf_quant_config = options.pop("hf_quant_config", None)
    with checkpoint(config, tensors, hf_quant_config) as folder, weight_only_on_cpu():
        draft = model_config(folder, **options)
        return get_model_loader(LoadConfig(), draft).load_model(
            model_config=draft, device_config=DeviceConfig("cpu")
        )


def dequantized(layer):
    """The matrix that a packed layer's parameters stand for, in float32."""
    bits = 32 // layer.scheme.pack_factor
    shifts = torch.arange(0, 32, bits)
    codes = (layer.weight_packed.long().unsqueeze(-1) >> shifts) & (2**bits - 1)
    rows = codes.shape[0]
    codes = codes.view(rows, -1) - 2 ** (bits - 1)
    scale = layer.weight_scale.float()
    grouped = codes.view(rows, scale.shape[1], -1) * scale.unsqueeze(-1)
    return grouped.view(rows, -1)


@contextlib.contextmanager
def weight_only_on_cpu():
    """Packed integer layers keep their parameters and multiply in float32."""

    def apply(self, layer, x, bias):
        out = x.float() @ dequantized(layer).T
        return (out if bias is None else out + bias).to(x.dtype)

    with contextlib.ExitStack() as stack:
        for owner, name, function in (
            (CompressedTensorsConfig, "_check_scheme_supported", lambda *_, **__: True),
            (CompressedTensorsWNA16, "process_weights_after_loading", lambda *_: None),
            (CompressedTensorsWNA16, "apply_weights", apply),
        ):
            stack.enter_context(mock.patch.object(owner, name, function))
        yield


def attend(self, q, k, v, forward_batch, **kwargs):
    """Attention of one block over itself, without a KV cache."""
    q, k, v = (x.unflatten(-1, (-1, HEAD_DIM)).transpose(0, 1) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    return out.transpose(0, 1).flatten(1)


def forward(draft, seed=1):
    """A block's hidden states and the projected target features, on fixed inputs."""
    torch.manual_seed(seed)
    block = torch.randn(BLOCK, HIDDEN, dtype=torch.bfloat16)
    features = torch.randn(3, TAPS * HIDDEN, dtype=torch.bfloat16)
    ids = torch.zeros(BLOCK, dtype=torch.long)
    with (
        weight_only_on_cpu(),
        torch.no_grad(),
        torch.compiler.set_stance("force_eager"),
        mock.patch.object(RadixAttention, "forward", attend),
    ):
        out = draft(ids, torch.arange(BLOCK), None, input_embeds=block)
        return out.hidden_states, draft.project_target_hidden(features)


def undecorated(function):
    """What SGLang itself defines."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
