"""What the plugin costs a process: at its start, and in each guarded call.

    python benchmark/plugin_cost.py [--repeats 7]

The start is timed in fresh processes: once as it is, once after everything that is not
specpack's own has been imported (an SGLang process imports that anyway). The guarded
calls are the two that a decode step makes, on a dense head, which they let through.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

START = """
import importlib, json, sys, time
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
before, start = set(sys.modules), time.perf_counter()
from specpack.plugin import register
register()
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
CALLS = """
import json, timeit
from specpack.plugin import register
register()
import torch
from sglang.srt.layers import logits_processor as module
from specpack.seams.attach import original
head = torch.nn.Linear(8, 8, bias=False)
ours = module.should_apply_lm_head_quant_method
theirs = original(ours)
assert ours is not theirs, "the gate is not patched"
number = 20000
times = [min(timeit.repeat(lambda: f(head, None), number=number, repeat=7)) / number
         for f in (theirs, ours)]
print(json.dumps(times))
"""


def measured(code: str, *arguments: str) -> list:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def start_seconds(repeats: int, already: list[str]) -> float:
    names = json.dumps(already)
    return statistics.median(measured(START, names)[0] for _ in range(repeats))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    _, imported = measured(START, "[]")
    others = [name for name in imported if name.split(".")[0] != "specpack"]
    whole, own = start_seconds(repeats, []), start_seconds(repeats, others)
    print(f"register(): {whole * 1e3:.1f} ms in an empty process, {own * 1e3:.1f} ms")
    print(f"beyond the {len(others)} other modules it imports (goal: 50 ms)")
    theirs, ours = measured(CALLS)
    print(f"the head's gate on a dense head: {theirs * 1e6:.2f} µs by itself, ", end="")
    print(f"{ours * 1e6:.2f} µs with its guard: {(ours - theirs) * 1e6:.2f} µs a call")
    return 0


if __name__ == "__main__":
    sys.exit(main())
