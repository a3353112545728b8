"""Progress of an evaluation: a bar with the time left, or now and then a line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SECONDS_BETWEEN_LINES = 30.0


@dataclass
class Reporter:
    """Says which run is at work and how many of all requests have ended."""

    console: Console
    total: int
    done: int

    def __post_init__(self) -> None:
        self.begun, self.at_begin = time.monotonic(), self.done
        self.next_line = self.begun + SECONDS_BETWEEN_LINES
        self.name = ""

    def at(self, name: str) -> None:
        """Another run, or another stage of one."""
        self.name = name
        self.say(f"{name} ({self.done}/{self.total} requests)")

    def advance(self) -> None:
        self.done += 1
        if time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + SECONDS_BETWEEN_LINES
            left = format_seconds(self.seconds_left())
            self.say(f"{self.name}: {self.done}/{self.total} requests, {left} left")

    def drop(self, requests: int) -> None:
        """So many will not be asked."""
        self.total -= requests

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def seconds_left(self) -> float:
        spent = time.monotonic() - self.begun
        return spent / (self.done - self.at_begin) * (self.total - self.done)


@dataclass
class Bar(Reporter):
    """The same on a terminal."""

    progress: Progress

    def __post_init__(self) -> None:
        self.task = self.progress.add_task("", total=self.total, completed=self.done)

    def at(self, name: str) -> None:
        self.progress.update(self.task, description=name)

    def drop(self, requests: int) -> None:
        super().drop(requests)
        self.progress.update(self.task, total=self.total)

    def advance(self) -> None:
        self.progress.advance(self.task)


def format_seconds(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


@contextmanager
def reporting(console: Console, total: int, done: int) -> Iterator[Reporter]:
    """A reporter for ``total`` requests, ``done`` of which an earlier command did."""
    if not console.is_terminal:
        yield Reporter(console, total, done)
        return
    columns = (
        TextColumn("{task.description}"),
        *(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console) as progress:
        yield Bar(console, total, done, progress)
