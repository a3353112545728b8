"""The forked tree of `make fork`, without the plugin, serves what the plugin serves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmark"))
import matrix  # noqa: E402  (a script, not a package)

FORK = ROOT / "build" / "sglang"
ROWS = (
    ("w8a16-packed", "mtp", "specpack", "NEXTN"),
    ("w8a16-packed", "dflash2-w8a16", "specpack", "DFLASH"),
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[matrix.Matrix]:
    """The rows with the plugin, then on the forked tree."""
    root = tmp_path_factory.mktemp("rows")
    both = [
        matrix.Matrix(root / name, examples=16, max_tokens=64, keys=ROWS, fork=fork)
        for name, fork in (("plugin", None), ("fork", FORK))
    ]
    assert [each.evaluate() for each in both] == [0, 0]
    return both


@pytest.mark.parametrize("key", ROWS, ids=matrix.name_of)
def test_fork_and_plugin_serve_alike(key: matrix.Key, served: list[matrix.Matrix]):
    plugin, fork = served
    assert fork.completions(key) == plugin.completions(key)
    lengths = [each.report()[key]["accept_length_histogram"] for each in served]
    assert lengths[0] == lengths[1] >= 3.0
