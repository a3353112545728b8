"""What is evaluated: the run file's tables, or the same from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from specpack.evals.errors import EvalError

BRANCHES = ("stock", "specpack")
APIS = ("chat", "generate")
FILE_NAME = re.compile(r"[\w.+-]+")
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
CPU_ENGINE = "SGLANG_USE_CPU_ENGINE"
SPECULATION = {
    "NEXTN": (
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", "4"),
    ),
}
"""Flags of an algorithm besides its name; a DFLASH draft's config has its block size."""


@dataclass(frozen=True)
class Run:
    """One server of the evaluation.

    ``target`` and ``draft`` are directories or names on the Hugging Face Hub;
    ``target_head`` and ``draft_label`` are what the table calls them. ``fails`` is text
    of the error that the run must end with. ``url`` is a server that runs already;
    ``server_log`` is where it writes.
    """

    name: str = ""
    target: str = ""
    sglang: str = "specpack"
    algorithm: str = "none"
    draft: str = ""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    reference: str = ""
    fails: str = ""
    target_head: str = ""
    draft_label: str = ""
    url: str = ""
    server_log: str = ""


@dataclass(frozen=True)
class Evaluation:
    """Everything that decides what is asked of which servers."""

    runs: tuple[Run, ...] = ()
    data: str = ""
    examples: int = 200
    num_shots: int = 5
    max_tokens: int = 512
    temperature: float = 0.0
    concurrency: int = 1
    api: str = "chat"
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reference: str = ""
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    ready_seconds: float = 1800.0
    request_seconds: float = 3600.0


WAYS = ("port", "ready_seconds", "request_seconds")
"""Fields that change how long one waits, not what is measured."""


def from_file(path: Path) -> Evaluation:
    """The evaluation of a run file; relative paths in it start at its folder.

    Raises:
        EvalError: it cannot be read, or says something that cannot be done.
    """
    try:
        import tomllib
    except ModuleNotFoundError:  # before Python 3.11
        import tomli as tomllib
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise EvalError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise EvalError(f"{path} is not TOML: {error}") from None
    try:
        return from_table(table, path.parent)
    except EvalError as error:
        raise EvalError(f"{path}: {error}") from None


def from_table(table: Mapping[str, Any], base: Path) -> Evaluation:
    """The evaluation that a run file's ``table`` in the folder ``base`` describes."""
    runs = table.get("runs")
    if not isinstance(runs, list) or not all(isinstance(r, Mapping) for r in runs):
        raise EvalError("no [[runs]] table says which servers to evaluate")
    top = {k: v for k, v in table.items() if k != "runs"}
    whole = _record(Evaluation, top, "the file")
    resolved = [_run(r, n, whole, base) for n, r in enumerate(runs, 1)]
    data = str(_against(base, whole.data)) if whole.data else ""
    whole = Evaluation(**{**_shallow(whole), "runs": tuple(resolved), "data": data})
    _check(whole)
    return whole


def _run(table: Mapping[str, Any], number: int, whole: Evaluation, base: Path) -> Run:
    run = _record(Run, table, f"run {number}")
    values = _shallow(run)
    values["flags"] = (*whole.flags, *run.flags)
    values["environment"] = {**whole.environment, **run.environment}
    values["reference"] = run.reference or whole.reference
    values["name"] = run.name or _default_name(run)
    for name in ("target", "draft"):
        if text := values[name]:
            values[name] = _checkpoint(text, base)
    if run.server_log:
        values["server_log"] = str(_against(base, run.server_log))
    return Run(**values)


def _default_name(run: Run) -> str:
    if run.url:
        return "server"
    return f"{Path(run.target).name}-{run.sglang}-{run.algorithm}"


def _against(base: Path, path: str) -> Path:
    return base / Path(path).expanduser()


def _checkpoint(text: str, base: Path) -> str:
    """The directory ``text`` names, else the name on the Hub that it may be."""
    path = _against(base, text)
    if (path / "config.json").is_file():
        return str(path.resolve())
    if path.exists():
        raise EvalError(f"{path} has no config.json: give a checkpoint's directory")
    if HUB_NAME.fullmatch(text) and not (base / text).parent.is_dir():
        return text
    raise EvalError(f"there is no checkpoint at {path}")


def _shallow(record: Any) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _record(kind: type, table: Mapping[str, Any], where: str) -> Any:
    """A ``kind`` from a table whose keys and types are its fields'."""
    known = {f.name: f for f in fields(kind) if f.name != "runs"}
    for name, value in table.items():
        if name not in known:
            raise EvalError(f"{where} has the unknown key {name}: {', '.join(known)}")
        _check_type(_default(known[name]), name, value, where)
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    return kind(**values)


def _default(known: Any) -> Any:
    made = known.default_factory
    return known.default if made is MISSING else made()


def _check_type(default: Any, name: str, value: Any, where: str) -> None:
    """A value must be of the kind that the field's default has."""
    right = isinstance(value, type(default)) and not isinstance(value, bool)
    kind = type(default).__name__
    if isinstance(default, float):
        right, kind = _is_number(value), "number"
    elif isinstance(default, tuple):
        right, kind = _all_strings(value, list), "list of strings"
    elif name == "environment":
        right = isinstance(value, Mapping) and _all_strings(list(value.values()), list)
        kind = "table of strings"
    if not right:
        raise EvalError(f"{where}: {name} must be a {kind}, not {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _all_strings(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and all(isinstance(v, str) for v in value)


def _check(whole: Evaluation) -> None:
    for name in ("examples", "max_tokens", "concurrency"):
        if getattr(whole, name) < 1:
            raise EvalError(f"{name} must be at least 1")
    if whole.num_shots < 0 or whole.temperature < 0:
        raise EvalError("num_shots and temperature cannot be negative")
    if whole.api not in APIS:
        raise EvalError(f"api must be one of {', '.join(APIS)}, not {whole.api}")
    if not whole.runs:
        raise EvalError("no [[runs]] table says which servers to evaluate")
    names = [run.name for run in whole.runs]
    for run in whole.runs:
        _check_run(run, names)


def _check_run(run: Run, names: list[str]) -> None:
    if names.count(run.name) > 1:
        raise EvalError(f"two runs are called {run.name}: give each its own name")
    if not FILE_NAME.fullmatch(run.name):
        raise EvalError(f"the run's name {run.name!r} is no file name")
    if bool(run.url) == bool(run.target):
        raise EvalError(f"run {run.name} needs either a target or a url")
    if run.sglang not in BRANCHES:
        raise EvalError(f"run {run.name}: sglang must be {' or '.join(BRANCHES)}")
    if run.reference and run.reference not in names:
        raise EvalError(f"run {run.name}: its reference {run.reference} is no run")


def plugins(run: Run, environment: Mapping[str, str]) -> str:
    """``SGLANG_PLUGINS`` of a branch; "none" is a name that no plugin has."""
    on_cpu = environment.get(CPU_ENGINE) == "1"
    loaded = ["cpu-reference"] * on_cpu + ["specpack"] * (run.sglang == "specpack")
    return ",".join(loaded) or "none"


def server_flags(run: Run) -> tuple[str, ...]:
    """The flags after the model path; a run's own flags win over an algorithm's."""
    if run.algorithm == "none":
        return run.flags
    flags = ("--speculative-algorithm", run.algorithm)
    flags += SPECULATION.get(run.algorithm, ())
    if run.draft:
        flags += ("--speculative-draft-model-path", run.draft)
    return flags + run.flags


def as_setting(whole: Evaluation) -> dict[str, Any]:
    """What must not change between a start and its resumption."""
    setting = {k: v for k, v in asdict(whole).items() if k not in WAYS}
    del setting["flags"], setting["environment"], setting["reference"]
    return setting | {"data": Path(whole.data).name}
