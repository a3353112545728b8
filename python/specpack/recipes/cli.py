"""`specpack quantize target|draft`."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType

NOTES = """\
llm-compressor 0.14.0 runs on the CPU, without calibration data, in an environment of
its own: $SPECPACK_QUANTIZE_PYTHON, or .venv-quantize in the checkout or in
~/.cache/specpack, made on first use (1.5 GB). DST appears only when it is complete.
"""
TARGET = """\
Packs a BF16 target: lm_head W8A16, body W4A16 (symmetric, group 128, pack-quantized).
Left as they are: visual tower, MTP layers, in_proj_a/b, conv1d, norms, embeddings.
"""
DRAFT = """\
Packs a BF16 DFlash draft to W8A16 (symmetric, group 128, pack-quantized), fc included.
Left as they are: q/k/v projections, candidate selector, convolutions, norms.
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds `quantize` to the command line."""
    quantize = subparsers.add_parser(
        "quantize",
        help="quantize a target or a draft with llm-compressor",
        description="Quantizes a checkpoint with llm-compressor.",
        epilog=NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = quantize.add_subparsers(dest="kind", required=True, metavar="KIND")
    target = _add_kind(kinds, "target", "lm_head W8A16, body W4A16", TARGET)
    target.add_argument(
        "--head",
        choices=("w8a16", "bf16"),
        default="w8a16",
        help="w8a16 packs lm_head (default); bf16 leaves it dense",
    )
    draft = _add_kind(kinds, "draft", "DFlash draft W8A16", DRAFT)
    draft.add_argument(
        "--all-linears",
        action="store_true",
        help="quantize q/k/v too; SGLang then cannot fuse the context KV projection",
    )


def _add_kind(
    kinds: argparse._SubParsersAction, name: str, help: str, description: str
) -> argparse.ArgumentParser:
    parser = kinds.add_parser(
        name,
        help=help,
        description=description,
        epilog=NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", type=Path, help="BF16 checkpoint")
    parser.add_argument("destination", metavar="DST", type=Path, help="new directory")
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Runs the command; 0 when DST is written, 1 or 128 + signal when not."""
    from specpack.checkpoint import CheckpointError
    from specpack.recipes.quantize import quantize_draft, quantize_target
    from specpack.recipes.schemes import QuantizeError

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        if args.kind == "target":
            table = quantize_target(args.source, args.destination, args.head)
        else:
            table = quantize_draft(args.source, args.destination, args.all_linears)
    except (CheckpointError, QuantizeError) as error:
        return _fail(str(error), 1)
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return _fail(f"{error.strerror}{place}; {args.destination} was not written", 1)
    except Stopped as stopped:
        return _fail(f"stopped; {args.destination} was not written", stopped.status)
    print(f"{table}\n{args.destination} is ready.")
    return 0


class Stopped(BaseException):
    """A signal asked the command to end; `status` is the shell's exit status for it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _stop(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # let the clean-up finish
    raise Stopped(128 + number)


def _fail(message: str, status: int) -> int:
    print(f"specpack quantize: {message}", file=sys.stderr)
    return status
