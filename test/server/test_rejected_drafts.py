"""DFLASH servers over their first 2,000 verify steps, one with useless drafts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import matrix
import pytest
from asking import generate
from safetensors.torch import load_file, save_file

from specpack.evals.server import Server

DRAFT = matrix.FIXTURES / "draft"
WARNING = "The mean accept length over the first"
AT_ONCE = 8
MAX_TOKENS = 160
FLAGS = ("--max-running-requests", str(AT_ONCE), "--max-total-tokens", "8192")
pytestmark = pytest.mark.slow


@pytest.fixture
def useless_draft(tmp_path: Path) -> Path:
    """The fixture's draft with its last norm turned over: the least likely tokens."""
    tensors = load_file(DRAFT / "model.safetensors")
    tensors["norm.weight"] = -tensors["norm.weight"]
    config = json.loads((DRAFT / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def verify(server: Server, prompts: list[str], steps: int) -> float:
    """Complete prompts until so many verify steps are done; the mean accept length."""
    tokens = verified = 0
    remaining = cycle(prompts)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while verified < steps:
            asked = [next(remaining) for _ in range(AT_ONCE)]
            for answer in pool.map(lambda prompt: complete(server, prompt), asked):
                tokens += answer["completion_tokens"]
                verified += answer["spec_verify_ct"]
    return tokens / verified


def complete(server: Server, prompt: str) -> dict:
    sampling = {"temperature": 0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}
    return generate(server, prompt, **sampling)["meta_info"]


def test_useless_drafts_are_warned_of_once(
    start, dense_target: Path, useless_draft: Path, prompts: list[str]
):
    flags = ("--speculative-draft-model-path", str(useless_draft), *FLAGS)
    with start(dense_target, "specpack", "DFLASH", *flags) as server:
        assert verify(server, prompts, 1000) < 1.05
        assert WARNING not in server.log.read_text()
        assert verify(server, prompts, 1000) < 1.05
        (line,) = (li for li in server.log.read_text().splitlines() if WARNING in li)
        assert "DFLASH costs time" in line and "target_layer_ids" in line


def test_a_healthy_server_says_nothing(start, dense_target: Path, prompts: list[str]):
    flags = ("--speculative-draft-model-path", str(DRAFT), *FLAGS)
    with start(dense_target, "specpack", "DFLASH", *flags) as server:
        assert verify(server, prompts, 2000) > 2
        assert WARNING not in server.log.read_text()
