"""Quantized drafts with the CPU runtime's own products, not the tests' stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REGISTERED = Path(__file__).parents[2] / "registered" / "unit" / "spec"
LAYOUTS = [[8, 128], [8, 32], [8, None], [4, 128], [4, 32], [4, None]]
SERVE = """
import contextlib, json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.test.layer_ut_utils import init_single_process_dist
init_single_process_dist()
import dflash_drafts as drafts
drafts.weight_only_on_cpu = contextlib.nullcontext
config = drafts.make_config()
tensors = drafts.make_tensors(config)
kinds = ("o_proj", "gate_proj", "up_proj", "down_proj", "fc")
modules = drafts.projections(tensors, *kinds)
errors = []
for bits, group in json.loads(sys.argv[1]):
    packed, meant = drafts.quantize_modules(tensors, modules, bits, group)
    quantization = drafts.compressed_tensors(bits, group, ["re:.*(q|k|v)_proj"])
    draft = drafts.load({**config, "quantization_config": quantization}, packed)
    assert draft.fc.weight_only_product.bits == bits
    pairs = zip(drafts.forward(draft), drafts.forward(drafts.load(config, meant)))
    errors += [((a - b).float().norm() / b.float().norm()).item() for a, b in pairs]
print(json.dumps(errors))
"""


def test_every_packed_layout_is_served_as_its_values_say() -> None:
    result = subprocess.run(
        [sys.executable, "-c", SERVE, json.dumps(LAYOUTS)],
        env={
            **os.environ,
            "SGLANG_PLUGINS": "cpu-reference,specpack",
            "SGLANG_USE_CPU_ENGINE": "1",
            "PYTHONPATH": str(REGISTERED),
            "MASTER_PORT": "29671",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    errors = json.loads(result.stdout.splitlines()[-1])
    # bf16 rounds each product to 0.4 %.
    assert len(errors) == 2 * len(LAYOUTS) and max(errors) < 0.02
