"""Qwen3.5 targets with a packed head: what they hand over and load."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp8Config
from sglang.srt.layers.utils.common import PPMissingLayer
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.models import qwen3_5, qwen3_5_text
from sglang.srt.speculative.pp_draft_embedding import resolve_target_embed_and_head
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=45, suite="base-a-test-cpu")

VOCAB, HIDDEN = 200, 256

MULTIMODAL = (
    qwen3_5.Qwen3_5ForConditionalGeneration,
    qwen3_5.Qwen3_5MoeForConditionalGeneration,
)
TEXT = (qwen3_5_text.Qwen3_5ForCausalLM, qwen3_5_text.Qwen3_5MoeForCausalLM)


def setUpModule():
    init_single_process_dist()


def make_packed_head():
    weights = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 128,
    }
    config = CompressedTensorsConfig.from_config(
        {
            "format": "pack-quantized",
            "quant_method": "compressed-tensors",
            "config_groups": {
                "group_0": {"targets": ["re:.*lm_head"], "weights": weights}
            },
            "ignore": [],
        }
    )
    # The scheme asks for the CUDA capability of this machine.
    with mock.patch.object(config, "_check_scheme_supported", return_value=True):
        return ParallelLMHead(VOCAB, HIDDEN, quant_config=config, prefix="lm_head")


def make_fp8_head():
    config = ModelOptFp8Config.from_config(
        {"quant_algo": "FP8", "exclude_modules": [], "quant_method": "modelopt"}
    )
    config.packed_modules_mapping = {}
    return ParallelLMHead(VOCAB, HIDDEN, quant_config=config, prefix="lm_head")


class Body(torch.nn.Module):
    """The text backbone, which takes its tensors one at a time."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN)
        self.seen = []

    def load_weights(self, weights):
        for name, _ in weights:
            self.seen.append(name)
        return set(self.seen)


def make_model(model_class, lm_head, tied=False, first=True, last=True):
    """A real model class with the modules that loading and sharing touch."""
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    model.model = Body()
    model.lm_head = lm_head
    model.pooler = None
    model.config = SimpleNamespace(tie_word_embeddings=tied)
    model.pp_group = SimpleNamespace(is_first_rank=first, is_last_rank=last)
    return model


class TestAccessors(CustomTestCase):
    def test_head_half_is_none_for_a_packed_head(self):
        """Red when an accessor reads the missing ``.weight`` or drops the embedding."""
        for model_class in MULTIMODAL + TEXT:
            with self.subTest(model_class.__name__):
                model = make_model(model_class, make_packed_head())
                embed, head = resolve_target_embed_and_head(model)
                self.assertIs(embed, model.model.embed_tokens.weight)
                self.assertIsNone(head)

    def test_last_stage_with_a_packed_head_has_neither_half(self):
        """Red when a stage without the embedding asks for it."""
        for model_class in MULTIMODAL + TEXT:
            with self.subTest(model_class.__name__):
                model = make_model(model_class, make_packed_head(), first=False)
                model.model.embed_tokens = PPMissingLayer()
                self.assertEqual(resolve_target_embed_and_head(model), (None, None))

    def test_heads_with_a_weight_are_handed_over_as_before(self):
        """Red when a dense or FP8 head's tensor is withheld, or a stage's answer moves."""
        for model_class in MULTIMODAL + TEXT:
            for lm_head in (ParallelLMHead(VOCAB, HIDDEN), make_fp8_head()):
                method = type(lm_head.quant_method).__name__
                with self.subTest(f"{model_class.__name__} {method}"):
                    model = make_model(model_class, lm_head)
                    embed, head = resolve_target_embed_and_head(model)
                    self.assertIs(embed, model.model.embed_tokens.weight)
                    self.assertIs(head, lm_head.weight)

    def test_first_stage_without_a_head_is_accepted(self):
        """Red when a pipeline placeholder counts as a packed head."""
        for model_class in MULTIMODAL + TEXT:
            with self.subTest(model_class.__name__):
                model = make_model(model_class, PPMissingLayer(), last=False)
                embed, head = resolve_target_embed_and_head(model)
                self.assertIs(embed, model.model.embed_tokens.weight)
                self.assertIsNone(head)


PACKED_TENSORS = {
    "lm_head.weight_packed": torch.arange(VOCAB * HIDDEN // 4, dtype=torch.int32).view(
        VOCAB, HIDDEN // 4
    ),
    "lm_head.weight_scale": torch.ones(VOCAB, HIDDEN // 128),
    "lm_head.weight_shape": torch.tensor([VOCAB, HIDDEN]),
}
LAYER = ("model.layers.0.weight", torch.zeros(1))


class TestTextLoading(CustomTestCase):
    def test_every_tensor_of_a_packed_head_reaches_its_parameter(self):
        """Red when one is dropped, lands in the padding or is not reported."""
        for model_class in TEXT:
            model = make_model(model_class, make_packed_head())
            with self.subTest(model_class.__name__):
                loaded = model.load_weights([*PACKED_TENSORS.items(), LAYER])
                for name, tensor in PACKED_TENSORS.items():
                    param = model.get_parameter(name)
                    self.assertTrue(torch.equal(param[: len(tensor)], tensor), name)
                    self.assertIn(name, loaded)
                padding = model.lm_head.weight_packed[VOCAB:]
                self.assertEqual(padding.count_nonzero(), 0)
                self.assertEqual(model.model.seen, ["layers.0.weight"])
                self.assertIn("model.layers.0.weight", loaded)

    def test_the_scales_of_an_fp8_head_are_loaded(self):
        """Red when only ``lm_head.weight`` of a quantized head is passed on."""
        tensors = {
            "lm_head.weight": torch.ones(VOCAB, HIDDEN).to(torch.float8_e4m3fn),
            "lm_head.weight_scale": torch.tensor(0.5),
            "lm_head.input_scale": torch.tensor(0.25),
        }
        model = make_model(TEXT[0], make_fp8_head())
        model.load_weights(tensors.items())
        self.assertEqual(model.lm_head.weight_scale.item(), 0.5)
        self.assertEqual(model.lm_head.input_scale.item(), 0.25)
        self.assertEqual(model.lm_head.weight[:VOCAB].float().unique().tolist(), [1])

    def test_the_stream_is_read_one_tensor_at_a_time(self):
        """Red when the checkpoint is gathered in host memory before it is loaded."""
        taken, seen_at = [], []

        def stream():
            for name, tensor in (LAYER, *PACKED_TENSORS.items(), LAYER):
                taken.append(name)
                yield name, tensor

        def consume(weights):
            for _ in weights:
                seen_at.append(len(taken))
            return set()

        model = make_model(TEXT[0], make_packed_head())
        with mock.patch.object(model.model, "load_weights", consume):
            model.load_weights(stream())
        self.assertEqual(seen_at, [1, 5])

    def test_tensors_that_do_not_fit_the_head_are_refused_by_name(self):
        """Red when a head is left unfilled without a word."""
        dense = ("lm_head.weight", torch.ones(VOCAB, HIDDEN))
        cases = (
            (dense, make_packed_head()),
            (("lm_head.qweight", torch.ones(1)), make_packed_head()),
            (next(iter(PACKED_TENSORS.items())), ParallelLMHead(VOCAB, HIDDEN)),
        )
        for tensor, lm_head in cases:
            model = make_model(TEXT[0], lm_head)
            with self.subTest(tensor[0]):
                with self.assertRaisesRegex(ValueError, f"{tensor[0]}.*ParallelLMHead"):
                    model.load_weights([tensor])

    def test_what_a_head_has_no_use_for_is_ignored(self):
        """Red when a bias or an activation scale of a weight-only head is refused."""
        names = ("lm_head.bias", "lm_head.input_scale", "lm_head.output_scale")
        model = make_model(TEXT[0], make_packed_head())
        loaded = model.load_weights((name, torch.ones(1)) for name in names)
        self.assertEqual(loaded, set())

    def test_dense_head_is_loaded_as_before(self):
        """Red when the one tensor of a dense head takes another way."""
        tensors = [("lm_head.weight", torch.ones(VOCAB, HIDDEN)), LAYER]
        model = make_model(TEXT[0], ParallelLMHead(VOCAB, HIDDEN))
        loaded = model.load_weights(tensors)
        self.assertEqual(loaded, {"lm_head.weight", "model.layers.0.weight"})
        self.assertTrue(torch.equal(model.lm_head.weight[:VOCAB], tensors[0][1]))

    def test_tied_and_missing_heads_take_nothing(self):
        """Red when tensors reach a head that the model does not own."""
        tensors = [("lm_head.weight", torch.ones(VOCAB, HIDDEN)), LAYER]
        tied = make_model(TEXT[0], None, tied=True)
        tied.lm_head = tied.model.embed_tokens
        tied.lm_head.weight.data.zero_()
        own = tied.lm_head.weight.clone()
        missing = make_model(TEXT[0], PPMissingLayer(), last=False)
        for model in (tied, missing):
            model.load_weights([*tensors, *PACKED_TENSORS.items()])
            self.assertEqual(model.model.seen, ["layers.0.weight"])
        self.assertTrue(torch.equal(tied.lm_head.weight, own))


if __name__ == "__main__":
    unittest.main()
