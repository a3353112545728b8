"""A SGLang that was changed under a patch: the server refuses, whole, and says how."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

import pytest
from asking import generate

from specpack.evals.server import ServerError

SITE = Path(sysconfig.get_paths()["purelib"])
CHANGED = Path("sglang/srt/speculative/eagle_worker_v2.py")


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PYTHONPATH with a copy of SGLang whose ``init_lm_head`` has one more line."""
    root = tmp_path_factory.mktemp("altered")
    shutil.copytree(SITE / "sglang", root / "sglang")
    source = (root / CHANGED).read_text()
    head = "    def init_lm_head(self):\n"
    assert head in source
    changed = source.replace(head, head + "        self.altered = True\n")
    (root / CHANGED).write_text(changed)
    return root


def test_the_server_names_the_seam_and_does_not_start(start, altered, packed_target):
    with pytest.raises(ServerError) as error:
        with start(packed_target, "specpack", "NEXTN", PYTHONPATH=str(altered)):
            pass
    for word in ("EagleDraftWorker.init_lm_head", "0.5.23", "SPECPACK_ON_DRIFT"):
        assert word in str(error.value)


@pytest.mark.slow
def test_on_drift_skip_starts_stock(start, altered, dense_target, prompts):
    with start(
        dense_target,
        "specpack",
        "NEXTN",
        PYTHONPATH=str(altered),
        SPECPACK_ON_DRIFT="skip",
    ) as server:
        answer = generate(server, prompts[0], temperature=0, max_new_tokens=16)
    assert answer["meta_info"]["spec_verify_ct"] > 0
