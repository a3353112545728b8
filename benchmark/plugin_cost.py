"""What the plugin costs a process: at its start, and in each guarded call.

    python benchmark/plugin_cost.py [--repeats 7]

The start is timed in fresh processes: once as it is, once after everything that is not
specpack's own has been imported (an SGLang process imports that anyway). The guarded
calls are those that a decode step makes, with a dense head, which they let through.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CACHE = str(Path(tempfile.gettempdir()) / "specpack-bytecode")

START = """
import importlib, json, sys, time
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
before, start = set(sys.modules), time.process_time()
from specpack.plugin import register
register()
seconds = time.process_time() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""
CALLS = """
import json, timeit
from specpack.plugin import register
register()
import torch
from sglang.srt.layers import logits_processor
from sglang.srt.managers.scheduler_components import metrics_reporter
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod
from specpack.seams.attach import original

head = torch.nn.Linear(8, 8, bias=False)
head.quant_method = UnquantizedEmbeddingMethod()
x = torch.zeros(1, 8)
processor = logits_processor.LogitsProcessor.__new__(logits_processor.LogitsProcessor)
torch.nn.Module.__init__(processor)
processor.rl_on_policy_target = None
processor.use_fp32_lm_head = processor.do_tensor_parallel_all_gather = False
kind = metrics_reporter.SchedulerMetricsReporter
reporter = kind.__new__(kind)
reporter.reset_metrics()
reporter.spec_first_verify_ct = reporter.spec_num_first_verify_steps
gate = logits_processor.should_apply_lm_head_quant_method
compute = logits_processor.LogitsProcessor._compute_lm_head
metrics = kind.update_spec_metrics
calls = {
    "the head's gate": (gate, head, head.quant_method),
    "_compute_lm_head": (compute, processor, x, head),
    "update_spec_metrics": (metrics, reporter, 1, 3, 4),
}

def best(function, arguments, number=20000):
    return min(timeit.repeat(lambda: function(*arguments), number=number, repeat=9)) / number

with torch.no_grad():
    for name, (ours, *arguments) in calls.items():
        assert original(ours) is not ours, name + " is not patched"
    print(json.dumps({
        name: (best(original(ours), arguments), best(ours, arguments))
        for name, (ours, *arguments) in calls.items()
    }))
"""


def measured(code: str, *arguments: str) -> Any:
    """What ``code`` prints last, with bytecode cached as an installed package has it."""
    cached = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": CACHE}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, env=cached)
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
    print(
        f"register(), CPU time: {whole * 1e3:.1f} ms in an empty process, {own * 1e3:.1f} ms"
    )
    print(f"beyond the {len(others)} other modules it imports (goal: 50 ms)")
    for name, (theirs, ours) in measured(CALLS).items():
        print(f"{name}: {theirs * 1e6:.2f} µs by itself, {ours * 1e6:.2f} µs guarded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
