"""A compressed-tensors layer is loaded again as it was loaded first."""

import os
import sys
import unittest
from unittest import mock

import torch
from sglang.srt.layers.linear import MergedColumnParallelLinear
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.compressed_tensors.schemes import (
    CompressedTensorsWNA16,
)
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_heads_on_disk import (  # noqa: E402
    FP8_INPUT,
    HIDDEN,
    VOCAB,
    any_device,
    fp8_head,
    fp8_weights,
    int_weights,
    packed_head,
    quantization,
)

register_cpu_ci(est_time=20, suite="base-a-test-cpu")

CPU = torch.device("cpu")


def setUpModule():
    init_single_process_dist()


def repack(self, layer):
    """As Marlin does: other shapes, plain parameters, a workspace, empty tensors."""
    packed = layer.weight_packed.data.t().contiguous() + 1
    layer.weight_packed = torch.nn.Parameter(packed, requires_grad=False)
    scale = layer.weight_scale.data.t().contiguous().repeat(2, 1)
    layer.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
    layer.weight_g_idx = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    layer.g_idx_sort_indices = packed.flatten()[:4].clone()
    self.workspace = torch.zeros(4)


def make_model(config, layer_class=ParallelLMHead):
    """A model of one quantized layer, loaded by name as models do it."""
    quant_config = CompressedTensorsConfig.from_config(config)
    quant_config.packed_modules_mapping = {"lm_head": ["one", "two"]}
    with any_device():
        if layer_class is ParallelLMHead:
            layer = ParallelLMHead(
                VOCAB, HIDDEN, quant_config=quant_config, prefix="lm_head"
            )
        else:
            layer = layer_class(
                HIDDEN,
                [VOCAB, VOCAB],
                bias=False,
                quant_config=quant_config,
                prefix="lm_head",
            )
    model = torch.nn.Module()
    model.lm_head = layer
    model.other = torch.nn.Linear(2, 2)

    def load_weights(weights):
        params = dict(model.named_parameters())
        for name, tensor, *shard in weights:
            params[name].weight_loader(params[name], tensor, *shard)

    model.load_weights = load_weights
    return model


def update(model, tensors):
    """What ``update_weights_from_disk`` does to a model."""
    DefaultModelLoader.restore_weights_before_loading(model, CPU)
    model.load_weights((f"lm_head.{name}", tensor) for name, tensor in tensors.items())
    DefaultModelLoader.postprocess_weights(model, CPU)


def load(config, tensors):
    """A model as it is after its first load."""
    model = make_model(config)
    model.load_weights((f"lm_head.{name}", tensor) for name, tensor in tensors.items())
    DefaultModelLoader.postprocess_weights(model, CPU)
    return model


def state(model):
    layer = model.lm_head
    tensors = dict(layer.named_parameters())
    for owner in (layer, layer.scheme):
        named = vars(owner).items()
        tensors |= {k: v for k, v in named if isinstance(v, torch.Tensor)}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def addresses(model):
    layer = model.lm_head
    return {
        **{name: (id(p), p.data_ptr()) for name, p in layer.named_parameters()},
        "workspace": id(getattr(layer.scheme, "workspace", None)),
    }


PACKED = quantization((["lm_head"], int_weights(8, 128)))
FP8 = quantization(
    (["lm_head"], fp8_weights("channel"), FP8_INPUT), weight_format="float-quantized"
)


class TestReload(CustomTestCase):
    def setUp(self):
        patched = mock.patch.object(
            CompressedTensorsWNA16, "process_weights_after_loading", repack
        )
        patched.start()
        self.addCleanup(patched.stop)

    def assertSame(self, first, second):
        self.assertEqual(first.keys(), second.keys())
        for name in first:
            one, other = (t[name].flatten().view(torch.uint8) for t in (first, second))
            self.assertTrue(torch.equal(one, other), name)

    def cases(self):
        yield "packed", PACKED, packed_head(8, 128)[0], packed_head(8, 128, seed=1)[0]
        other = {**fp8_head((VOCAB, 1))[0], "weight_scale": torch.ones(VOCAB, 1)}
        yield "fp8", FP8, fp8_head((VOCAB, 1))[0], other

    def test_same_files_give_the_same_bits_at_the_same_addresses(self):
        """Red when a reload fails, repacks twice or moves what graphs have captured."""
        for case, config, tensors, _ in self.cases():
            with self.subTest(case):
                model = load(config, tensors)
                before, where = state(model), addresses(model)
                for _ in range(2):
                    update(model, tensors)
                    self.assertSame(state(model), before)
                    self.assertEqual(addresses(model), where)

    def test_other_files_give_what_a_fresh_load_of_them_gives(self):
        """Red when a reload leaves anything of the old weights."""
        for case, config, tensors, others in self.cases():
            with self.subTest(case):
                model = load(config, tensors)
                update(model, others)
                self.assertSame(state(model), state(load(config, others)))

    def test_a_shared_head_is_left_by_a_load_that_brings_nothing_for_it(self):
        """Red when a draft's reload repacks, moves or empties its target's head."""
        for case, config, tensors, _ in self.cases():
            with self.subTest(case):
                model = load(config, tensors)
                draft = torch.nn.Module()
                draft.lm_head = model.lm_head
                draft.load_weights = list
                before, where = state(model), addresses(model)
                update(draft, {})
                DefaultModelLoader.postprocess_weights(draft, CPU)
                self.assertSame(state(model), before)
                self.assertEqual(addresses(model), where)

    def test_part_of_a_layer_is_refused_by_name(self):
        """Red when codes are read under another's scales."""
        tensors = packed_head(8, 128)[0]
        model = load(PACKED, tensors)
        before = state(model)
        with self.assertRaisesRegex(
            ValueError, "brings weight_scale of a quantized ParallelLMHead.*_packed"
        ):
            update(model, {"weight_scale": tensors["weight_scale"]})
        update(model, tensors)
        self.assertSame(state(model), before)

    def test_writes_past_the_loaders_are_seen(self):
        """Red when tensors written into the parameters directly are dropped."""
        others = packed_head(8, 128, seed=1)[0]
        model = load(PACKED, packed_head(8, 128)[0])
        DefaultModelLoader.restore_weights_before_loading(model, CPU)
        for name, tensor in others.items():
            data = model.lm_head.get_parameter(name).data.zero_()
            data[: len(tensor)] = tensor
        DefaultModelLoader.postprocess_weights(model, CPU)
        self.assertSame(state(model), state(load(PACKED, others)))

    def test_fused_layers(self):
        """Red when the shards of a fused layer no longer find their places."""
        halves = [packed_head(8, 128, seed=seed)[0] for seed in (0, 1)]

        def shards():
            for index, tensors in enumerate(halves):
                for name, tensor in tensors.items():
                    yield f"lm_head.{name}", tensor, index

        config = quantization((["Linear"], int_weights(8, 128)))
        model = make_model(config, MergedColumnParallelLinear)
        model.load_weights(shards())
        DefaultModelLoader.postprocess_weights(model, CPU)
        before, where = state(model), addresses(model)
        DefaultModelLoader.restore_weights_before_loading(model, CPU)
        model.load_weights(shards())
        DefaultModelLoader.postprocess_weights(model, CPU)
        self.assertSame(state(model), before)
        self.assertEqual(addresses(model), where)

    def test_the_first_load_is_processed_as_before(self):
        """Red when a first load's tensors are other than the scheme makes them."""
        tensors = packed_head(8, 128)[0]
        model = make_model(PACKED)
        model.load_weights((f"lm_head.{n}", tensor) for n, tensor in tensors.items())
        alone = make_model(PACKED)
        alone.load_weights((f"lm_head.{n}", tensor) for n, tensor in tensors.items())
        repack(alone.lm_head.scheme, alone.lm_head)
        DefaultModelLoader.postprocess_weights(model, CPU)
        self.assertSame(state(model), state(alone))


if __name__ == "__main__":
    unittest.main()
