"""Runs an evaluation: one server after the other, only the requests still missing."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from specpack.evals.client import (
    Answer,
    Endpoint,
    Failure,
    Remote,
    Sampling,
    ask,
    server_info,
)
from specpack.evals.decode_log import follow
from specpack.evals.errors import EvalError
from specpack.evals.folder import Folder
from specpack.evals.gsm8k import Problem
from specpack.evals.parallel import in_threads
from specpack.evals.progress import Reporter
from specpack.evals.provenance import provenance
from specpack.evals.server import Launch, ServerError, serve
from specpack.evals.settings import CPU_ENGINE, Evaluation, Run, plugins, server_flags

HOPELESS = 10  # failures before the first answer, after which a run is given up
LOG_SECONDS = 1.0  # for a remote server's last window to reach its log


@dataclass(frozen=True)
class Started:
    """A server ready to be asked, and where in ``log`` its windows begin."""

    endpoint: Endpoint
    log: Path | None
    start: int
    pull: Callable[[], None] = lambda: None


def missing(folder: Folder, run: Run, problems: Sequence[Problem]) -> list[Problem]:
    """The problems without an answer; those that failed are asked again."""
    answers = folder.answers(run.name)
    return [p for p in problems if not isinstance(answers.get(p.id), Answer)]


def is_finished(folder: Folder, run: Run, problems: Sequence[Problem]) -> bool:
    """Nothing is left to ask, or the run has ended with the error it must end with."""
    error = folder.error(run.name)
    if error is not None:
        return bool(run.fails) and run.fails in error
    return not missing(folder, run, problems)


def evaluate(
    whole: Evaluation, problems: Sequence[Problem], folder: Folder, reporter: Reporter
) -> None:
    """Bring every run to its end; what a server dies of is noted, and the next begun.

    Raises:
        EvalError: a setting cannot be carried out.
    """
    for run in whole.runs:
        if is_finished(folder, run, problems):
            continue
        try:
            evaluate_run(run, whole, problems, folder, reporter)
        except ServerError as error:
            folder.note(run.name, error=str(error))
            reporter.say(f"{run.name} fails: {error}")
            reporter.drop(len(missing(folder, run, problems)))


def evaluate_run(
    run: Run,
    whole: Evaluation,
    problems: Sequence[Problem],
    folder: Folder,
    reporter: Reporter,
) -> None:
    reporter.at(f"{run.name}: waiting for the server")
    with started(run, whole, folder) as server:
        info = server_info(server.endpoint)
        require_same_server(run, folder, info)
        speculates = require_speculation(run, info)
        folder.note(
            run.name,
            log=server.log and str(server.log.relative_to(folder.path)),
            start=server.start,
            server=info,
            began=time.time(),
            provenance=provenance_of(run, info),
        )
        reporter.at(run.name)
        todo = missing(folder, run, problems)
        with httpx.Client(timeout=whole.request_seconds) as client:
            question = partial(ask, client, server.endpoint)
            answer = partial(
                question, sampling=sampling_of(whole), speculates=speculates
            )
            for record in in_threads(answer, todo, whole.concurrency):
                folder.append(run.name, record)
                server.pull()
                reporter.advance()
                give_up_if_hopeless(folder, run, record)


def provenance_of(run: Run, info: Mapping[str, Any]) -> dict[str, Any]:
    """Of a server at a url, this machine and its packages say nothing."""
    if not run.url:
        return provenance()
    unknown = {"cpu": None, "gpus": None, "python": None}
    return provenance() | unknown | {"versions": {"sglang": info["version"]}}


def sampling_of(whole: Evaluation) -> Sampling:
    return Sampling(
        whole.api, whole.max_tokens, whole.temperature, whole.chat_template_kwargs
    )


def give_up_if_hopeless(folder: Folder, run: Run, record: Answer | Failure) -> None:
    if isinstance(record, Failure):
        records = folder.answers(run.name).values()
        if len(records) >= HOPELESS and all(isinstance(r, Failure) for r in records):
            raise ServerError(
                f"the first {len(records)} requests failed, the last with {record.error}"
            )


@contextmanager
def started(run: Run, whole: Evaluation, folder: Folder) -> Iterator[Started]:
    """The run's server: its own, gone afterwards, or the one at its url."""
    log = folder.new_log(run.name)
    if run.url:
        with attached(run, log) as server:
            yield server
        return
    port = whole.port or None
    with serve(launch_of(run), log, port, whole.ready_seconds) as server:
        yield Started(server, log, log.stat().st_size)


def launch_of(run: Run) -> Launch:
    """The run's server, with the plugins of its branch."""
    inherited = {k: v for k, v in os.environ.items() if k == CPU_ENGINE}
    environment = inherited | dict(run.environment)
    environment.setdefault("SGLANG_PLUGINS", plugins(run, environment))
    return Launch(Path(run.target), server_flags(run), environment)


def as_shell(run: Run) -> str:
    """The command that starts the run's server, without its port."""
    if run.url:
        return f"# already running at {run.url}"
    launch = launch_of(run)
    settings = sorted(launch.environment.items())
    words = ["python", *launch.command(port=0)[1:]]
    at = words.index("--port")
    command = shlex.join([*words[:at], *words[at + 2 :]])
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in settings), command])


@contextmanager
def attached(run: Run, log: Path) -> Iterator[Started]:
    """The server at the run's url, whose log is followed from now on."""
    endpoint = Remote(run.url.rstrip("/"))
    endpoint.check_alive()
    if not run.server_log:
        yield Started(endpoint, None, 0)
        return
    try:
        follower = follow(Path(run.server_log), log)
    except OSError as error:
        raise EvalError(f"{run.server_log} cannot be read: {error.strerror}") from None
    try:
        yield Started(endpoint, log, 0, follower.pull)
    finally:
        time.sleep(LOG_SECONDS)
        follower.pull()


def require_same_server(run: Run, folder: Folder, info: Mapping[str, Any]) -> None:
    """A run that is resumed must find the server it was begun with."""
    for start in folder.starts(run.name):
        changed = [k for k in info if info[k] != start["server"].get(k)]
        for name in changed:
            raise EvalError(
                f"run {run.name} was begun on a server with {name} = "
                f"{start['server'].get(name)}, this one has {info[name]}"
            )


def require_speculation(run: Run, info: Mapping[str, Any]) -> bool:
    """Whether the server speculates; what is asked of the run must fit that."""
    speculates = info["speculative_algorithm"] not in (None, "NONE")
    if run.algorithm != "none" and not speculates:
        raise ServerError(f"the server does not speculate: {run.algorithm} was asked")
    if run.url and speculates and not run.server_log:
        raise EvalError(
            f"the server at {run.url} speculates, and its accept length is read from "
            "its log: pass --server-log FILE"
        )
    return speculates
