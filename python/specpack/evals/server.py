"""The one server handle: start ``sglang.launch_server``, wait, ask, stop, leave nothing."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

PR_SET_PDEATHSIG = 1  # linux/prctl.h
STOP_SECONDS = 2  # SGLang sleeps 5 s in its own shutdown; nothing of ours is lost
EXCEPTION = re.compile(r"^(?:\S+\] )?(?:[\w.]+\.)?(\w+(?:Error|Exception)): ?(.*)$")
# What SGLang's other processes say of one that has died or does not listen yet.
CONSEQUENCES = (
    "EOFError",
    "BrokenPipeError",
    "Connection refused",
    "Connection reset",
    "Rank 0 scheduler",
    "Initialization failed",
)


class ServerError(RuntimeError):
    """The server did not start, died, or refused a request; one line says why."""


@dataclass(frozen=True)
class Launch:
    """What to start: ``python -m sglang.launch_server --model-path MODEL FLAGS``."""

    model: Path
    flags: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable

    def command(self, port: int) -> list[str]:
        return [
            *(self.python, "-m", "sglang.launch_server"),
            *("--model-path", str(self.model), "--port", str(port)),
            *self.flags,
        ]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def require_free(port: int) -> None:
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            raise ServerError(f"port {port} is in use: choose another one") from None


def exceptions(log: Path) -> tuple[list[str], list[str]]:
    """The exception lines of a server log: causes, and the echoes of others."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    found = [m.group(0) for line in lines if (m := EXCEPTION.match(line))]
    causes = [line for line in found if not any(c in line for c in CONSEQUENCES)]
    return causes, [line for line in found if line not in causes]


def first_exception(log: Path) -> str | None:
    """The first exception line of a server log that is not another one's echo."""
    causes, echoes = exceptions(log)
    return next(iter(causes or echoes), None)


def last_words(log: Path, status: int | None = None) -> str:
    """Why a server ended: its first exception, else the last line of its log.

    Healthy servers log echoes too, so one that was killed without a cause of its own
    has ``status`` -9 for its reason.
    """
    if status == -signal.SIGKILL and not exceptions(log)[0]:
        return "the server was killed, by hand or for want of memory"
    lines = log.read_text(errors="replace").splitlines()
    said = [line for line in lines if line and "server_args=" not in line]
    return first_exception(log) or (said[-1][:2000] if said else "it wrote nothing")


@dataclass
class Server:
    """A running server; ``log`` is where it writes."""

    url: str
    log: Path
    process: subprocess.Popen

    def check_alive(self) -> None:
        if (code := self.process.poll()) is not None:
            reason = last_words(self.log, code)
            raise ServerError(f"{reason} (exit status {code}; log: {self.log})")


def _await_end(process: subprocess.Popen, seconds: float) -> None:
    """A server that dropped a connection is usually dying: let it finish its log."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(process: subprocess.Popen, number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def stop(process: subprocess.Popen) -> None:
    """End the server's whole process group: asked first, then killed."""
    _signal_group(process, signal.SIGTERM)
    _await_end(process, STOP_SECONDS)
    _signal_group(process, signal.SIGKILL)
    process.wait()


def _await_ready(server: Server, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        server.check_alive()
        try:
            if httpx.get(f"{server.url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    reason = last_words(server.log)
    raise ServerError(f"not ready after {seconds:.0f} s: {reason} (log: {server.log})")


@contextmanager
def serve(
    launch: Launch, log: Path, port: int | None = None, ready_seconds: float = 300
) -> Iterator[Server]:
    """A ready server for the ``with`` block; its processes are gone afterwards.

    Raises:
        ServerError: the port is taken, the server ends before it is ready (with the
            first exception of its log) or is not ready in time.
    """
    port = port or free_port()
    require_free(port)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            launch.command(port),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | dict(launch.environment),
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        _await_ready(server, ready_seconds)
        yield server
    finally:
        stop(process)
