"""Runs a command quietly, showing one line of progress in place of its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

LINE_WIDTH = 79
SECONDS_BETWEEN_LINES = 15.0


class StatusLine:
    """One line on stderr: rewritten on a terminal, repeated rarely in a log."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.started = time.monotonic()
        self.next_line = self.started
        self.terminal = sys.stderr.isatty()

    def show(self, status: str) -> None:
        now = time.monotonic()
        text = f"{self.label}: {status} ({now - self.started:.0f} s)"[:LINE_WIDTH]
        if self.terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
        elif now >= self.next_line:
            sys.stderr.write(f"{text}\n")
            self.next_line = now + SECONDS_BETWEEN_LINES
        sys.stderr.flush()

    def clear(self) -> None:
        if self.terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def run_with_progress(
    command: Sequence[str],
    label: str,
    status_of: Callable[[str], str | None],
    feed: str = "",
    env: dict[str, str] | None = None,
) -> tuple[int, list[str]]:
    """Runs `command` and returns its exit status and its last lines of output.

    `status_of` turns a line of output into the status to show, or None to keep the
    last one. `feed` is written to standard input, which stays open until the end.
    However this returns or raises, nothing the command started is left running.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    ) as process:
        try:
            tail = _follow(process, StatusLine(label), status_of, feed)
            return process.wait(), tail
        finally:
            _end_group(process)


def _follow(
    process: subprocess.Popen[str],
    line: StatusLine,
    status_of: Callable[[str], str | None],
    feed: str,
) -> list[str]:
    """Shows the status until the command's output ends; its last lines."""
    tail: deque[str] = deque(["it said nothing"], maxlen=20)
    status = ["starting"]

    def collect() -> None:
        for text in filter(None, map(str.strip, process.stdout)):
            tail.append(text)
            status[0] = status_of(text) or status[0]

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    _feed(process, feed)
    try:
        while reader.is_alive():
            line.show(status[0])
            reader.join(timeout=1.0)
    finally:
        line.clear()
    return list(tail)


def _feed(process: subprocess.Popen[str], text: str) -> None:
    try:
        os.write(process.stdin.fileno(), text.encode())
    except BrokenPipeError:
        pass  # the command died at once; its exit status says so


def _end_group(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
