"""The forked tree of `make fork`, without the plugin, serves what the plugin serves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmark"))
import demo  # noqa: E402  (a script, not a package)

FORK = ROOT / "build" / "sglang"
ROWS = [
    ("w8a16-packed", "mtp", "specpack", "NEXTN"),
    ("w8a16-packed", "dflash2-w8a16", "specpack", "DFLASH"),
]


@pytest.mark.parametrize("key", ROWS, ids=demo.label)
def test_fork_and_plugin_serve_alike(key: demo.Key, monkeypatch: pytest.MonkeyPatch):
    prompts = demo.held_out_prompts(16)
    plugin, answers = demo.measure(prompts, max_tokens=64, keys=[key])
    monkeypatch.setitem(demo.ENVIRONMENTS, "specpack", {})
    demo.serve_fixes_from(FORK)
    fork, fork_answers = demo.measure(prompts, max_tokens=64, keys=[key])
    assert fork[key].error is None
    assert fork_answers == answers
    assert fork[key].accept_length == plugin[key].accept_length >= 3.0
