"""``accept_length.png``: accept length per run, and correct drafts by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specpack.evals.client import Answer

Row = Mapping[str, Any]
HINT = "accept_length.png needs matplotlib: pip install 'sglang-specpack[eval]'"


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def per_request(answers: Mapping[int, Answer]) -> list[float]:
    """Each request's own accept length; those without a verify step have none."""
    return [
        a.completion_tokens / a.spec_verify_ct
        for a in answers.values()
        if a.spec_verify_ct
    ]


def plot(
    rows: Sequence[Row], answers: Mapping[str, Mapping[int, Answer]], path: Path
) -> None:
    """Draw the rows that speculate; nothing is drawn where none does."""
    from matplotlib.figure import Figure

    drawn = [row for row in rows if per_request(answers[row["name"]])]
    if not drawn:
        return
    figure = Figure(figsize=(15, 1.8 + 0.45 * len(drawn)), layout="constrained")
    lengths, shares = figure.subplots(1, 2)
    draw_lengths(lengths, drawn, answers)
    draw_shares(shares, drawn)
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=100, metadata={"Software": None})


def draw_lengths(
    axes: Any, rows: Sequence[Row], answers: Mapping[str, Mapping[int, Answer]]
) -> None:
    spreads = [per_request(answers[row["name"]]) for row in rows]
    places = range(len(rows), 0, -1)  # the first row on top
    axes.boxplot(spreads, positions=places, orientation="horizontal", widths=0.5)
    means = [(row["accept_length"], at) for row, at in zip(rows, places, strict=True)]
    if known := [(value, at) for value, at in means if value is not None]:
        axes.plot(*zip(*known), "D", color="tab:red")
    axes.set_yticks(places, [row["name"] for row in rows])
    axes.set_xlabel("accept length (boxes: per request; ◆ mean of all windows)")
    axes.grid(axis="x", alpha=0.3)


def whole_shares(row: Row, rows: Sequence[Row]) -> list[float]:
    """A share for every position: SGLang leaves out those that no draft ever reached."""
    alike = [r for r in rows if r["speculation"] == row["speculation"]]
    positions = max(len(r["correct_draft_shares"]) for r in alike)
    shares = row["correct_draft_shares"]
    return [*shares, *[0.0] * (positions - len(shares))]


def draw_shares(axes: Any, rows: Sequence[Row]) -> None:
    """Stock dashed, and wider than specpack, which would hide the same values."""
    for at, row in enumerate(rows):
        shares = whole_shares(row, rows)
        style, width = ("--", 3.5) if row["sglang"] == "stock" else ("o-", 1.2)
        look = {"lw": width, "ms": 4, "color": f"C{at}", "label": row["name"]}
        axes.plot(range(1, len(shares) + 1), shares, style, **look)
    axes.set_ylim(0, 1.02)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of verify steps correct so far")
    axes.grid(alpha=0.3)
