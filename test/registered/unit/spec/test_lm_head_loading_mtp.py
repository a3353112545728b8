"""An MTP module's layers are built by the tensors that the checkpoint holds for them."""

import os
import sys
import unittest

import torch
from sglang.srt.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_heads_on_disk import (  # noqa: E402
    HIDDEN,
    any_device,
    int_weights,
    packed_head,
    quantization,
    read_config,
)

register_cpu_ci(est_time=20, suite="base-a-test-cpu")

MTP = "mtp.layers.0.mlp"
BODY = (["Linear"], int_weights(4, 128))
BY_NAME = ([r"re:model\..*"], int_weights(4, 128))


def setUpModule():
    init_single_process_dist()


def dense(*names):
    weight = torch.ones(HIDDEN, HIDDEN, dtype=torch.bfloat16)
    return {f"{MTP}.{name}.weight": weight for name in names}


def packed(*names):
    tensors = packed_head(4, 128, rows=HIDDEN)[0].items()
    return {f"{MTP}.{name}.{leaf}": t for name in names for leaf, t in tensors}


def method(config, name):
    """The quant method of a layer that is built under this name."""
    config.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}
    sizes = (HIDDEN, [HIDDEN, HIDDEN]) if "gate_up" in name else (HIDDEN, HIDDEN)
    layer_class = MergedColumnParallelLinear if "gate_up" in name else RowParallelLinear
    with any_device():
        layer = layer_class(*sizes, bias=False, quant_config=config, prefix=name)
    return type(layer.quant_method)


class TestDense(CustomTestCase):
    def test_a_class_target_claims_a_dense_module(self):
        """Red when a dense layer is built packed, which its tensors cannot fill."""
        stored = dense("gate_proj", "up_proj", "down_proj")
        config = read_config(quantization(BODY), stored)
        for name in ("gate_up_proj", "down_proj"):
            self.assertIs(method(config, f"{MTP}.{name}"), UnquantizedLinearMethod)
        self.assertIs(
            method(config, "model.layers.0.mlp.down_proj"),
            CompressedTensorsLinearMethod,
        )

    def test_experts_are_asked_for_by_their_names(self):
        """Red when dense experts of an MTP module are built packed."""
        stored = dense("experts.0.gate_proj")
        config = read_config(quantization(BODY), stored)
        for expert, dense_expert in (("0", True), ("1", False)):
            path = f"{MTP}.experts.{expert}.gate_proj"
            scheme = config.get_scheme_dict(torch.nn.Linear(1, 1), path)
            self.assertEqual(scheme is None, dense_expert)

    def test_no_target_fits_a_dense_module(self):
        """Red when a layer that is stored dense is refused for want of a target."""
        config = read_config(quantization(BY_NAME), dense("down_proj"))
        self.assertIs(method(config, f"{MTP}.down_proj"), UnquantizedLinearMethod)


class TestOthers(CustomTestCase):
    def test_packed_and_unknown_modules_are_built_as_before(self):
        """Red when a layer is built dense that is not, or in part only."""
        for stored in (
            packed("gate_proj", "up_proj", "down_proj"),
            {**dense("gate_proj"), **packed("up_proj", "down_proj")},
            dense("another"),
        ):
            config = read_config(quantization(BODY), stored)
            for name in ("gate_up_proj", "down_proj"):
                self.assertIs(
                    method(config, f"{MTP}.{name}"), CompressedTensorsLinearMethod
                )

    def test_without_the_tensors_an_error_names_the_layer(self):
        """Red when the error does not say which layer no target covers."""
        config = CompressedTensorsConfig.from_config(quantization(BY_NAME))
        with self.assertRaisesRegex(ValueError, rf"{MTP}\.down_proj"):
            method(config, f"{MTP}.down_proj")


if __name__ == "__main__":
    unittest.main()
