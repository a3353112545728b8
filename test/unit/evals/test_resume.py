"""Whatever ends the command: nothing is left running, and it goes on from there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = (
    "import argparse, sys; from specpack.evals.cli import add_parser\n"
    "parser = argparse.ArgumentParser(); add_parser(parser.add_subparsers())\n"
    "arguments = parser.parse_args(); sys.exit(arguments.run(arguments))"
)
DELAY = "0.3"  # seconds of a request


def running(marker: str) -> list[int]:
    """Processes with ``marker`` in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in environment and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def wait_for(condition, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def begin(run_file, out: Path, tmp_path: Path):
    """Start the command in a process of its own, marked in its environment."""
    runs = {"plain": {"FAKE_DELAY": DELAY}, "nextn": {"algorithm": "NEXTN"}}
    path = run_file(**runs)
    words = [sys.executable, "-c", MAIN, "eval", str(path), "--out", str(out)]
    marker = {"SPECPACK_TEST": str(tmp_path)}

    def start() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, env=os.environ | marker, stdout=pipe, stderr=pipe
        )

    return start


@pytest.mark.parametrize(
    "number, status",
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_a_killed_command_goes_on(
    begin, out: Path, tmp_path: Path, number, status, rows_of, lines_of
):
    completions = out / "completions" / "plain.jsonl"
    command = begin()
    wait_for(lambda: completions.exists() and len(lines_of(completions)) >= 2)
    command.send_signal(number)
    _, error = command.communicate(timeout=30)
    assert command.returncode == status
    assert b"Traceback" not in error
    wait_for(lambda: running(f"SPECPACK_TEST={tmp_path}") == [])
    kept = completions.read_text().rpartition("\n")[0]
    command = begin()
    command.communicate(timeout=60)
    assert command.returncode == 0
    assert completions.read_text().startswith(kept)
    assert [line["id"] for line in lines_of(completions)] == [2, 3, 4, 5, 6, 7]
    row = rows_of(out)["plain"]
    assert (row["answered"], row["starts"]) == (6, 2)


def test_a_killed_server_goes_on(begin, out: Path, tmp_path: Path, rows_of, lines_of):
    completions = out / "completions" / "plain.jsonl"
    command = begin()
    wait_for(lambda: completions.exists() and len(lines_of(completions)) >= 2)
    (server,) = [p for p in running(f"SPECPACK_TEST={tmp_path}") if p != command.pid]
    os.kill(server, signal.SIGKILL)
    output, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    assert b"plain fails" in output and b"exit status -9" in output
    assert rows_of(out)["nextn"]["answered"] == 6
    command = begin()
    command.communicate(timeout=60)
    assert command.returncode == 0
    assert rows_of(out)["plain"]["answered"] == 6
