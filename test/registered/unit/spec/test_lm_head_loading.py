"""A compressed-tensors head is built by the tensors that the checkpoint holds for it."""

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
    CompressedTensorsLinearMethod,
)
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_loader import loader
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_heads_on_disk import (  # noqa: E402
    FP8_INPUT,
    HIDDEN,
    VOCAB,
    any_device,
    dense_head,
    fp8_head,
    fp8_weights,
    int_weights,
    pack,
    packed_head,
    quantization,
    read_config,
    unpack,
    write_safetensors,
)

register_cpu_ci(est_time=30, suite="base-a-test-cpu")

HEAD = ["re:.*lm_head$"]
BODY = (["Linear"], int_weights(4, 128))


def setUpModule():
    init_single_process_dist()


def on_disk(tensors, path="lm_head"):
    embedding = torch.ones(VOCAB, HIDDEN, dtype=torch.bfloat16)
    named = {f"{path}.{name}": tensor for name, tensor in tensors.items()}
    return {"model.embed_tokens.weight": embedding, **named}


def build(config, prefix="lm_head"):
    with any_device():
        return ParallelLMHead(VOCAB, HIDDEN, quant_config=config, prefix=prefix)


def build_and_load(config, tensors, prefix="lm_head"):
    """A head of this config with the checkpoint's tensors loaded into it."""
    head = build(config, prefix)
    params = dict(head.named_parameters())
    for name, tensor in tensors.items():
        params[name].weight_loader(params[name], tensor)
    return head


def packed_values(head, bits):
    codes = unpack(head.weight_packed[:VOCAB], bits)
    scale = head.weight_scale[:VOCAB].float()
    return codes * scale.repeat_interleave(HIDDEN // scale.shape[1], 1)


def fp8_values(head):
    return head.weight[:VOCAB].float() * head.weight_scale[:VOCAB]


class TestNamedHeads(CustomTestCase):
    """What SGLang resolves by itself, and must go on resolving."""

    def test_targets_that_name_the_head(self):
        """Red when a head that a target names is built dense, or another's way."""
        for target in ("lm_head", "re:.*lm_head", "language_model.lm_head"):
            with self.subTest(target):
                config = CompressedTensorsConfig.from_config(
                    quantization(BODY, ([target], int_weights(8)))
                )
                head = build(config, "language_model.lm_head")
                self.assertEqual(head.scheme.pack_factor, 4)
        config = CompressedTensorsConfig.from_config(quantization(BODY))
        self.assertIsInstance(
            build(config).quant_method, UnquantizedEmbeddingMethod, "class targets only"
        )

    def test_ignore_wins_and_the_first_target_in_order(self):
        """Red when the order of the config no longer decides."""
        config = quantization((HEAD, int_weights(8)), (["lm_head"], int_weights(4)))
        head = build(CompressedTensorsConfig.from_config(config))
        self.assertEqual(head.scheme.pack_factor, 4)
        config["ignore"] = ["lm_head"]
        head = build(CompressedTensorsConfig.from_config(config))
        self.assertIsNone(head.scheme)

    def test_block_fp8_is_refused(self):
        """Red when a block-quantized head is loaded, which no loader can shard."""
        weights = fp8_weights("block", block_structure=[128, 128])
        config = quantization(
            (HEAD, weights, FP8_INPUT), weight_format="naive-quantized"
        )
        with self.assertRaisesRegex(NotImplementedError, "Block-quantized lm_head"):
            build(CompressedTensorsConfig.from_config(config))

    def test_packed_integers_are_loaded_as_they_are(self):
        """Red when a code or a scale lands elsewhere, or in the padding."""
        for bits, group in ((4, 32), (4, None), (8, 128), (8, None)):
            with self.subTest(bits=bits, group=group):
                tensors, values = packed_head(bits, group)
                config = quantization((HEAD, int_weights(bits, group)))
                head = build_and_load(read_config(config, on_disk(tensors)), tensors)
                self.assertTrue(torch.equal(packed_values(head, bits), values))
                self.assertEqual(head.weight_packed[VOCAB:].count_nonzero(), 0)

    def test_fp8_is_loaded_as_it_is(self):
        """Red when a weight loses its scale, a channel's or the tensor's."""
        for strategy, shape in (("channel", (VOCAB, 1)), ("tensor", (1,))):
            with self.subTest(strategy):
                tensors, values = fp8_head(shape)
                config = quantization(
                    (HEAD, fp8_weights(strategy), FP8_INPUT),
                    weight_format="float-quantized",
                )
                head = build_and_load(read_config(config, on_disk(tensors)), tensors)
                self.assertTrue(torch.equal(fp8_values(head), values))


class TestStoredQuantized(CustomTestCase):
    """Quantized on disk, and the config does not say so."""

    def test_packed_head_of_a_config_that_does_not_name_it(self):
        """Red when the head is built dense, and so never filled."""
        cases = {
            "one scheme fits": ([BODY, (["re:.*mlp.*"], int_weights(8, 128))], 8, 128),
            "no scheme fits: by the shapes": ([BODY], 8, 128),
            "channel by the shapes": ([BODY], 4, None),
            "the body's own": ([BODY], 4, 128),
        }
        for case, (groups, bits, group) in cases.items():
            for ignore in ((), ("lm_head",), ("re:.*head.*",)):
                with self.subTest(case, ignore=ignore):
                    tensors, values = packed_head(bits, group)
                    config = read_config(
                        quantization(*groups, ignore=ignore), on_disk(tensors)
                    )
                    head = build_and_load(config, tensors)
                    self.assertTrue(torch.equal(packed_values(head, bits), values))

    def test_packed_head_that_a_target_names_for_another_scheme(self):
        """Red when the first of two targets decides against the tensors."""
        other = (["lm_head"], int_weights(8, 128))
        for groups in ((other, BODY), (other, (["re:.*mlp.*"], int_weights(8, 32)))):
            with self.subTest(groups):
                tensors, values = packed_head(4, 128)
                config = read_config(quantization(*groups), on_disk(tensors))
                head = build_and_load(config, tensors)
                self.assertTrue(torch.equal(packed_values(head, 4), values))

    def test_fp8_head_of_a_config_that_does_not_name_it(self):
        """Red when FP8 codes are taken for values, without their scale."""
        for strategy, shape in (("channel", (VOCAB, 1)), ("tensor", ())):
            for ignore in ((), ("lm_head",)):
                with self.subTest(strategy, ignore=ignore):
                    tensors, values = fp8_head(shape)
                    body = (["Linear"], fp8_weights(strategy), FP8_INPUT)
                    config = quantization(
                        body, ignore=ignore, weight_format="float-quantized"
                    )
                    head = build_and_load(
                        read_config(config, on_disk(tensors)), tensors
                    )
                    self.assertTrue(torch.equal(fp8_values(head), values))

    def test_the_head_is_found_under_the_names_that_checkpoints_use(self):
        """Red when a prefix that SGLang drops or adds hides the stored tensors."""
        tensors, _ = packed_head(8, 128)
        for stored, path in (
            ("lm_head", "language_model.lm_head"),
            ("language_model.lm_head", "lm_head"),
            ("model.lm_head", "lm_head"),
            ("lm_head", "lm_head"),
        ):
            with self.subTest(stored=stored, path=path):
                config = read_config(quantization(BODY), on_disk(tensors, stored))
                self.assertEqual(build(config, path).scheme.pack_factor, 4)

    def test_what_cannot_be_decided_is_refused_with_the_names(self):
        """Red when a guess is made, or the refusal does not say what contradicts."""
        packed, _ = packed_head(8, 128)
        zeros = {"weight_zero_point": pack(torch.zeros(VOCAB, 8, dtype=torch.int64), 8)}
        fp8, _ = fp8_head((VOCAB, 1))
        blocks = {**fp8, "weight_scale": torch.ones(2, 2)}
        eight = int_weights(8, 128)
        block_weights = fp8_weights("block", block_structure=[128, 128])
        cases = {
            "two schemes fit": (
                packed,
                [(["re:.*mlp.*"], eight), (["Linear"], {**eight, "observer": "mse"})],
                (),
                r"lm_head quantized \(weight_packed I32 \[200, 64\].*no target names "
                r"it, of \['re:.*', 'Linear'\].*2 of its schemes fit",
            ),
            "activations unknown": (
                fp8,
                [BODY],
                ("lm_head",),
                "F8_E4M3.*`ignore` lists it as 'lm_head'.*0 of its schemes fit",
            ),
            "other scheme": (
                {**packed, **zeros, "odd": fp8["weight_scale"]},
                [BODY],
                (),
                "odd",
            ),
            "blocks": (
                blocks,
                [(["Linear"], block_weights, FP8_INPUT)],
                (),
                "Block-quantized heads are not supported",
            ),
        }
        for case, (tensors, groups, ignore, message) in cases.items():
            with self.subTest(case):
                weight_format = (
                    "float-quantized" if case == "blocks" else "pack-quantized"
                )
                config = quantization(
                    *groups, ignore=ignore, weight_format=weight_format
                )
                config = read_config(config, on_disk(tensors))
                with self.assertRaisesRegex(ValueError, message):
                    build(config)


class TestStoredDense(CustomTestCase):
    def test_dense_head_that_a_target_names_is_built_dense(self):
        """Red when parameters are made that nothing on disk fills."""
        config = read_config(
            quantization((HEAD, int_weights(8, 128)), BODY), on_disk(dense_head())
        )
        head = build_and_load(config, dense_head())
        self.assertIsInstance(head.quant_method, UnquantizedEmbeddingMethod)
        self.assertEqual(head.weight[:VOCAB].unique().tolist(), [1])
        self.assertEqual([name for name, _ in head.named_parameters()], ["weight"])


class TestHeaders(CustomTestCase):
    def test_only_files_that_the_index_names_for_them_are_opened(self):
        """Red when a start reads every shard, a stray file, or a numbered layer."""
        from sglang.srt.model_loader.weight_utils import read_stored_modules

        head = on_disk(packed_head(8, 128)[0])
        layer = {"model.layers.0.q_proj.weight": torch.ones(2, 2)}
        with tempfile.TemporaryDirectory() as folder:
            write_safetensors(f"{folder}/head.safetensors", {**head, **layer})
            stray = {"lm_head.other": torch.ones(1)}
            write_safetensors(f"{folder}/stray.safetensors", stray)
            Path(folder, "layers.safetensors").write_text("not opened")
            weight_map = dict.fromkeys(head, "head.safetensors")
            weight_map["model.layers.1.q_proj.weight"] = "layers.safetensors"
            Path(folder, "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": weight_map})
            )
            stored = read_stored_modules(folder)
        self.assertEqual(
            stored,
            {
                "model.embed_tokens": {"weight": ("BF16", (VOCAB, HIDDEN))},
                "lm_head": {
                    "weight_packed": ("I32", (VOCAB, HIDDEN // 4)),
                    "weight_scale": ("BF16", (VOCAB, 2)),
                    "weight_shape": ("I64", (2,)),
                },
            },
        )


class TestAgreement(CustomTestCase):
    """Where tensors and config agree, or the tensors are unknown, nothing changes."""

    def test_the_resolution_is_sglangs_own(self):
        """Red when an agreeing checkpoint takes another way than on stock."""
        packed, _ = packed_head(8, 128)
        cases = (
            ([(HEAD, int_weights(8, 128)), BODY], (), packed, True),
            ([BODY], (), dense_head(), False),
            ([(HEAD, int_weights(8, 128)), BODY], ("lm_head",), dense_head(), False),
            ([BODY], (), {}, False),
            ([BODY], (), {"bias": torch.ones(VOCAB)}, False),
            ([BODY], (), {**dense_head(), "weight_scale": torch.ones(1)}, False),
            ([(HEAD, int_weights(8, 128))], (), {}, True),
        )
        for groups, ignore, tensors, quantized in cases:
            config = quantization(*groups, ignore=ignore)
            stock = CompressedTensorsConfig.from_config(config)
            read = read_config(config, on_disk(tensors))
            with self.subTest(ignore=ignore, tensors=list(tensors)):
                self.assertEqual(read.target_scheme_map, stock.target_scheme_map)
                self.assertEqual(read.ignore, stock.ignore)
                for head in (build(read), build(stock)):
                    self.assertEqual(head.scheme is not None, quantized)

    def test_other_modules_are_asked_for_as_before(self):
        """Red when what was decided for the head leaks into the shared config."""
        packed, _ = packed_head(8, 128)
        config = read_config(quantization(BODY, ignore=["re:.*"]), on_disk(packed))
        self.assertIsInstance(build(config).quant_method, CompressedTensorsLinearMethod)
        self.assertEqual(config.ignore, ["re:.*"])
        self.assertEqual(list(config.target_scheme_map), ["Linear"])
        self.assertIsNone(build(config, "other_head").scheme)

    def test_other_methods_read_no_file(self):
        """Red when a checkpoint of another method pays for the headers."""
        name = "read_stored_modules"
        target = f"sglang.srt.model_loader.weight_utils.{name}"
        with mock.patch(target, side_effect=AssertionError, create=True):
            config = {"quant_method": "w8a8_fp8"}
            config = read_config(config, on_disk(dense_head()), method="w8a8_fp8")
        self.assertEqual(config.get_name(), "w8a8_fp8")
        with mock.patch(target, side_effect=AssertionError, create=True):
            model_config = mock.Mock(quantization=None)
            self.assertIsNone(
                loader._get_quantization_config(model_config, mock.Mock())
            )


if __name__ == "__main__":
    unittest.main()
