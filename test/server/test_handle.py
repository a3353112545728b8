"""The server handle: what fails says why in one line, and nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import matrix
import pytest

from specpack.evals.server import Launch, ServerError, serve

HOLD = """
import sys, time
from pathlib import Path
from specpack.evals.server import Launch, serve
launch = Launch(Path(sys.argv[1]), sys.argv[3:])
with serve(launch, Path(sys.argv[2])) as server:
    print("ready", flush=True)
    time.sleep(600)
"""


def processes_of(marker: str) -> list[int]:
    """Processes whose command line or environment holds ``marker``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if marker.encode() in text and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def test_a_port_in_use(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"port {port} is in use"):
            with serve(Launch(tmp_path), tmp_path / "log", port=port):
                pass


def test_a_path_that_is_not_a_checkpoint(start, tmp_path: Path):
    with pytest.raises(ServerError) as error:
        with start(tmp_path, "stock", "none"):
            pass
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_parent_leaves_no_process(number, dense_target: Path, tmp_path: Path):
    marker = f"SPECPACK_TEST={tmp_path}"
    name, value = marker.split("=")
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLD, dense_target, tmp_path / "log", *matrix.CPU_FLAGS],
        env=os.environ | matrix.environment("stock") | {name: value},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout.readline() == "ready\n"
    assert len(processes_of(marker)) >= 4  # parent, server, scheduler, detokenizer
    parent.send_signal(number)
    parent.wait(30)
    deadline = time.monotonic() + 20
    while processes_of(marker) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes_of(marker) == []
