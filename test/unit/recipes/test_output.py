"""The output appears whole or not at all, whatever ends llm-compressor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from specpack.recipes import quantize
from specpack.recipes.output import publish, unfinished
from specpack.recipes.schemes import QuantizeError

HEADER = "import json, os, shutil, sys, time\njob = json.loads(sys.stdin.readline())\n"
COMMAND = """
import sys
from pathlib import Path
from specpack.recipes import cli, quantize
quantize.quantize_python = lambda: Path(sys.executable)
quantize.SCRIPT = Path(sys.argv.pop(1))
import argparse
parser = argparse.ArgumentParser()
cli.add_parser(parser.add_subparsers())
arguments = parser.parse_args()
sys.exit(arguments.run(arguments))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a script of one's own where llm-compressor's would run."""

    def put(body: str) -> Path:
        script = tmp_path / "stand_in.py"
        script.write_text(HEADER + body)
        monkeypatch.setattr(quantize, "quantize_python", lambda: Path(sys.executable))
        monkeypatch.setattr(quantize, "SCRIPT", script)
        return script

    return put


def fault(source: Path, destination: Path) -> str:
    with pytest.raises(QuantizeError) as caught:
        quantize.quantize_target(source, destination, "w8a16")
    assert not destination.exists()
    assert not list(destination.parent.glob(".*"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_failure_is_its_last_line(stand_in, target: Path, tmp_path: Path) -> None:
    stand_in("os.mkdir(job['result'])\nprint('noise')\nsys.exit('ValueError: bad\\n')")
    assert "failed (ValueError: bad)" in fault(target, tmp_path / "out")


def test_a_full_disk_while_writing(stand_in, target: Path, tmp_path: Path) -> None:
    stand_in("sys.exit('OSError: [Errno 28] No space left on device')")
    assert "no space left while writing" in fault(target, tmp_path / "out")


def test_a_full_disk_before(stand_in, target: Path, tmp_path: Path, monkeypatch):
    stand_in("raise AssertionError('ran though there is no room')")
    usage = namedtuple("usage", "total used free")(100, 99, 1000)
    monkeypatch.setattr(quantize.shutil, "disk_usage", lambda path: usage)
    assert "0.00 MB are free" in fault(target, tmp_path / "out")


def test_a_kill_for_memory(stand_in, target: Path, tmp_path: Path) -> None:
    stand_in("os.kill(os.getpid(), 9)")
    assert "ended by signal 9" in fault(target, tmp_path / "out")


def test_a_result_that_was_not_quantized(stand_in, target: Path, tmp_path: Path):
    stand_in("shutil.copytree(job['source'], job['result'])")
    words = fault(target, tmp_path / "out")
    assert "lm_head.weight is unexpected" in words
    assert "lm_head.weight_packed is missing" in words


def test_parents_it_made_are_removed_too(stand_in, target: Path, tmp_path: Path):
    stand_in("sys.exit(1)")
    with pytest.raises(QuantizeError):
        quantize.quantize_target(target, tmp_path / "a" / "b" / "out", "w8a16")
    assert not (tmp_path / "a").exists()


def start(script: Path, source: Path, destination: Path) -> subprocess.Popen[str]:
    arguments = ["quantize", "target", str(source), str(destination)]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(script), *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(destination.with_name("pid").exists)
    return process


def wait_for(condition) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "waited a minute"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


SLEEPER = """
import threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
os.mkdir(job['result'])
open(job['result'] + '/half', 'w').close()
pid = os.path.join(os.path.dirname(job['result']), '..', 'pid')
open(pid + '.new', 'w').write(str(os.getpid()))
os.rename(pid + '.new', pid)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(
    stand_in, target: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "to").mkdir()
    process = start(stand_in(SLEEPER), target, tmp_path / "to" / "out")
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number
    assert error.splitlines()[-1].startswith("specpack quantize: stopped")
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["pid"]
    assert not alive(int((tmp_path / "to" / "pid").read_text()))


def test_a_killed_run_is_taken_over_by_the_next(
    stand_in, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    process = start(stand_in(SLEEPER), target, tmp_path / "to" / "out")
    process.kill()
    process.communicate(timeout=60)
    pid = int((tmp_path / "to" / "pid").read_text())
    wait_for(lambda: not alive(pid))
    assert not (tmp_path / "to" / "out").exists()
    with unfinished(tmp_path / "to" / "out") as work:
        assert list(work.iterdir()) == []


def test_two_runs_do_not_share_an_output(tmp_path: Path) -> None:
    with unfinished(tmp_path / "out") as work:
        (work / "result").mkdir()
        with pytest.raises(QuantizeError, match="another run is writing"):
            with unfinished(tmp_path / "out"):
                pass
        publish(work / "result", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
