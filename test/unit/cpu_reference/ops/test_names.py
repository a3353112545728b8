"""What SGLang finds in ``sgl_kernel``, and what it must not find."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import sgl_kernel
import torch

PROBED = (
    "convert_weight_packed",
    "fused_qk_norm_rope_cpu",
    "get_device_accessible_ptr",
    "transfer_embedding_ranges_direct",
)
# Everything a Qwen3.5 server with NEXTN, DFLASH or NGRAM imports our names in.
IMPORTERS = (
    "sglang.kernels.ops.kvcache.cache_move",
    "sglang.kernels.ops.speculative.cache_locs",
    "sglang.kernels.ops.speculative.eagle",
    "sglang.kernels.ops.speculative.multi_layer_eagle",
    "sglang.kernels.ops.speculative.reconstruct_tree",
    "sglang.kernels.ops.speculative.spec_tree",
    "sglang.srt.layers.attention.intel_amx_backend",
    "sglang.srt.layers.attention.linear.gdn_backend",
    "sglang.srt.layers.attention.linear.kda_backend",
    "sglang.srt.mem_cache.allocation",
    "sglang.srt.models.grok",
    "sglang.srt.models.qwen3_5",
    "sglang.srt.models.qwen3_5_mtp",
    "sglang.srt.models.dflash",
)


@pytest.mark.parametrize("name", sgl_kernel.__all__)
def test_provided_names_are_importable(name: str) -> None:
    assert callable(getattr(sgl_kernel, name))


def test_operators_declare_what_they_write() -> None:
    schema = torch.ops.sgl_kernel.decode_attention_cpu.default._schema
    written = {
        x.name for x in schema.arguments if x.alias_info and x.alias_info.is_write
    }
    assert written == {"k_buffer", "v_buffer", "output", "attn_logits"}


@pytest.mark.parametrize("name", sgl_kernel.NOT_PROVIDED)
def test_other_names_exist_and_say_so_when_called(name: str) -> None:
    for where in (sgl_kernel, torch.ops.sgl_kernel):
        with pytest.raises(NotImplementedError) as error:
            getattr(where, name)(torch.zeros(2, 3), eps=1e-6)
        assert f"sgl_kernel.{name} is not provided by sglang-cpu-ref" in str(
            error.value
        )
        assert "(2, 3)" in str(error.value)


@pytest.mark.parametrize("name", PROBED)
def test_names_that_choose_a_path_are_absent(name: str) -> None:
    assert not hasattr(torch.ops.sgl_kernel, name)
    assert not hasattr(sgl_kernel, name)


def test_sglang_imports_what_its_cpu_engine_needs() -> None:
    code = "import importlib\n" + "".join(
        f"importlib.import_module({name!r})\n" for name in IMPORTERS
    )
    code += "from sglang.srt.utils import cpu_has_amx_support, is_cpu\n"
    code += "assert is_cpu() and not cpu_has_amx_support()\n"
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
