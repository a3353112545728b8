"""The load audit on real servers: damaged checkpoints are named."""

from __future__ import annotations

import json
from pathlib import Path

import matrix
import pytest
from asking import complete_all
from safetensors.torch import load_file, save_file

from specpack.evals.server import ServerError

BLAMED = "checkpoint does not fit"


def without(source: Path, tensor: str, folder: Path) -> Path:
    """The checkpoint with this tensor left out."""
    folder.mkdir()
    for file in source.glob("*.json"):
        (folder / file.name).write_text(file.read_text())
    tensors = load_file(source / "model.safetensors")
    del tensors[tensor]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.exists():
        content = json.loads(index.read_text())
        del content["weight_map"][tensor]
        index.write_text(json.dumps(content))
    return folder


def test_a_dense_draft_serves_with_one_warning(start, tmp_path: Path, prompts):
    model = without(matrix.FIXTURES / "target", "mtp.norm.weight", tmp_path / "model")
    with start(model, "specpack", "NEXTN") as server:
        complete_all(server, prompts[:1], max_tokens=4)
        log = server.log.read_text()
    assert log.count(BLAMED) == 1
    assert "unfilled parameters: model.norm.weight." in log


def test_a_quantized_draft_is_refused_by_name(start, tmp_path: Path, packed_target):
    source = matrix.draft_path("dflash2-w8a16")
    draft = without(source, "fc.weight_scale", tmp_path / "draft")
    flags = ("--speculative-draft-model-path", str(draft))
    with pytest.raises(ServerError, match="draft's checkpoint does not fit"):
        with start(packed_target, "specpack", "DFLASH", *flags):
            pass
