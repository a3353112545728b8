"""The real llm-compressor, where its environment exists."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

import pytest

from specpack.checkpoint import read_checkpoint
from specpack.recipes import cli
from specpack.recipes.environment import VARIABLE, default_home

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PYTHON = Path(os.environ.get(VARIABLE) or default_home() / "bin" / "python")
COMPARE = Path(__file__).with_name("dequantized_error.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} does not exist"),
]


def quantize(*arguments: object) -> None:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    args = parser.parse_args(["quantize", *map(str, arguments)])
    assert args.run(args) == 0


def errors(source: Path, result: Path) -> dict[str, dict[str, float]]:
    command = [str(PYTHON), "-I", str(COMPARE), str(source), str(result)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


def assert_rounded_to_nearest(report: dict[str, dict[str, float]]) -> None:
    """A uniform error within half a step is 0.289 steps in the root mean square."""
    for name, error in report.items():
        assert error["worst"] <= 1.0, name
        assert 0.2 < error["rms_steps"] < 0.35, name


def test_target(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    quantize("target", target, out)
    printed = capsys.readouterr().out.split()
    assert ["W8A16", "lm_head", "1"] == printed[printed.index("W8A16") :][:3]

    groups = read_checkpoint(out).config["quantization_config"]["config_groups"]
    assert [group["weights"]["num_bits"] for group in groups.values()] == [8, 4]
    assert list(groups.values())[0]["targets"] == ["re:.*lm_head$"]
    report = errors(target, out)
    assert report["lm_head.weight"]["bits"] == 8
    assert len(report) == 9
    assert_rounded_to_nearest(report)

    for name in ("chat_template.jinja", "preprocessor_config.json", "tokenizer.json"):
        assert (out / name).read_bytes() == (target / name).read_bytes()
    assert (out / "extra_templates" / "tool.jinja").exists()
    assert not (out / "pytorch_model.bin").exists()
    assert not any(path.is_symlink() for path in out.rglob("*"))


def test_draft(draft: Path, tmp_path: Path) -> None:
    quantize("draft", draft, tmp_path / "out", "--all-linears")
    report = errors(draft, tmp_path / "out")
    assert len(report) == 8 and "fc.weight" in report
    assert_rounded_to_nearest(report)


@pytest.mark.skipif(
    not (FIXTURES / "target" / "config.json").exists(), reason="no trained target"
)
def test_trained_target(tmp_path: Path) -> None:
    quantize("target", FIXTURES / "target", tmp_path / "out")
    report = errors(FIXTURES / "target", tmp_path / "out")
    assert report["lm_head.weight"]["worst"] <= 1.0
