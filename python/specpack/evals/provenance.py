"""Where a report comes from: each fact by itself, with a value for not knowing it."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("sglang", "sglang-specpack", "sglang-cpu-reference", "torch", "transformers"),
    "compressed-tensors",
)
COMMAND_SECONDS = 10


def command_line() -> str:
    """The command as a shell takes it."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    program = "python -m specpack" if name == "__main__.py" else name
    return " ".join([program, *map(shlex.quote, sys.argv[1:])])


def package_version(name: str) -> str | None:
    """The installed version of a package; None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    return {name: package_version(name) for name in PACKAGES}


def output_of(*command: str) -> str | None:
    """What a command prints; None where it fails or does not exist."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_sha(folder: Path = Path(__file__).parent) -> str | None:
    """The commit of specpack's checkout, "+changes" where files differ from it;
    None for an installed package."""
    git = ("git", "-C", str(folder))
    # An environment inside some other checkout is not a checkout of specpack.
    if output_of(*git, "ls-files", "--error-unmatch", "server.py") is None:
        return None
    sha = output_of(*git, "rev-parse", "HEAD")
    changed = output_of(*git, "status", "--porcelain", "--untracked-files=no")
    return f"{sha}+changes" if sha and changed else sha


def cpu() -> str | None:
    """The processor's name from Linux; None elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(names, None)


def gpus() -> list[str] | None:
    """The name and memory of each NVIDIA GPU; None without a driver."""
    query = ("--query-gpu=name,memory.total", "--format=csv,noheader")
    listed = output_of("nvidia-smi", *query)
    return listed.splitlines() if listed else None


def provenance() -> dict[str, Any]:
    return {
        "command": command_line(),
        "git_sha": git_sha(),
        "python": platform.python_version(),
        "versions": versions(),
        "cpu": cpu(),
        "gpus": gpus(),
    }
