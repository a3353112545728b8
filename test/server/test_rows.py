"""The demo's table, row by row, on real servers."""

from __future__ import annotations

import matrix
import pytest

PACKED_STOCK = ("w8a16-packed", "mtp", "stock", "NEXTN")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> matrix.Matrix:
    out = tmp_path_factory.mktemp("rows") / "eval"
    measured = matrix.Matrix(out, examples=16, max_tokens=64)
    assert measured.evaluate() == 0
    return measured


def test_every_row_is_as_the_table_says(measured: matrix.Matrix):
    assert list(measured.wrong()) == []


def test_stock_quotes_the_missing_weight_in_one_line(measured: matrix.Matrix):
    error = measured.report()[PACKED_STOCK]["error"]
    assert matrix.NO_WEIGHT in error
    assert "\n" not in error


def test_the_dense_drafts_are_followed(measured: matrix.Matrix):
    rows = measured.report()
    assert rows[matrix.DENSE_NEXTN]["accept_length"] >= 3.0
    assert rows[matrix.DENSE_DFLASH]["accept_length"] >= 3.5
