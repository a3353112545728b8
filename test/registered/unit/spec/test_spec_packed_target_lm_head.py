"""A target head without a dense weight: the gate and the predicates.

Every expectation about a head that has a ``.weight`` is checked a second time on
the undecorated function, where one is there: those heads keep their path.
"""

import os
import sys
import unittest
from types import SimpleNamespace

import torch
from sglang.srt.layers import logits_processor
from sglang.srt.layers.quantization.unquant import (
    UnquantizedEmbeddingMethod,
    UnquantizedLinearMethod,
)
from sglang.srt.layers.utils.common import PPMissingLayer
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_heads import (  # noqa: E402
    CODES,
    FLOATS,
    UnknownFp8Method,
    UnknownLinearMethod,
    UnknownPlainMethod,
    as_cutlass,
    as_marlin,
    codes_head,
    compressed_tensors_head,
    make_head,
    modelopt_head,
    packed_heads,
    scaled_head,
    stale_w4a16,
    undecorated,
    under,
)

register_cpu_ci(est_time=60, suite="base-a-test-cpu")


def setUpModule():
    init_single_process_dist()


class TestPredicate(CustomTestCase):
    def test_a_head_without_dense_weight_is_packed(self):
        """Red when the predicate asks for a quant method's name or one layout."""
        from sglang.srt.speculative.spec_utils import is_packed_lm_head

        for name, head in packed_heads().items():
            with self.subTest(name):
                self.assertTrue(is_packed_lm_head(head))

    def test_dense_absent_and_weight_carrying_heads_are_not(self):
        """Red when a pipeline placeholder or an FP8 head counts as packed."""
        from sglang.srt.speculative.spec_utils import is_packed_lm_head

        heads = [make_head(), None, PPMissingLayer()]
        heads += [modelopt_head(kind) for kind in ("FP8", "W4A4", "W4A16")]
        for head in heads:
            with self.subTest(type(getattr(head, "quant_method", head)).__name__):
                self.assertFalse(is_packed_lm_head(head))

    def test_anything_but_a_dense_float_weight_is_quantized(self):
        """Red when a head with codes for a ``.weight`` passes for a dense one."""
        from sglang.srt.speculative.spec_utils import is_quantized_lm_head

        quantized = [modelopt_head(kind) for kind in ("FP8", "W4A4", "W4A16")]
        quantized += [codes_head(dtype) for dtype in CODES] + [scaled_head()]
        quantized += packed_heads().values()
        for head in quantized:
            with self.subTest(type(head.quant_method).__name__):
                self.assertTrue(is_quantized_lm_head(head))
        dense = [make_head(dtype=dtype) for dtype in FLOATS]
        for head in [*dense, under(UnknownPlainMethod()), None, PPMissingLayer()]:
            with self.subTest(str(head)):
                self.assertFalse(is_quantized_lm_head(head))


class TestGate(CustomTestCase):
    def gate(self, head, method):
        return logits_processor.should_apply_lm_head_quant_method(head, method)

    def test_admits_every_kind_of_packed_head(self):
        """Red when the gate asks for ``.weight`` again."""
        for name, head in packed_heads().items():
            with self.subTest(name):
                self.assertIs(self.gate(head, head.quant_method), True)

    def test_every_importer_has_the_same_gate(self):
        """Red when a module that imported the gate by name keeps an older one."""
        from sglang.srt.models import dflash, dspark
        from sglang.srt.speculative import dflash_worker_v2

        head = compressed_tensors_head()
        for module in (dflash, dspark, dflash_worker_v2):
            with self.subTest(module.__name__):
                gate = module.should_apply_lm_head_quant_method
                self.assertIs(gate(head, head.quant_method), True)

    def test_refuses_packed_heads_that_nothing_can_apply(self):
        """Red when a missing or unquantized method, or one without apply, passes."""
        head = compressed_tensors_head()
        methods = (
            None,
            SimpleNamespace(),
            UnquantizedEmbeddingMethod(),
            UnquantizedLinearMethod(),
        )
        for method in methods:
            with self.subTest(type(method).__name__):
                self.assertIs(self.gate(head, method), False)

    def test_refuses_modelopt_methods_without_the_weight_they_read(self):
        """Red when a method whose branch reads ``lm_head.weight.dtype`` is admitted."""
        head = compressed_tensors_head()
        stale = [modelopt_head(kind).quant_method for kind in ("FP8", "W4A4", "W4A16")]
        for method in [*stale, stale_w4a16()]:
            with self.subTest(type(method).__name__):
                self.assertIs(self.gate(head, method), False)

    def test_an_unknown_method_over_a_dense_weight_takes_the_dense_path(self):
        """Red when a method's class decides, and not what it has to apply."""
        scales = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        stale = under(UnknownFp8Method())
        stale.weight_scale = stale.input_scale = scales
        heads = [under(m) for m in (UnknownPlainMethod(), UnknownLinearMethod())]
        for head in [*heads, stale]:
            with self.subTest(type(head.quant_method).__name__):
                self.assertIs(self.gate(head, head.quant_method), False)

    def test_an_unknown_method_over_codes_is_applied(self):
        """Red when codes are multiplied as numbers for want of a known method."""
        before = undecorated(logits_processor.should_apply_lm_head_quant_method)
        for head in [scaled_head(), *map(codes_head, CODES)]:
            with self.subTest(head.weight.dtype):
                self.assertIs(self.gate(head, head.quant_method), True)
                self.assertIs(before(head, head.quant_method), True)

    def test_heads_with_a_weight_get_the_answer_they_got(self):
        """Red when the answer for a known method and a ``.weight`` changes."""
        dense, fp8 = make_head(), modelopt_head("FP8")
        w4a4, w4a16 = modelopt_head("W4A4"), modelopt_head("W4A16")
        marlin = as_marlin(modelopt_head("W4A16"))
        cutlass = as_cutlass(modelopt_head("W4A4"))
        cases = (
            ("dense", dense, dense.quant_method, False),
            ("dense without a method", dense, None, False),
            ("dense under a stale FP8", dense, fp8.quant_method, False),
            ("dense under a stale W4A4", dense, w4a4.quant_method, False),
            ("dense under a stale W4A16", dense, w4a16.quant_method, False),
            ("FP8", fp8, fp8.quant_method, True),
            ("W4A4 as loaded", w4a4, w4a4.quant_method, False),
            ("W4A4 for its kernels", cutlass, cutlass.quant_method, True),
            ("W4A4 weight-only", cutlass, stale_w4a16(), True),
            ("W4A4 as Marlin", marlin, w4a4.quant_method, True),
            ("W4A16 as loaded", w4a16, w4a16.quant_method, False),
            ("W4A16 as Marlin", marlin, marlin.quant_method, True),
        )
        before = undecorated(logits_processor.should_apply_lm_head_quant_method)
        for name, head, method, expected in cases:
            with self.subTest(name):
                self.assertIs(self.gate(head, method), expected)
                self.assertIs(before(head, method), expected)


if __name__ == "__main__":
    unittest.main()
