"""Which model classes share a quantized lm_head: the table of docs/models.md.

Runs what test/registered/unit/spec/lm_head_classes.py judges, with the plugins loaded,
and compares it with the document. Exits 1 when they differ; `--write` rewrites it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "models.md"
BEGIN, END = (
    f"<!-- sharing: {word}; python test/models.py --write -->\n"
    for word in ("begin", "end")
)
Row = tuple[str, str, str]


def judged() -> list[Row]:
    """The rows, from SGLang with its plugins."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    sys.path.insert(0, str(ROOT / "test" / "registered" / "unit" / "spec"))
    from sglang.srt.plugins import load_plugins
    from sglang.test.layer_ut_utils import init_single_process_dist

    load_plugins()
    init_single_process_dist()
    from lm_head_classes import rows

    return rows()


def table(rows: Iterable[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| class | its head, lent to a draft | its head as a draft |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{name}` | {target} | {draft} |" for name, target, draft in rows]
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Judge, compare or rewrite; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="rewrite the document")
    write = parser.parse_args().write
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    new = table(judged())
    if write:
        DOCUMENT.write_text(before + BEGIN + new + END + after)
        return 0
    if old != new:
        print(f"{DOCUMENT.relative_to(ROOT)} is stale: python test/models.py --write")
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main())
