"""The scheduler's own accept length: one value for every window of decode steps.

SGLang logs a line every ``--decode-log-interval`` decode steps:

    [time] Decode batch, #running-req: 1, …, accept len: 3.88, accept rate: 0.96, …
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# "block accept len" is another quantity, on the same line with DSpark.
WINDOW = re.compile(rb"Decode batch\b[^\n]*?(?<!block )\baccept len: (\d+\.\d+)")


def windows(content: bytes) -> list[float]:
    """The accept length of every window whose line is in ``content``."""
    return [float(value) for value in WINDOW.findall(content)]


def windows_of(log: Path, start: int) -> list[float]:
    """The windows that ``log`` holds from byte ``start`` on."""
    with log.open("rb") as opened:
        opened.seek(start)
        return windows(opened.read())


@dataclass
class Follower:
    """Copies what a log gains, so that it survives the log and its server."""

    source: Path
    copy: Path
    position: int

    def pull(self) -> None:
        with self.source.open("rb") as opened:
            opened.seek(self.position)
            gained = opened.read()
        with self.copy.open("ab") as opened:
            opened.write(gained)
        self.position += len(gained)


def follow(source: Path, copy: Path) -> Follower:
    """Follow ``source`` from its present end."""
    copy.touch()
    return Follower(source, copy, source.stat().st_size)
