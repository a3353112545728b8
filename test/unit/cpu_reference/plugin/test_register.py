"""The plugin as SGLang loads it, each case in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from sglang_cpu_reference.series import SERIES
from specpack.seams.source import installed
from specpack.seams.verify import verify

LAYERS = """
from sglang.srt.plugins import load_plugins
load_plugins()
import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
group = {"targets": ["Linear"], "weights": {
    "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32,
    "symmetric": SYMMETRIC}}
config = CompressedTensorsConfig.from_config({
    "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [],
    "config_groups": {"group_0": group}})
layer = ReplicatedLinear(
    64, 48, bias=False, params_dtype=torch.bfloat16, quant_config=config,
    prefix="model.layers.0.mlp.down_proj")
layer.weight_packed.data.zero_()
layer.weight_scale.data.fill_(1)
layer.quant_method.process_weights_after_loading(layer)
out, _ = layer(torch.ones(2, 64, dtype=torch.bfloat16))
print(out.unique().tolist(), hasattr(layer, "weight"))
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SGLANG_PLUGINS": "cpu-reference", **environment},
        capture_output=True,
        text=True,
    )


def test_every_seam_fits_the_installed_release() -> None:
    verdicts = verify(SERIES, installed())
    assert [str(v.problems) for v in verdicts if v.state != "applies"] == []


def test_inert_without_the_cpu_engine() -> None:
    code = (
        "import sys; from sglang_cpu_reference.plugin import register; register();"
        "print('specpack' in sys.modules, 'torch' in sys.modules)"
    )
    done = run(code, SGLANG_USE_CPU_ENGINE="0")
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_registering_imports_no_torch_and_stops_inductor() -> None:
    code = (
        "import os, sys; from sglang_cpu_reference.plugin import register;"
        "register(); register();"
        "print('torch' in sys.modules, os.environ['TORCHDYNAMO_DISABLE'])"
    )
    done = run(code, SGLANG_USE_CPU_ENGINE="1")
    assert done.stdout.split() == ["False", "1"], done.stderr


def test_a_quantized_layer_is_built_and_applied() -> None:
    done = run(LAYERS.replace("SYMMETRIC", "True"), SGLANG_USE_CPU_ENGINE="1")
    assert done.stdout.splitlines()[-1:] == ["[-512.0] False"], done.stderr


def test_asymmetric_weights_are_refused_by_layer() -> None:
    done = run(LAYERS.replace("SYMMETRIC", "False"), SGLANG_USE_CPU_ENGINE="1")
    last = done.stderr.strip().splitlines()[-1]
    assert "model.layers.0.mlp.down_proj: asymmetric weights" in last
