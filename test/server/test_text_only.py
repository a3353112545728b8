"""The text-only twin of a packed-head target: every head tensor reaches its parameter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from asking import accept_length, agreement, complete_all

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
from relabel import text_only  # noqa: E402  (a script beside the fixtures)


@pytest.fixture(scope="module")
def twin(packed_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_only(packed_target, tmp_path_factory.mktemp("twin") / "target")


def test_it_answers_and_drafts_like_the_multimodal_layout(
    start, twin, packed_nextn, prompts
):
    expected = complete_all(packed_nextn, prompts, max_tokens=64)
    with start(twin, "specpack", "NEXTN") as server:
        completions = complete_all(server, prompts, max_tokens=64)
    assert agreement(completions, expected) >= len(prompts) - 1
    assert accept_length(completions) >= 0.98 * accept_length(expected)
