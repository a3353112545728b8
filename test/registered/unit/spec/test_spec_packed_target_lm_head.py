"""A target head without a dense weight: the gate, the logits and sharing with drafts.

Every expectation about a head that has a ``.weight`` is checked a second time on
the undecorated function, where one is there: those heads keep their path.
"""

import contextlib
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers import logits_processor
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.quantization.awq import AWQMarlinConfig
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.gguf import GGUFConfig
from sglang.srt.layers.quantization.gptq import GPTQMarlinConfig
from sglang.srt.layers.quantization.modelopt_quant import (
    ModelOptFp4Config,
    ModelOptFp4LinearMethod,
    ModelOptFp8Config,
)
from sglang.srt.layers.quantization.unquant import (
    UnquantizedEmbeddingMethod,
    UnquantizedLinearMethod,
)
from sglang.srt.layers.utils.common import PPMissingLayer
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

HIDDEN = 256
VOCAB = 200  # not a multiple of the padding, 64
_QUANT = "sglang.srt.layers.quantization"
# They ask for this machine's CUDA capability, and the last for attributes of a
# linear layer.
_MARLIN_CHECKS = (
    f"{_QUANT}.gptq.schemes.gptq_marlin.verify_marlin_supported",
    f"{_QUANT}.awq.awq.verify_marlin_supported",
    f"{_QUANT}.awq.awq.check_marlin_supports_layer",
)


def setUpModule():
    init_single_process_dist()


def undecorated(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def make_head(quant_config=None, vocab=VOCAB, dtype=torch.bfloat16):
    if quant_config is not None:
        quant_config.packed_modules_mapping = {}
    return ParallelLMHead(
        vocab,
        HIDDEN,
        quant_config=quant_config,
        prefix="lm_head",
        params_dtype=dtype,
    )


def compressed_tensors_head(num_bits=8, **weights):
    group = {
        "targets": ["re:.*lm_head"],
        "weights": {
            "num_bits": num_bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": 128,
            **weights,
        },
    }
    config = CompressedTensorsConfig.from_config(
        {
            "format": "pack-quantized",
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": group},
            "ignore": [],
        }
    )
    # The scheme asks for the CUDA capability of this machine.
    with mock.patch.object(config, "_check_scheme_supported", return_value=True):
        return make_head(config)


def qweight_head(config_class, **config):
    fields = {"bits": 4, "group_size": 128, "lm_head": True, **config}
    with contextlib.ExitStack() as stack:
        for target in _MARLIN_CHECKS:
            stack.enter_context(mock.patch(target))
        return make_head(
            config_class.from_config(fields), vocab=256, dtype=torch.float16
        )


def packed_heads():
    return {
        "compressed-tensors W8A16": compressed_tensors_head(),
        "compressed-tensors W4A16": compressed_tensors_head(num_bits=4),
        "compressed-tensors W8A16 per channel": compressed_tensors_head(
            strategy="channel", group_size=None
        ),
        "GPTQ": qweight_head(
            GPTQMarlinConfig, desc_act=False, sym=True, quant_method="gptq"
        ),
        "AWQ": qweight_head(AWQMarlinConfig, zero_point=True, quant_method="awq"),
        "GGUF": make_head(GGUFConfig(), vocab=256, dtype=torch.float16),
    }


def modelopt_head(kind):
    if kind == "FP8":
        return make_head(
            ModelOptFp8Config.from_config(
                {"quant_algo": "FP8", "exclude_modules": [], "quant_method": "modelopt"}
            )
        )
    algo = {"W4A4": "NVFP4", "W4A16": "W4A16_NVFP4"}[kind]
    return make_head(
        ModelOptFp4Config.from_config(
            {
                "quant_algo": algo,
                "kv_cache_quant_algo": None,
                "group_size": 16,
                "ignore": [],
                "quant_method": "modelopt",
            }
        )
    )


def as_marlin(head):
    """The attributes and dtype that repacking for FP4 Marlin leaves on a head."""
    weight = torch.zeros(16, 16, dtype=torch.int32)
    head.weight = torch.nn.Parameter(weight, requires_grad=False)
    head.weight_global_scale = head.workspace = torch.zeros(1)
    head.input_size_per_partition = HIDDEN
    head.output_size_per_partition = VOCAB
    return head


def as_cutlass(head):
    """The attributes that loading for the W4A4 kernels leaves on a head."""
    head.weight_scale_interleaved = head.alpha = head.input_scale_inv = torch.ones(1)
    head.input_size_per_partition = HIDDEN
    head.output_size_per_partition = VOCAB
    return head


def stale_w4a16():
    """The method that the W4A4 class is when it serves weight-only."""
    method = object.__new__(ModelOptFp4LinearMethod)
    method.quant_mode = "w4a16"
    return method


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

    def test_heads_with_a_weight_get_the_answer_they_got(self):
        """Red when the answer for any head that has a ``.weight`` changes."""
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
