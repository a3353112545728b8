from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

HIDDEN, VOCAB, MLP = 128, 200, 256
TEXT = "model.language_model."


def decoder_layer(prefix: str) -> dict[str, torch.Tensor]:
    shapes = {
        "self_attn.q_proj": (128, HIDDEN),
        "self_attn.k_proj": (64, HIDDEN),
        "self_attn.v_proj": (64, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 128),
        "self_attn.q_norm": (64,),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
        "input_layernorm": (HIDDEN,),
    }
    return {f"{prefix}{name}.weight": weights(*s) for name, s in shapes.items()}


def weights(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape) * 0.1).bfloat16()


def write_config(root: Path, **config: object) -> None:
    (root / "config.json").write_text(json.dumps(config))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A Qwen3.5 layout in two shards without an index, and what else is served."""
    torch.manual_seed(0)
    root = tmp_path / "target"
    (root / "extra_templates").mkdir(parents=True)
    gdn = f"{TEXT}layers.0.linear_attn."
    first = {
        f"{TEXT}embed_tokens.weight": weights(VOCAB, HIDDEN),
        f"{TEXT}norm.weight": weights(HIDDEN),
        f"{gdn}in_proj_qkv.weight": weights(384, HIDDEN),
        f"{gdn}in_proj_a.weight": weights(4, HIDDEN),
        f"{gdn}conv1d.weight": weights(384, 1, 4),
        f"{gdn}A_log": weights(4),
        f"{gdn}norm.weight": weights(32),
        **decoder_layer(f"{TEXT}layers.1."),
    }
    second = {
        "lm_head.weight": weights(VOCAB, HIDDEN),
        "mtp.fc.weight": weights(HIDDEN, 2 * HIDDEN),
        **decoder_layer("mtp.layers.0."),
        "model.visual.blocks.0.attn.qkv.weight": weights(96, 32),
    }
    save_file(first, root / "model.safetensors")
    save_file(second, root / "head.safetensors")
    text_config = {"hidden_size": HIDDEN, "vocab_size": VOCAB}
    write_config(root, model_type="qwen3_5", text_config=text_config)
    for name in ("tokenizer.json", "generation_config.json"):
        (root / name).write_text("{}")
    (root / "preprocessor_config.json").write_text('{"size": 1}')
    (root / "chat_template.jinja").write_text("{{ messages }}")
    (root / "extra_templates" / "tool.jinja").write_text("tool")
    (root / "pytorch_model.bin").write_text("old weights")
    return root


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    root = tmp_path / "draft"
    root.mkdir()
    convolution = "layers.0.attention_conv."
    selector = "candidate_selector."
    tensors = {
        **decoder_layer("layers.0."),
        f"{convolution}base_kernel": weights(2, 3, HIDDEN),
        f"{convolution}kernel_projection.weight": weights(24, HIDDEN),
        "fc.weight": weights(HIDDEN, 3 * HIDDEN),
        "hidden_norm.weight": weights(HIDDEN),
        f"{selector}hidden_projection.weight": weights(16, HIDDEN),
        f"{selector}predecessor_codebook.weight": weights(VOCAB, 16),
        f"{selector}successor_codebook": weights(VOCAB, 16),
    }
    save_file(tensors, root / "model.safetensors")
    write_config(root, architectures=["DFlash2DraftModel"], hidden_size=HIDDEN)
    return root
