"""The demo's table, row by row, on real servers."""

from __future__ import annotations

import demo
import pytest


@pytest.fixture(scope="module")
def measured() -> tuple[dict, dict]:
    return demo.measure(demo.held_out_prompts(32), max_tokens=64)


def test_every_row_is_as_the_table_says(measured):
    assert list(demo.wrong(*measured)) == []


def test_stock_quotes_the_attribute_error_of_the_packed_head(measured):
    rows, _ = measured
    error = rows["w8a16-packed", "stock", "NEXTN"].error
    assert "'ParallelLMHead' object has no attribute 'weight'" in error
    assert "\n" not in error


def test_the_dense_drafts_are_followed_for_three_tokens_a_step(measured):
    rows, _ = measured
    assert rows["bf16", "stock", "NEXTN"].accept_length >= 3.0
