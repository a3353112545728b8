"""Which registered unit tests fail on SGLang without the fixes: `make test-stock`.

Runs test/registered/unit with the plugin `specpack` left out and compares the
tests that fail with test/stock_failures.txt. Exits 1 when they differ: a test that
stopped failing no longer shows its fault, one that started failing shows a new one.
`--write` rewrites the list.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "test" / "stock_failures.txt"
TESTS = "test/registered/unit"


class Outcomes:
    """Collects node ids; a failed subtest counts for its test."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        self.failed: set[str] = set()
        self.broken: set[str] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.broken.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran.add(report.nodeid)
        if report.failed:
            self.failed.add(report.nodeid)


def run_on_stock() -> Outcomes:
    """Run the tests on SGLang with the CPU runtime only."""
    os.environ["SGLANG_PLUGINS"] = "cpu-reference"
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.chdir(ROOT)
    outcomes = Outcomes()
    pytest.main([TESTS, "-q", "--tb=no", "-p", "no:warnings"], plugins=[outcomes])
    return outcomes


def differences(outcomes: Outcomes, kept: set[str]) -> list[str]:
    """What differs from the kept list, a line each; no tests at all differ too."""
    lines = [f"cannot be collected: {name}" for name in sorted(outcomes.broken)]
    if not outcomes.ran:
        lines.append(f"no test ran in {TESTS}")
    lines += [f"passes on stock: {n}" for n in sorted(kept - outcomes.failed)]
    lines += [f"fails on stock: {n}" for n in sorted(outcomes.failed - kept)]
    return lines


def main() -> int:
    """Run, compare or rewrite; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="rewrite the kept list")
    write = parser.parse_args().write
    outcomes = run_on_stock()
    if write:
        KEPT.write_text("".join(f"{name}\n" for name in sorted(outcomes.failed)))
    lines = differences(outcomes, set(KEPT.read_text().split()))
    print(f"{len(outcomes.failed)} of {len(outcomes.ran)} tests fail on stock SGLang")
    for line in lines:
        print(f"not as {KEPT.relative_to(ROOT)} says: {line}")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
