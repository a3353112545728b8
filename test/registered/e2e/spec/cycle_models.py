"""Tiny targets and drafts, written without training, whose completions are known.

The tokens are in cycles of four and a target follows each by its next one, with a
margin that no rounding closes. A draft has to say so from what the target gives it:
DFLASH from features through `fc`, layers and selector, NEXTN from the shared embedding
and head. So a module that was dropped or left unshared costs the accept length.
"""

import json
import os
import sys

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "unit", "spec"))
from dflash_drafts import (  # noqa: E402
    compressed_tensors,
    projections,
    quantize_modules,
)

HIDDEN, WIDE, HEAD_DIM, HEADS = 512, 1024, 128, 4  # widths that Marlin and FP8 take
VOCAB, CYCLE = 1000, 4  # VOCAB is not a multiple of 64
BLOCK, RANK, TAPS, CONV_GROUP = 8, 16, 3, 32
FEATURE_LAYERS = [1, 2]
MASK = 0  # the first cycle is never asked for
PROMPT_LENGTH = 12
PACKED_HEAD = compressed_tensors(targets=["re:.*lm_head"], ignore=["re:.*layers\\..*"])
PACKED_DRAFT = compressed_tensors(
    ignore=["re:.*self_attn.(q|k|v)_proj", "re:.*kernel_projection", "re:.*selector.*"]
)

GEOMETRY = {
    "dtype": "bfloat16",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "vocab_size": VOCAB,
    "num_attention_heads": HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
QWEN3 = {
    **GEOMETRY,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
}
QWEN3_5 = {
    **GEOMETRY,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "full_attention_interval": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": HEAD_DIM,
    "linear_value_head_dim": HEAD_DIM,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [6, 5, 5],
    },
}
DRAFT = {
    **GEOMETRY,
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_key_value_heads": HEADS,
    "num_target_layers": QWEN3["num_hidden_layers"],
    "block_size": BLOCK,
    "dflash_config": {
        "block_size": BLOCK,
        "target_layer_ids": FEATURE_LAYERS,
        "mask_token_id": MASK,
        "selector_rank": RANK,
        "selector_top_k": CYCLE,
        "conv_kernel_size": TAPS,
        "conv_group_size": CONV_GROUP,
    },
}


def following(token: int, steps: int = 1) -> int:
    """The token some steps further in its cycle."""
    place = token % CYCLE
    return token - place + (place + steps) % CYCLE


def prompts(count: int = 8) -> list[list[int]]:
    """Prompts that go round one cycle each, entered at different places."""
    starts = [CYCLE * (1 + 29 * i) + i % CYCLE for i in range(count)]
    return [[following(s, n) for n in range(PROMPT_LENGTH)] for s in starts]


def noise(*shape: int, size: float = 0.01) -> torch.Tensor:
    return torch.randn(shape) * size


def norms(*names: str, size: int = HIDDEN, value: float = 1.0) -> dict:
    return {f"{name}.weight": torch.full((size,), value) for name in names}


def make_embedding() -> torch.Tensor:
    """Rows `[VOCAB, HIDDEN]`: what a cycle shares, what is a token's own, a constant."""
    cycles = torch.randn(VOCAB // CYCLE, HIDDEN).repeat_interleave(CYCLE, 0)
    embedding = (cycles + torch.randn(VOCAB, HIDDEN)) / 2**0.5
    embedding[:CYCLE] = 0
    embedding[:, 0] = HIDDEN**0.5 / 3
    return embedding


def make_ends(prefix: str = "model.") -> dict:
    """Embedding and head: a token's row of the head is its predecessor's embedding."""
    embedding = make_embedding()
    before = torch.tensor([following(token, CYCLE - 1) for token in range(VOCAB)])
    head = embedding[before] / HIDDEN**0.5
    head[:, 0] = 0
    return {f"{prefix}embed_tokens.weight": embedding, "lm_head.weight": head}


def make_mlp(layer: str) -> dict:
    return {
        f"{layer}.mlp.gate_proj.weight": noise(WIDE, HIDDEN),
        f"{layer}.mlp.up_proj.weight": noise(WIDE, HIDDEN),
        f"{layer}.mlp.down_proj.weight": noise(HIDDEN, WIDE),
    }


def make_attention(layer: str, kv_heads: int, norm: float, gate: int = 1) -> dict:
    attention = f"{layer}.self_attn"
    width, kv_width = HEADS * HEAD_DIM, kv_heads * HEAD_DIM
    return {
        f"{attention}.q_proj.weight": noise(gate * width, HIDDEN),
        f"{attention}.k_proj.weight": noise(kv_width, HIDDEN),
        f"{attention}.v_proj.weight": noise(kv_width, HIDDEN),
        f"{attention}.o_proj.weight": noise(HIDDEN, width),
        **norms(
            f"{attention}.q_norm", f"{attention}.k_norm", size=HEAD_DIM, value=norm
        ),
    }


def make_linear_attention(layer: str) -> dict:
    keys, values, heads = 2 * HEAD_DIM, 4 * HEAD_DIM, 4
    attention = f"{layer}.linear_attn"
    return {
        f"{attention}.in_proj_qkv.weight": noise(2 * keys + values, HIDDEN),
        f"{attention}.in_proj_z.weight": noise(values, HIDDEN),
        f"{attention}.in_proj_a.weight": noise(heads, HIDDEN),
        f"{attention}.in_proj_b.weight": noise(heads, HIDDEN),
        f"{attention}.conv1d.weight": noise(2 * keys + values, 1, 4, size=0.3),
        f"{attention}.A_log": torch.zeros(heads),
        f"{attention}.dt_bias": torch.zeros(heads),
        f"{attention}.out_proj.weight": noise(HIDDEN, values),
        **norms(f"{attention}.norm", size=HEAD_DIM),
    }


def layer_norms(layer: str, value: float) -> dict:
    names = ("input_layernorm", "post_attention_layernorm")
    return norms(*(f"{layer}.{name}" for name in names), value=value)


def make_qwen3() -> dict:
    """A dense target; its layers add noise to the embedding, which decides."""
    tensors = {**make_ends(), **norms("model.norm")}
    for i in range(QWEN3["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        tensors |= make_attention(layer, QWEN3["num_key_value_heads"], norm=1.0)
        tensors |= make_mlp(layer) | layer_norms(layer, 1.0)
    return tensors


def make_qwen3_5() -> dict:
    """A hybrid target with an MTP layer; most of its norms count from zero."""
    tensors = {**make_ends(), **norms("model.norm", value=0.0)}
    kinds = {f"model.layers.{i}": k for i, k in enumerate(QWEN3_5["layer_types"])}
    for layer, kind in {**kinds, "mtp.layers.0": "full_attention"}.items():
        tensors |= make_mlp(layer) | layer_norms(layer, 0.0)
        tensors |= (
            make_attention(layer, QWEN3_5["num_key_value_heads"], norm=0.0, gate=2)
            if kind == "full_attention"
            else make_linear_attention(layer)
        )
    fc = noise(HIDDEN, 2 * HIDDEN, size=0.002)
    fc[:, :HIDDEN] += torch.eye(HIDDEN)
    names = ("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
    return {**tensors, **norms(*names, value=0.0), "mtp.fc.weight": fc}


def make_selector() -> dict:
    """Scores that follow each token by the next of its cycle."""
    places = F.one_hot(torch.arange(VOCAB) % CYCLE, RANK).float()
    hidden = noise(RANK, HIDDEN, size=0.002)
    hidden[:, 0] += 3
    return {
        "candidate_selector.predecessor_codebook": places,
        "candidate_selector.successor_codebook": places.roll(1, 0).contiguous(),
        "candidate_selector.hidden_projection.weight": hidden,
    }


def make_convolution(name: str) -> dict:
    base = torch.zeros(2, TAPS, HIDDEN)
    base[:, 0] = 1
    rows = 2 * TAPS * HIDDEN // CONV_GROUP
    return {
        f"{name}.base_kernel": base,
        f"{name}.kernel_projection.weight": noise(rows, HIDDEN, size=0.001),
    }


def make_draft() -> dict:
    """A DFlash2 draft: the mean of the features names the cycle, the selector the order.

    Attention is about uniform and copies values, so that `fc`, `v_proj` and `o_proj`
    carry the answer.
    """
    fc = torch.eye(HIDDEN).repeat(1, len(FEATURE_LAYERS)) / len(FEATURE_LAYERS)
    tensors = {
        "fc.weight": fc + noise(*fc.shape, size=0.002),
        **norms("hidden_norm", "norm"),
        **make_selector(),
    }
    for i in range(DRAFT["num_hidden_layers"]):
        layer = f"layers.{i}"
        tensors |= make_attention(layer, HEADS, norm=0.2)
        for name in ("v_proj", "o_proj"):
            tensors[f"{layer}.self_attn.{name}.weight"] += torch.eye(HIDDEN)
        tensors |= make_mlp(layer) | layer_norms(layer, 1.0)
        tensors |= make_convolution(f"{layer}.attention_conv")
        tensors |= make_convolution(f"{layer}.mlp_conv")
    return tensors


def write(folder: str, config: dict, tensors: dict) -> str:
    """Write a checkpoint and return its folder."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    stored = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    torch.save(stored, os.path.join(folder, "pytorch_model.bin"))
    return folder


def write_target(folder: str, nextn: bool = False, packed_head: bool = False) -> str:
    """Write a target, dense or with a W8A16 head."""
    torch.manual_seed(0)
    config = QWEN3_5 if nextn else QWEN3
    tensors = make_qwen3_5() if nextn else make_qwen3()
    if packed_head:
        config = {**config, "quantization_config": PACKED_HEAD}
        tensors, _ = quantize_modules(tensors, ["lm_head"])
    return write(folder, config, tensors)


def write_draft(folder: str, packed: bool = False) -> str:
    """Write a draft, dense or with W8A16 `o_proj`, MLPs and `fc`."""
    torch.manual_seed(1)
    config, tensors = DRAFT, make_draft()
    if packed:
        config = {**config, "quantization_config": PACKED_DRAFT}
        kinds = ("o_proj", "gate_proj", "up_proj", "down_proj", "fc")
        tensors, _ = quantize_modules(tensors, projections(tensors, *kinds))
    return write(folder, config, tensors)
