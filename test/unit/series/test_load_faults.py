"""Every tensor of the fixtures dropped, renamed, or stored as another kind of number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parent / "load_faults.py"
# A process each, of about the same length.
CASES = (("target", "mtp", "packed-mtp"), ("packed-target", "dflash", "packed-dflash"))


def start(number: int, cases: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(WORKER), *cases],
        env={
            **os.environ,
            "SGLANG_PLUGINS": "cpu-reference,specpack",
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "MASTER_PORT": str(29675 + number),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_every_seeded_fault_is_named_and_a_sound_checkpoint_is_not() -> None:
    """Red when a fault passes in silence, or when a healthy checkpoint is blamed."""
    workers = [start(*numbered) for numbered in enumerate(CASES)]
    loads, missed = 0, []
    for worker in workers:
        out, errors = worker.communicate(timeout=600)
        assert worker.returncode == 0, errors[-2000:]
        found = json.loads(out.splitlines()[-1])
        loads += found["loads"]
        missed += found["missed"]
    assert missed == []
    assert loads > 800
