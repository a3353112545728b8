"""`specpack eval` on a running server, through its chat template: the default API."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matrix
import pytest

from specpack.evals.server import Server

EXAMPLES = 6


def specpack(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "specpack", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def out(packed_nextn: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("eval")
    data, out = root / "problems.jsonl", root / "out"
    data.write_text("".join(json.dumps(r) + "\n" for r in matrix.rows(EXAMPLES)))
    done = specpack(
        *("eval", "--url", packed_nextn.url, "--server-log", str(packed_nextn.log)),
        *("--data", str(data), "--examples", str(EXAMPLES)),
        *("--max-tokens", "64", "--out", str(out)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_request_is_counted(out: Path):
    (row,) = json.loads((out / "report.json").read_text())["rows"]
    assert row["answered"] == EXAMPLES
    assert row["speculation"] == "EAGLE"  # what the server calls NEXTN
    assert row["accept_length_histogram"] >= 2.5
    assert row["windows"] >= 1
    shares = row["correct_draft_shares"]
    assert len(shares) == 3 and shares == sorted(shares, reverse=True)


def test_the_run_equals_itself(out: Path):
    done = specpack("eval", "compare", str(out), str(out), "--json")
    (found,) = json.loads(done.stdout)
    assert found["equal"] == found["compared"] == EXAMPLES
