"""Prepares SGLang for the tests: its CPU engine, and plugins for those that travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_REGISTERED = Path(__file__).parent / "registered"

# SGLang reads it as its layers are imported, by whichever test does so first; on a GPU
# it would switch that off.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")


def pytest_collect_file(file_path: Path) -> None:
    """Let SGLang load its plugins before the first registered test imports it.

    `SGLANG_PLUGINS` chooses which, as for a server; the tests of specpack itself
    never get here, so that they stay quick and unpatched.
    """
    if file_path.suffix != ".py" or _REGISTERED not in file_path.parents:
        return
    from sglang.srt.plugins import load_plugins

    try:
        load_plugins()
    except SystemExit as refusal:
        pytest.exit(str(refusal), returncode=1)
