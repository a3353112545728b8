"""The figures of an evaluated demo matrix: accept length ratios, speed, steps saved.

python benchmark/figures.py [out/eval-matrix]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specpack.evals.compare import Side, compare
from specpack.evals.folder import Folder

RATIOS = (
    ("packed ÷ dense head, NEXTN", "bf16-mtp", "w8a16-packed-mtp", "NEXTN", 0.995),
    (
        *("packed ÷ dense head, DFLASH", "bf16-dflash2-bf16"),
        *("w8a16-packed-dflash2-bf16", "DFLASH", 0.995),
    ),
    (
        *("quantized ÷ BF16 draft, BF16 head", "bf16-dflash2-bf16"),
        *("bf16-dflash2-w8a16", "DFLASH", 0.99),
    ),
    (
        *("quantized ÷ BF16 draft, packed head", "w8a16-packed-dflash2-bf16"),
        *("w8a16-packed-dflash2-w8a16", "DFLASH", 0.99),
    ),
)
Row = Mapping[str, Any]


def ratios(out: Path) -> Iterator[str]:
    """Accept length of one run over another's, each way to count, and the goal."""
    yield "| ratio | goal | windows | per request [95 %] | histogram [95 %] | equal |"
    yield "|---|---|---|---|---|---|"
    for title, left, right, algorithm, goal in RATIOS:
        names = (f"{side}-specpack-{algorithm}" for side in (left, right))
        found = compare(*(Side(Folder(out), name) for name in names))
        lengths = found["accept_length"]
        values = [ratio(lengths[k]) for k in ("windows", "per_request", "histogram")]
        equal = f"{found['equal']}/{found['compared']}"
        yield f"| {title} | ≥ {goal} | {' | '.join(values)} | {equal} |"


def ratio(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    span = found.get("ratio_interval")
    return f"{found['ratio']:.4f}" + (
        f" [{span[0]:.4f}, {span[1]:.4f}]" if span else ""
    )


def speeds(rows: Mapping[str, Row]) -> Iterator[str]:
    """Tokens/s over the reference's, a step's time, and the target steps saved."""
    yield "| run | tokens/s | ÷ plain | ms a step | steps | plain steps | saved |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in rows.items():
        speed = row["tokens_per_second"]
        if not speed:
            continue
        plain = rows[row["reference"] or name]["tokens_per_second"]
        # Without drafts every token but the prefill's takes a step.
        plain_steps = row["completion_tokens"] - row["answered"]
        steps = row["verify_steps"] or plain_steps
        milliseconds = row["completion_tokens"] / speed / steps * 1e3
        saved = 1 - steps / plain_steps
        times = (f"{speed:.1f}", f"{speed / plain:.2f}", f"{milliseconds:.1f}")
        cells = (name, *times, steps, plain_steps, f"{saved:.1%}")
        yield f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/eval-matrix")
    report = json.loads((out / "report.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    print("\n".join([*ratios(out), "", *speeds(rows)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
