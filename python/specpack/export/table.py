"""The series against releases, as the table in docs/upstreaming.md.

`python -m specpack.export.table WHEEL...`: a row for each patch, a column for each.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from specpack.seams.source import tree_at
from specpack.seams.verify import Verdict, verify
from specpack.series import SERIES
from specpack.status import together, unpacked

WORDS = {
    "applies": "applies",
    "not needed": "already there",
    "drifted": "drifted",
    "left out": "waits",
}


def main(wheels: Sequence[str]) -> int:
    """Print the table; the exit status."""
    columns = [column(Path(wheel)) for wheel in wheels]
    rows = [["patch", *(version for version, _ in columns)]]
    rows.append(["---"] * len(rows[0]))
    for patch in SERIES:
        rows.append([patch.name, *(words[patch.name] for _, words in columns)])
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0


def column(wheel: Path) -> tuple[str, dict[str, str]]:
    """A release's version and a word for each patch."""
    with unpacked(wheel) as folder:
        tree = folder and tree_at(folder)
        if tree is None:
            raise SystemExit(f"There is no SGLang in {wheel}.")
        verdicts = verify(SERIES, tree, together(SERIES, tree))
        return tree.version, {v.patch.name: word(v) for v in verdicts}


def word(verdict: Verdict) -> str:
    """The state in a word; a drifted patch has a note where its probe could not run."""
    unprobed = verdict.state == "drifted" and verdict.note
    return WORDS[verdict.state] + (", not probed" if unprobed else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
