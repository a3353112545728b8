"""Heads that models build without a prefix or a config are built by their path."""

import os
import sys
import unittest
from unittest import mock

import torch
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.model_loader import loader
from sglang.srt.model_loader.utils import set_default_torch_dtype
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_heads_on_disk import (  # noqa: E402
    HIDDEN,
    VOCAB,
    any_device,
    dense_head,
    int_weights,
    packed_head,
    quantization,
    read_config,
)

register_cpu_ci(est_time=30, suite="base-a-test-cpu")

HEAD = (["re:.*lm_head$"], int_weights(8, 128))
BODY = (["Linear"], int_weights(4, 128))


def setUpModule():
    init_single_process_dist()


class OwnHead(ParallelLMHead):
    """A head class of a model's own."""


def model_class(path="lm_head", head_class=ParallelLMHead, tied=False, **given):
    """A model that builds its head at a path, with what ``given`` passes on."""

    class Model(torch.nn.Module):
        def __init__(self, config, quant_config=None):
            super().__init__()
            self.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN)
            options = dict(given)
            if options.pop("with_config", False):
                options["quant_config"] = quant_config
            head = head_class(VOCAB, HIDDEN, **options)
            *parents, name = path.split(".")
            owner = self
            for parent in parents:
                setattr(owner, parent, torch.nn.Module())
                owner = getattr(owner, parent)
            setattr(owner, name, head.tie_weights(self.embed_tokens) if tied else head)

    return Model


def initialize(built_class, tensors, groups=(HEAD, BODY), stored="lm_head"):
    """The model that the loader makes for a checkpoint of these head tensors."""
    on_disk = {f"{stored}.{name}": tensor for name, tensor in tensors.items()}
    on_disk["embed_tokens.weight"] = torch.ones(VOCAB, HIDDEN, dtype=torch.bfloat16)
    config = read_config(quantization(*groups), on_disk)
    with (
        any_device(),
        mock.patch.object(
            loader, "get_model_architecture", return_value=(built_class, "Model")
        ),
        mock.patch.object(loader, "resolve_shared_experts_config"),
        mock.patch.object(loader, "get_model"),
        mock.patch.object(loader, "check_stage_producers"),
        set_default_torch_dtype(torch.bfloat16),
    ):
        return loader._initialize_model(mock.Mock(), LoadConfig(), config)


class TestRebuilt(CustomTestCase):
    def test_heads_without_prefix_or_config_are_built_as_stored(self):
        """Red when a quantized head stays dense for want of what its model passes."""
        tensors, _ = packed_head(8, 128)
        cases = {
            "no prefix": model_class(with_config=True),
            "no config": model_class(prefix="lm_head"),
            "neither": model_class(),
            "inside a language model": model_class("language_model.lm_head"),
        }
        for case, built_class in cases.items():
            for groups in ((HEAD, BODY), (BODY,)):
                with self.subTest(case, groups=len(groups)):
                    model = initialize(built_class, tensors, groups)
                    head = getattr(model, "language_model", model).lm_head
                    self.assertEqual(
                        sorted(dict(head.named_parameters())), sorted(tensors)
                    )
                    self.assertEqual(head.weight_scale.dtype, torch.bfloat16)

    def test_other_names_than_lm_head(self):
        """Red when only heads of one name are held against the checkpoint."""
        tensors, _ = packed_head(8, 128)
        built_class = model_class("transformer.output_layer", prefix="output_layer")
        model = initialize(
            built_class, tensors, ((["re:.*output_layer"], HEAD[1]),), "output_layer"
        )
        head = model.transformer.output_layer
        self.assertIn("weight_packed", dict(head.named_parameters()))

    def test_sizes_and_bias_are_those_that_the_model_asked_for(self):
        """Red when padding, added rows or the bias are lost on the way."""
        tensors, _ = packed_head(8, 128)
        built_class = model_class(bias=True, padding_size=96, org_num_embeddings=VOCAB)
        head = initialize(built_class, tensors).lm_head
        dense = ParallelLMHead(
            VOCAB, HIDDEN, bias=True, padding_size=96, org_num_embeddings=VOCAB
        )
        self.assertEqual(head.shard_indices, dense.shard_indices)
        self.assertEqual(head.bias.shape, dense.bias.shape)
        self.assertEqual(head.weight_packed.shape[0], dense.weight.shape[0])

    def test_fp32_activations_are_cast(self):
        """Red when a head that its model wants in FP32 gets FP32 activations."""
        tensors, _ = packed_head(8, 128)
        seen = []
        scheme = (
            "sglang.srt.layers.quantization.compressed_tensors.schemes."
            "CompressedTensorsWNA16.apply_weights"
        )
        with mock.patch(scheme, lambda self, layer, x, bias: seen.append(x.dtype)):
            for dtype in (torch.float32, None):
                built_class = model_class(with_config=True, params_dtype=dtype)
                head = initialize(built_class, tensors).lm_head
                x = torch.zeros(1, HIDDEN, dtype=dtype or torch.bfloat16)
                head.quant_method.apply(head, x)
        self.assertEqual(seen, [torch.bfloat16, torch.bfloat16])

    def test_a_head_that_cannot_be_built_again_is_refused_by_name(self):
        """Red when a head is left dense over quantized tensors without a word."""
        tensors, _ = packed_head(8, 128)
        with self.assertRaisesRegex(
            ValueError, "stores lm_head quantized.*Model builds it dense, as a OwnHead"
        ):
            initialize(model_class(head_class=OwnHead), tensors)


class TestLeftAlone(CustomTestCase):
    def test_heads_that_are_right_or_not_stored(self):
        """Red when a head is touched that the checkpoint does not contradict."""
        packed, _ = packed_head(8, 128)
        with mock.patch.object(loader, "rebuild_lm_head", create=True) as rebuild:
            for built_class, tensors in (
                (model_class(), dense_head()),
                (model_class(), {}),
                (model_class(tied=True), packed),
            ):
                head = initialize(built_class, tensors).lm_head
                self.assertIsInstance(head.quant_method, UnquantizedEmbeddingMethod)
            initialize(model_class(with_config=True, prefix="lm_head"), packed)
        rebuild.assert_not_called()


if __name__ == "__main__":
    unittest.main()
