"""The logits of a head without a dense weight, and of those that keep their path."""

import os
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_heads import (  # noqa: E402
    CODES,
    HIDDEN,
    VOCAB,
    codes_head,
    compressed_tensors_head,
    make_head,
    modelopt_head,
    stale_w4a16,
    undecorated,
    under,
)

register_cpu_ci(est_time=60, suite="base-a-test-cpu")


def setUpModule():
    init_single_process_dist()


class RecordingScheme:
    """Multiplies with an integer-valued matrix and keeps what it was given."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.matrix = torch.randint(-4, 5, (VOCAB, HIDDEN), generator=generator)
        self.inputs = []

    def apply_weights(self, layer, x, bias):
        self.inputs.append(x)
        return x @ self.matrix.to(x.dtype).T


class TestLogits(CustomTestCase):
    def setUp(self):
        self.processor = LogitsProcessor(SimpleNamespace(vocab_size=VOCAB))
        self.processor.use_fp32_lm_head = False
        self.head = compressed_tensors_head()
        self.head.scheme = RecordingScheme()
        self.hidden = torch.randint(-2, 3, (3, HIDDEN)).to(torch.bfloat16)

    def test_packed_head_goes_through_its_quant_method(self):
        """Red when a packed head is multiplied in any other way."""
        logits = self.processor._compute_lm_head(self.hidden, self.head)
        (seen,) = self.head.scheme.inputs
        self.assertIs(seen, self.hidden)
        self.assertEqual(logits.dtype, torch.bfloat16)

    def test_fp32_lm_head_casts_the_activations_of_a_packed_head(self):
        """Red when admitting the head in the gate skips the fallback's cast."""
        self.processor.use_fp32_lm_head = True
        logits = self.processor._compute_lm_head(self.hidden, self.head)
        (seen,) = self.head.scheme.inputs
        self.assertEqual(seen.dtype, torch.float32)
        exact = self.hidden.long() @ self.head.scheme.matrix.T
        self.assertTrue(torch.equal(logits, exact.float()))

    def test_a_head_that_nothing_can_apply_is_named(self):
        """Red when the error lacks the class, the parameters or the quant method."""
        methods = (None, UnquantizedEmbeddingMethod(), stale_w4a16())
        for method in methods:
            self.head.quant_method = method
            words = ("ParallelLMHead", "weight_packed", type(method).__name__)
            with self.subTest(words[-1]):
                with self.assertRaisesRegex(RuntimeError, "(?s)" + ".*".join(words)):
                    self.processor._compute_lm_head(self.hidden, self.head)

    def test_codes_that_nothing_can_apply_are_named(self):
        """Red when codes are multiplied as numbers, or die without a name."""
        for dtype in CODES:
            head = under(UnquantizedEmbeddingMethod(), codes_head(dtype))
            words = "ParallelLMHead.*weight_scale.*UnquantizedEmbeddingMethod"
            with self.subTest(dtype), self.assertRaisesRegex(RuntimeError, words):
                self.processor._compute_lm_head(self.hidden, head)

    def test_lora_wrapped_head_keeps_its_forward(self):
        """Red when the quant method of a wrapped head is called past the wrapper."""

        def forbidden(*args, **kwargs):
            raise AssertionError("the wrapper was bypassed")

        class Wrapper(torch.nn.Module):
            set_lora = apply_lora = quant_method = SimpleNamespace(apply=forbidden)

            def forward(self, hidden_states):
                return hidden_states + 1

        logits = self.processor._compute_lm_head(self.hidden, Wrapper())
        self.assertTrue(torch.equal(logits, self.hidden + 1))

    def test_dense_head_keeps_its_product(self):
        """Red when a dense head's logits change by one bit, in either precision."""
        head = make_head()
        head.weight.data.normal_()
        before = undecorated(LogitsProcessor._compute_lm_head)
        for fp32 in (False, True):
            self.processor.use_fp32_lm_head = fp32
            dtype = torch.float32 if fp32 else torch.bfloat16
            expected = torch.matmul(self.hidden.to(dtype), head.weight.to(dtype).T)
            with self.subTest(fp32=fp32):
                logits = self.processor._compute_lm_head(self.hidden, head)
                self.assertTrue(torch.equal(logits, expected))
                same = before(self.processor, self.hidden, head)
                self.assertTrue(torch.equal(logits, same))

    def test_modelopt_head_keeps_its_activations(self):
        """Red when the FP32 cast reaches a quantized head that has a ``.weight``."""
        self.processor.use_fp32_lm_head = True
        head = modelopt_head("FP8")
        with mock.patch.object(head.quant_method, "apply") as apply:
            self.processor._compute_lm_head(self.hidden, head)
        apply.assert_called_once_with(head, self.hidden, None)


if __name__ == "__main__":
    unittest.main()
