"""The command line: each command is owned by the module that adds its parser."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

import specpack

COMMANDS = (
    "specpack.status",
    "specpack.export.command",
    "specpack.recipes.cli",
    "specpack.evals.cli",
)
"""Modules with `add_parser(subparsers)`, which sets `run(arguments) -> int`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        status = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever reads, such as `head`, has enough; the interpreter's own last flush
        # must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def build_parser() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = argparse.ArgumentParser(prog="specpack", description=specpack.__doc__)
    parser.add_argument("--version", action="version", version=specpack.__version__)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        import_module(module).add_parser(subparsers)
    return parser
