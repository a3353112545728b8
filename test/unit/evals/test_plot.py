"""The picture shows what collapsed as zeros, not as nothing."""

from __future__ import annotations

from specpack.evals.plot import whole_shares


def row(speculation: str, *shares: float) -> dict:
    return {"speculation": speculation, "correct_draft_shares": list(shares)}


def test_positions_that_no_draft_reached_are_zero():
    collapsed, healthy = row("DFLASH"), row("DFLASH", 0.9, 0.8)
    assert whole_shares(collapsed, [collapsed, healthy]) == [0.0, 0.0]
    assert whole_shares(healthy, [collapsed, healthy]) == [0.9, 0.8]


def test_another_speculation_has_its_own_positions():
    nextn, dflash = row("NEXTN", 0.9), row("DFLASH", 0.9, 0.8)
    assert whole_shares(nextn, [nextn, dflash]) == [0.9]
