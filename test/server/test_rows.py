"""The demo's table, row by row, on real servers."""

from __future__ import annotations

import demo
import pytest

PACKED_STOCK = ("w8a16-packed", "mtp", "stock", "NEXTN")


@pytest.fixture(scope="module")
def measured() -> demo.Measured:
    return demo.measure(demo.held_out_prompts(16), max_tokens=64)


def test_every_row_is_as_the_table_says(measured: demo.Measured):
    assert list(demo.wrong(*measured)) == []


def test_stock_quotes_the_missing_weight_in_one_line(measured: demo.Measured):
    rows, _ = measured
    assert demo.NO_WEIGHT in rows[PACKED_STOCK].error
    assert "\n" not in rows[PACKED_STOCK].error


def test_the_dense_drafts_are_followed(measured: demo.Measured):
    rows, _ = measured
    assert rows[demo.DENSE_NEXTN].accept_length >= 3.0
    assert rows[demo.DENSE_DFLASH].accept_length >= 3.5
