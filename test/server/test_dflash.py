"""DFLASH served on a packed head: quantized drafts of several layouts, and a control."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matrix
import pytest
import torch
from asking import accept_length, agreement, complete_all, generate
from safetensors.torch import load_file, save_file

from specpack.evals.server import Server

sys.path.append(str(Path(__file__).parents[1] / "registered" / "unit" / "spec"))
DRAFT = matrix.FIXTURES / "draft"
QUANTIZED = ("o_proj", "gate_proj", "up_proj", "down_proj", "fc")


def flags(draft: Path) -> tuple[str, ...]:
    return ("--speculative-draft-model-path", str(draft))


def write_draft(folder: Path, tensors: dict[str, torch.Tensor], **config) -> Path:
    folder.mkdir()
    written = json.loads((DRAFT / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(written))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def server(start, packed_target: Path) -> Iterator[Server]:
    draft = matrix.draft_path("dflash2-w8a16")
    with start(packed_target, "specpack", "DFLASH", *flags(draft)) as server:
        yield server


@pytest.fixture(scope="module")
def sequential(server: Server, prompts: list[str]):
    return complete_all(server, prompts, max_tokens=64)


def test_the_load_audit_has_nothing_to_say(server: Server):
    assert "checkpoint does not fit" not in server.log.read_text()


def test_six_requests_at_once(server: Server, prompts: list[str], sequential):
    with ThreadPoolExecutor(6) as pool:
        at_once = list(pool.map(lambda p: complete_all(server, [p], 64)[0], prompts))
    assert agreement(at_once, sequential) >= len(prompts) - 1
    assert accept_length(at_once) >= 0.95 * accept_length(sequential)


def test_sampled_requests_are_answered(server: Server, prompts: list[str]):
    draws = [
        generate(server, prompts[0], temperature=5, max_new_tokens=48) for _ in range(4)
    ]
    assert len({tuple(draw["output_ids"]) for draw in draws}) > 1
    assert all(draw["meta_info"]["spec_verify_ct"] > 0 for draw in draws)
    after = complete_all(server, prompts[:1], max_tokens=64)
    assert accept_length(after) >= 3.5


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (8, None)])
def test_packed_layouts(
    start, packed_target: Path, prompts: list[str], tmp_path: Path, bits, group
):
    import dflash_drafts

    tensors = load_file(DRAFT / "model.safetensors")
    modules = dflash_drafts.projections(tensors, *QUANTIZED)
    packed, _ = dflash_drafts.quantize_modules(tensors, modules, bits, group)
    ignore = ["re:.*(q|k|v)_proj", "re:.*selector.*", "re:.*kernel_projection"]
    config = dflash_drafts.compressed_tensors(bits, group, ignore)
    draft = write_draft(tmp_path / "draft", packed, quantization_config=config)
    with start(packed_target, "specpack", "DFLASH", *flags(draft)) as server:
        assert accept_length(complete_all(server, prompts[:6], 64)) >= 3.5


def test_a_random_fc_drafts_nothing(
    start, dense_target: Path, prompts: list[str], tmp_path: Path
):
    tensors = load_file(DRAFT / "model.safetensors")
    torch.manual_seed(0)
    spread = tensors["fc.weight"].float().std()
    noise = torch.randn(tensors["fc.weight"].shape) * spread
    tensors["fc.weight"] = noise.to(torch.bfloat16)
    draft = write_draft(tmp_path / "draft", tensors)
    with start(dense_target, "stock", "DFLASH", *flags(draft)) as server:
        assert accept_length(complete_all(server, prompts[:4], 64)) <= 1.3
