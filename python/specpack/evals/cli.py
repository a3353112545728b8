"""`specpack eval`: GSM8K accept length and agreement, side by side."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

USAGE = """\
specpack eval RUN.toml [--out OUT]
       specpack eval --target A [--draft D] [--algorithm DFLASH] [options]
       specpack eval --url URL --server-log FILE [options]
       specpack eval compare OUT_A OUT_B [--json]"""
NOTES = """\
Ask SGLang's GSM8K prompts, greedily and one at a time, and write a folder: report.md,
report.json, completions, server logs, accept_length.png. The same command goes on where
it was stopped. docs/evaluation.md says what the numbers are, and what RUN.toml may hold.
"""
FORMS = "give either RUN.toml, --target or --url (specpack eval --help)"
WITH_FILE = ("words", "out", "run")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds `eval` to the command line."""
    parser = subparsers.add_parser(
        "eval",
        help="GSM8K accept length and agreement of servers, side by side",
        usage=USAGE,
        description=NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="RUN.toml", help="a run file, or compare A B")
    add("--out", type=Path, help="the folder to write (default: out/eval-…)")
    add("--json", action="store_true", help="compare: print JSON")
    _add_server(parser.add_argument_group("the server, without RUN.toml").add_argument)
    _add_asking(parser.add_argument_group("the questions, without RUN.toml"))
    parser.set_defaults(run=run)


def _add_server(add: Any) -> None:
    add("--target", metavar="A", help="checkpoint: a directory or a name on the Hub")
    add("--draft", metavar="D", help="the draft's checkpoint")
    add("--algorithm", help="NEXTN, DFLASH, … (default: none)")
    add("--no-reference", action="store_true", help="only the speculating server")
    add("--sglang", choices=("stock", "specpack"), help="default: specpack")
    add(
        "--flags",
        default="",
        metavar="FLAGS",
        help="of the servers: --flags='--tp 2 …'",
    )
    add("--env", action="append", default=[], metavar="NAME=VALUE")
    add("--port", type=int, help="of the server (default: a free one)")
    add("--ready-seconds", type=float, help="to wait for a server (default: 1800)")
    add("--url", help="a running server instead; its log is needed if it speculates")
    add("--server-log", metavar="FILE", help="where the server at --url writes its log")


def _add_asking(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--data", metavar="JSONL", help="rows of question, answer (default: GSM8K)")
    add("--examples", type=int, help="default: 200")
    add("--num-shots", type=int, help="default: 5, the first rows")
    add("--max-tokens", type=int, help="default: 512")
    add("--temperature", type=float, help="default: 0")
    add("--concurrency", type=int, help="requests at a time (default: 1)")
    add("--api", choices=("chat", "generate"), help="default: chat, as SGLang's eval")
    add("--chat-template-kwargs", metavar="JSON", help="such as enable_thinking")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command: 0, 1 where something is not as it should be, 2 on bad input,
    128 + signal where it was stopped."""
    from specpack.evals.errors import EvalError

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        return _chosen(arguments)(arguments)
    except EvalError as error:
        return _fail(str(error), 2)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return _fail(f"{error.strerror or error}{place}", 1)
    except Stopped as stopped:
        return _fail("stopped; the same command goes on from here", stopped.status)


def _chosen(arguments: argparse.Namespace) -> Any:
    from specpack.evals.command import run_comparison, run_evaluation
    from specpack.evals.errors import EvalError

    words = arguments.words
    if words[:1] == ["compare"]:
        if len(words) != 3:
            raise EvalError("compare takes two folders: compare OUT_A OUT_B")
        return run_comparison
    forms = [bool(words), bool(arguments.target), bool(arguments.url)]
    if sum(forms) != 1 or len(words) > 1:
        raise EvalError(FORMS)
    given = [k for k, v in vars(arguments).items() if v and k not in WITH_FILE]
    if words and given:
        option = given[0].replace("_", "-")
        raise EvalError(f"--{option} cannot change {words[0]}: write it in there")
    return run_evaluation


class Stopped(BaseException):
    """A signal asked the command to end; `status` is the shell's exit status for it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _stop(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # let the server be ended
    raise Stopped(128 + number)


def _fail(message: str, status: int) -> int:
    print(f"specpack eval: {message}", file=sys.stderr)
    return status
