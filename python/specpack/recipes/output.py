"""An output directory that appears whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specpack.recipes.schemes import QuantizeError


@contextmanager
def unfinished(destination: Path) -> Iterator[Path]:
    """A working directory beside `destination`, gone however the block ends.

    The block renames what it made to `destination` with `publish`. A working
    directory left by a killed run is locked by nobody, and is taken over.

    Raises:
        QuantizeError: `destination` exists, or another run is writing it.
    """
    refuse_existing(destination)
    made = [path for path in destination.parents if not path.exists()]
    destination.parent.mkdir(parents=True, exist_ok=True)
    work = destination.parent / f".{destination.name}.partial"
    work.mkdir(exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        _lock(lock, destination)
        try:
            _empty(work)
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
            if not destination.exists():
                _remove_empty(made)
    finally:
        os.close(lock)


def publish(result: Path, destination: Path) -> None:
    """Renames the finished `result`, which is on the same file system."""
    refuse_existing(destination)
    result.rename(destination)


def refuse_existing(destination: Path) -> None:
    if destination.exists() or destination.is_symlink():
        raise QuantizeError(
            f"{destination} exists: remove it or give another destination"
        )


def _lock(descriptor: int, destination: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise QuantizeError(f"another run is writing {destination}: wait for it") from (
            None
        )


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _remove_empty(directories: list[Path]) -> None:
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return
