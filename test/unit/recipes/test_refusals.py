"""Bad input is refused in one line, before llm-compressor is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specpack.checkpoint import CheckpointError
from specpack.recipes import quantize
from specpack.recipes.schemes import QuantizeError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> Path:
        raise AssertionError("looked for the environment before refusing")

    monkeypatch.setattr(quantize, "quantize_python", forbidden)


def fault(source: Path, destination: Path, kind: str = "w8a16") -> str:
    before = sorted(destination.parent.iterdir())
    with pytest.raises((QuantizeError, CheckpointError)) as caught:
        if kind == "draft":
            quantize.quantize_draft(source, destination, False)
        else:
            quantize.quantize_target(source, destination, kind)
    assert sorted(destination.parent.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit_config(root: Path, **values: object) -> None:
    path = root / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_head(root: Path, head: torch.Tensor | None) -> None:
    tensors = load_file(root / "head.safetensors")
    del tensors["lm_head.weight"]
    if head is not None:
        tensors["lm_head.weight"] = head
    save_file(tensors, root / "head.safetensors")


def test_no_config(target: Path, tmp_path: Path) -> None:
    (target / "config.json").unlink()
    assert "has no config.json" in fault(target, tmp_path / "out")


@pytest.mark.parametrize("made", [Path.mkdir, Path.touch])
def test_an_output_that_exists(target: Path, tmp_path: Path, made) -> None:
    made(tmp_path / "out")
    assert "out exists: remove it" in fault(target, tmp_path / "out")


def test_an_output_that_is_a_dangling_link(target: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    assert "out exists" in fault(target, tmp_path / "out")


def test_an_output_inside_the_source(target: Path) -> None:
    assert "lies inside" in fault(target, target / "out")


def test_quantized_by_its_config(target: Path, tmp_path: Path) -> None:
    edit_config(target, text_config={"quantization_config": {"quant_method": "fp8"}})
    assert "already quantized (config.json" in fault(target, tmp_path / "out", "bf16")


def test_quantized_by_a_modelopt_file(target: Path, tmp_path: Path) -> None:
    (target / "hf_quant_config.json").write_text("{}")
    assert "hf_quant_config.json" in fault(target, tmp_path / "out")


def test_quantized_by_its_tensors(draft: Path, tmp_path: Path) -> None:
    tensors = load_file(draft / "model.safetensors")
    tensors["fc.weight_scale_inv"] = torch.ones(1, 3)
    save_file(tensors, draft / "model.safetensors")
    assert "it holds fc.weight_scale_inv" in fault(draft, tmp_path / "out", "draft")


def test_a_float8_weight_without_any_scale(target: Path, tmp_path: Path) -> None:
    edit_head(target, torch.zeros(200, 128).to(torch.float8_e4m3fn))
    assert "lm_head.weight is F8_E4M3" in fault(target, tmp_path / "out")


def test_a_tied_head(target: Path, tmp_path: Path) -> None:
    edit_config(target, tie_word_embeddings=True)
    words = fault(target, tmp_path / "out")
    assert "tie_word_embeddings: true" in words and "--head bf16" in words


def test_a_head_tied_in_the_text_config(target: Path, tmp_path: Path) -> None:
    edit_config(target, text_config={"tie_word_embeddings": True})
    assert "tie_word_embeddings: true" in fault(target, tmp_path / "out")


def test_no_head_tensor(target: Path, tmp_path: Path) -> None:
    edit_head(target, None)
    assert "has no lm_head.weight" in fault(target, tmp_path / "out")


def test_a_head_whose_width_128_does_not_divide(target: Path, tmp_path: Path) -> None:
    edit_head(target, torch.zeros(200, 320).bfloat16())
    words = fault(target, tmp_path / "out")
    assert "lm_head.weight has 320 input features, which 128" in words


def test_a_mixture_of_experts(target: Path, tmp_path: Path) -> None:
    name = "model.language_model.layers.2.mlp.experts.down_proj"
    save_file({name: torch.zeros(2, 128, 128)}, target / "experts.safetensors")
    assert "mixture of experts" in fault(target, tmp_path / "out")


def test_draft_and_target_taken_for_each_other(
    draft: Path, target: Path, tmp_path: Path
) -> None:
    assert "use `specpack quantize draft`" in fault(draft, tmp_path / "out")
    assert "no DFlash draft" in fault(target, tmp_path / "out", "draft")
