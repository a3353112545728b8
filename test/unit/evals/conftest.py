"""Evaluations of a fake server that is a process of its own, as SGLang's is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specpack.evals import cli
from specpack.evals.cli import add_parser

FAKE = Path(__file__).parent / "fake"
ROWS = 12  # of the data; the fake server's answer to row n is right, being 1,00n


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    rows = [
        {"question": f"What is {n}?", "answer": f"It is\n#### 1,00{n}"}
        for n in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Makes `python -m sglang.launch_server` the fake one."""
    state = tmp_path / "state"
    state.mkdir()
    return {
        "PYTHONPATH": str(FAKE),
        "FAKE_STATE": str(state),
        "SGLANG_USE_CPU_ENGINE": "0",
    }


@pytest.fixture
def run_file(
    tmp_path: Path, data: Path, checkpoint: Path, environment: dict[str, str]
) -> Callable[..., Path]:
    """Write a run file: ``run_file(head="lines", none={…}, nextn={…})``.

    Every keyword but ``head`` is a run: its environment, and ``algorithm`` in it.
    """

    def write(head: str = "", **runs: dict[str, str]) -> Path:
        lines = [f'data = "{data.name}"', "examples = 6", "num_shots = 2"]
        lines += ["reference = 'plain'" if "plain" in runs else "", head]
        for name, values in runs.items():
            lines += ["[[runs]]", f"name = '{name}'", "target = 'tiny'"]
            keys = [k for k in values if not k.startswith("FAKE_")]
            lines += [f"{k} = {json.dumps(values[k])}" for k in keys]
            lines += ["[runs.environment]"]
            own = environment | {k: values[k] for k in values if k not in keys}
            lines += [f"{k} = {json.dumps(v)}" for k, v in own.items()]
        path = tmp_path / "run.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def specpack_eval(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """``specpack eval …`` in this process, its signal handlers left alone."""
    monkeypatch.setattr(cli.signal, "signal", lambda number, handler: None)

    def run(*words: object) -> int:
        import argparse

        parser = argparse.ArgumentParser()
        add_parser(parser.add_subparsers())
        arguments = parser.parse_args(["eval", *map(str, words)])
        return arguments.run(arguments)

    return run


@pytest.fixture
def rows_of() -> Callable[[Path], dict[str, dict]]:
    """The report's rows in a folder, by the name of their run."""

    def rows(out: Path) -> dict[str, dict]:
        report = json.loads((out / "report.json").read_text())
        return {row["name"]: row for row in report["rows"]}

    return rows


@pytest.fixture
def lines_of() -> Callable[[Path], list[dict]]:
    """The values of a jsonl file."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]
