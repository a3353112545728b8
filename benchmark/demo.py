"""The main job on real servers: what a packed head does to speculation, stock and fixed.

    python benchmark/demo.py [--examples 32] [--max-tokens 64] [--fork build/sglang]

Makes the checkpoints and evaluates benchmark/matrix.py with `specpack eval`: a server a
row, on the CPU. Exits 1 when a row is not what it must be. It begins anew unless told to
--resume what --out holds.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

from matrix import ROOT, TABLE, Matrix

from specpack.evals.settings import BRANCHES

OUT = ROOT / "out" / "demo"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--fork", type=Path, help="a tree of `make fork` for specpack")
    parser.add_argument("--out", type=Path, default=OUT, help="default: out/demo")
    parser.add_argument("--branch", choices=BRANCHES, help="only these rows")
    parser.add_argument("--resume", action="store_true", help="go on in --out")
    return parser.parse_args()


def main() -> int:
    options, start = arguments(), time.monotonic()
    matrix = Matrix(
        options.out.resolve(),
        options.examples,
        options.max_tokens,
        keys=tuple(key for key in TABLE if options.branch in (None, key[2])),
        fork=options.fork and options.fork.resolve(),
    )
    if not options.resume and (matrix.out / "setting.json").exists():
        shutil.rmtree(matrix.out)
    status = matrix.evaluate()
    if status > 1:
        return status
    wrong = list(matrix.wrong())
    for fault in wrong:
        print(f"not as it must be: {fault}")
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if wrong else status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, subprocess.CalledProcessError) as error:
        sys.exit(f"demo stopped: {error or 'interrupted'}")
