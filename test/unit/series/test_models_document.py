"""The table of docs/models.md against SGLang's classes, as the plugin shares with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_table_is_what_the_classes_do() -> None:
    settings = {
        "SGLANG_PLUGINS": "cpu-reference,specpack",
        "SGLANG_USE_CPU_ENGINE": "1",
        "MASTER_PORT": "29641",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, ROOT / "test" / "models.py"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
