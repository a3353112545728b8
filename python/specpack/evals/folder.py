"""The folder of an evaluation: what is finished stays, whatever ends the command."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specpack.evals.client import Answer, Failure
from specpack.evals.errors import EvalError

SETTING = "setting.json"
ATTEMPTS = "attempts.jsonl"
Record = Answer | Failure


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Folder:
    """``path`` holds the setting, a line per server start, completions and logs."""

    path: Path

    def completions(self, run: str) -> Path:
        return self.path / "completions" / f"{run}.jsonl"

    def new_log(self, run: str) -> Path:
        """The log of the run's next server."""
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        return logs / f"{run}-{len(list(logs.glob(f'{run}-[0-9]*.log'))) + 1}.log"

    def append(self, run: str, record: Record) -> None:
        append_line(self.completions(run), asdict(record))

    def answers(self, run: str) -> dict[int, Record]:
        """What each request has come to, by id; a later line replaces an earlier."""
        found = map(record_of, read_lines(self.completions(run)))
        return {record.id: record for record in found}

    def note(self, run: str, **facts: Any) -> None:
        """Remember a start of the run's server, or the error that ended it."""
        append_line(self.path / ATTEMPTS, {"run": run, **facts})

    def notes(self, run: str) -> list[dict[str, Any]]:
        lines = read_lines(self.path / ATTEMPTS)
        return [line for line in lines if line["run"] == run]

    def starts(self, run: str) -> list[dict[str, Any]]:
        return [note for note in self.notes(run) if "log" in note]

    def error(self, run: str) -> str | None:
        """Why the run's last start ended early; None where nothing did."""
        notes = self.notes(run)
        return notes[-1].get("error") if notes else None


def record_of(line: Mapping[str, Any]) -> Record:
    kind = Failure if "error" in line else Answer
    values = {f.name: line[f.name] for f in fields(kind)}
    return kind(**{k: tuple(v) if type(v) is list else v for k, v in values.items()})


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    line = json.dumps(value, sort_keys=True, ensure_ascii=False) + "\n"
    with path.open("ab") as opened:
        opened.write(line.encode())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a jsonl file, without a last one that was cut short.

    Raises:
        EvalError: another line is not JSON.
    """
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    try:
        return [json.loads(line) for line in whole]
    except ValueError:
        raise EvalError(f"{path} is damaged: remove it and run again") from None


def mend(path: Path) -> None:
    """Drop a last line that a kill cut short, before more is appended."""
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


@contextmanager
def opened(path: Path, setting: Mapping[str, Any]) -> Iterator[Folder]:
    """The folder of this setting, for one command at a time.

    Raises:
        EvalError: another command writes it, or it was begun with another setting.
    """
    (path / "completions").mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EvalError(f"another specpack eval is writing {path}") from None
        keep_setting(path, json.loads(as_json(setting)))
        for written in (*path.glob("completions/*.jsonl"), *path.glob(ATTEMPTS)):
            mend(written)
        yield Folder(path)


def keep_setting(path: Path, setting: dict[str, Any]) -> None:
    kept = path / SETTING
    if not kept.exists():
        partial = path / f"{SETTING}.partial"
        partial.write_text(as_json(setting))
        partial.replace(kept)
        return
    old = json.loads(kept.read_text())
    for name, before, now in differences(old, setting):
        raise EvalError(
            f"{path} was begun with {name} = {before}, now it is {now}: choose another "
            "--out, or remove the folder to begin again"
        )


def differences(old: Any, new: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of each leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = {k: (old.get(k), new.get(k)) for k in [*new, *(set(old) - set(new))]}
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = {str(i): pair for i, pair in enumerate(zip(old, new, strict=True))}
    else:
        pairs = {}
        if old != new:
            yield name, json.dumps(old)[:100], json.dumps(new)[:100]
    for key, (before, now) in pairs.items():
        yield from differences(before, now, f"{name}.{key}" if name else key)
