"""The environment llm-compressor lives in: its pins conflict with SGLang's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from specpack.recipes.progress import run_with_progress
from specpack.recipes.schemes import QuantizeError

VARIABLE = "SPECPACK_QUANTIZE_PYTHON"
# requirements/quantize.txt has the same lines, for those who make it by hand.
PINS = ("llmcompressor==0.14.0", "compressed-tensors==0.19.0", "torch==2.13.0")
_PRINT_VERSIONS = """
import sys
from importlib.metadata import PackageNotFoundError, version
for pin in sys.argv[1:]:
    try:
        print(pin + "==" + version(pin).split("+")[0])
    except PackageNotFoundError:
        print(pin + " is not installed")
"""


def quantize_python() -> Path:
    """The interpreter that has llm-compressor, made on first use (1.5 GB).

    Raises:
        QuantizeError: it cannot be made, or the one the user named has other pins.
    """
    named = os.environ.get(VARIABLE)
    if named:
        wrong = _wrong_pins(Path(named))
        if wrong:
            raise QuantizeError(
                f"{VARIABLE}={named} {wrong}: run `{named} -m pip install "
                f"{' '.join(PINS)}`, or unset the variable"
            )
        return Path(named)
    home = default_home()
    python = home / "bin" / "python"
    if _wrong_pins(python):
        _make(home)
    return python


def default_home() -> Path:
    """.venv-quantize in this checkout, or in the user's cache when installed."""
    checkout = Path(__file__).resolve().parents[3]
    if (checkout / "requirements" / "quantize.txt").is_file():
        return checkout / ".venv-quantize"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "specpack" / ".venv-quantize"


def _wrong_pins(python: Path) -> str | None:
    """What is wrong with the interpreter, None when it has every pin."""
    names = [pin.split("==")[0] for pin in PINS]
    command = [str(python), "-I", "-c", _PRINT_VERSIONS, *names]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "is not a Python that runs"
    wrong = [line for line in found.stdout.splitlines() if line not in PINS]
    return f"has the wrong packages ({', '.join(wrong)})" if wrong else None


def _make(home: Path) -> None:
    print(
        f"Making {home} for {PINS[0]}, once; it takes about 1.5 GB and some minutes.",
        file=sys.stderr,
    )
    python = str(home / "bin" / "python")
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [python, "-m", "pip", "install", "--no-input", "--progress-bar=off", *PINS],
    )
    for command in steps:
        try:
            status, tail = run_with_progress(command, "llm-compressor", _pip_status)
        except OSError as error:
            status, tail = 1, [str(error)]
        if status:
            raise QuantizeError(
                f"cannot make {home} ({_last_error(tail)}): make it yourself with "
                f"`python3 -m venv {home} && {python} -m pip install "
                f"{' '.join(PINS)}`, or set {VARIABLE}"
            )


def _pip_status(line: str) -> str | None:
    known = line.startswith(("Collecting", "Downloading", "Installing"))
    return line.split(" (")[0][:50] if known else None


def _last_error(tail: list[str]) -> str:
    errors = [line for line in tail if line.upper().startswith("ERROR")]
    return (errors or tail)[-1]
