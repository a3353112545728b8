"""What a DFlash draft takes from a checkpoint, what it refuses, and in which words."""

import os
import re
import sys
import unittest
from unittest import mock

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dflash_drafts as drafts  # noqa: E402

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

QUANTIZED = ("o_proj", "gate_proj", "up_proj", "down_proj", "fc")
IGNORED = ["re:.*self_attn.(q|k|v)_proj"]
CODEBOOKS = tuple(
    f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor")
)


def setUpModule():
    init_single_process_dist()
    TestCase.config = drafts.make_config()
    TestCase.tensors = drafts.make_tensors(TestCase.config)
    modules = drafts.projections(TestCase.tensors, *QUANTIZED)
    TestCase.packed, TestCase.meant = drafts.quantize_modules(TestCase.tensors, modules)
    TestCase.described = drafts.make_config(
        quantization_config=drafts.compressed_tensors(ignore=IGNORED)
    )


def renamed(tensors, **renames):
    """The tensors with the starts of their names replaced."""
    named = {}
    for name, tensor in tensors.items():
        for old, new in renames.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
        named[name] = tensor
    return named


def without(tensors, *names):
    return {name: tensor for name, tensor in tensors.items() if name not in names}


class TestCase(CustomTestCase):
    def refused(self, words, config, tensors, **options):
        with self.assertRaisesRegex(ValueError, re.compile(words, re.DOTALL)):
            drafts.load(config, tensors, **options)

    def assert_values(self, draft, tensors):
        """The draft holds these values in `fc`, its layers and its codebooks."""
        fc = draft.fc
        values = drafts.dequantized(fc) if hasattr(fc, "weight_packed") else fc.weight
        self.assertTrue(torch.equal(values.bfloat16(), tensors["fc.weight"]))
        gate_up = draft.layers[1].mlp.gate_up_proj
        if hasattr(gate_up, "weight_packed"):
            gate = drafts.dequantized(gate_up)[:512].bfloat16()
            expected = tensors["layers.1.mlp.gate_proj.weight"]
            self.assertTrue(torch.equal(gate, expected))
        for name in CODEBOOKS:
            self.assertTrue(torch.equal(draft.get_parameter(name), tensors[name]))


class TestNames(TestCase):
    def test_packed_and_dense_tensors_load_under_every_name(self):
        """Red when a prefix, a vendor's name or a codebook's spelling drops a tensor
        (D4)."""
        vendor = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
        codebooks = {name: f"{name}.weight" for name in CODEBOOKS}
        spellings = {
            "own": {},
            "model.": {"": "model."},
            "vendor": vendor,
            "model. and vendor": {k: f"model.{v}" for k, v in vendor.items()},
            "codebooks as modules": codebooks,
        }
        drafts_on_disk = (
            (self.config, self.tensors, self.tensors),
            (self.described, self.packed, self.meant),
        )
        for spelling, renames in spellings.items():
            for config, tensors, meant in drafts_on_disk:
                kind = "packed" if config is self.described else "dense"
                with self.subTest(spelling, kind=kind):
                    draft = drafts.load(config, renamed(tensors, **renames))
                    self.assert_values(draft, meant)
                    norm = draft.hidden_norm.weight
                    self.assertTrue(torch.equal(norm, meant["hidden_norm.weight"]))

    def test_tensors_without_a_parameter_by_design_are_ignored(self):
        """Red when strictness refuses what exporters write and no draft reads."""
        extra = (
            "embed_tokens.weight",
            "lm_head.weight",
            "d2t",
            "unknown.module.weight",
            "layers.9.mlp.down_proj.weight_packed",
            "layers.0.self_attn.rotary_emb.inv_freq",
            "rotary_emb.cos_cached",
            "layers.0.self_attn.rotary_emb.sin_cached",
            "layers.0.self_attn.q_proj.bias",
            "layers.0.self_attn.k_proj.k_scale",
            "layers.0.self_attn.v_scale",
            "layers.0.self_attn.kv_scale",
            "layers.0.mlp.down_proj.input_scale",
            "layers.0.self_attn.o_proj.output_scale",
            "fc.bias",
        )
        extra = {name: torch.ones(1) for name in extra}
        self.assert_values(drafts.load(self.config, self.tensors | extra), self.tensors)
        self.assert_values(drafts.load(self.described, self.packed | extra), self.meant)

    def test_the_stream_is_taken_one_tensor_at_a_time(self):
        """Red when a wrapper lists the checkpoint before loading it."""
        draft = drafts.build(self.config)

        def stream():
            yield "fc.weight", self.tensors["fc.weight"]
            self.assertTrue(torch.equal(draft.fc.weight, self.tensors["fc.weight"]))

        draft.load_weights(stream())


class TestRefusals(TestCase):
    def test_dense_tensor_for_a_packed_module(self):
        """Red when it is dropped and the packed parameters stay unfilled (D5)."""
        for module in ("fc", "layers.1.mlp.gate_proj", "layers.0.self_attn.o_proj"):
            name = f"{module}.weight"
            tensors = self.packed | {name: self.tensors[name]}
            with self.subTest(module):
                words = f"{name}.*weight_packed, weight_scale, weight_shape"
                self.refused(words, self.described, tensors)

    def test_packed_tensor_for_a_dense_module(self):
        """Red when the codes are dropped and the weight stays random (D5)."""
        modules = (
            "layers.1.self_attn.k_proj",
            "layers.0.attention_conv.kernel_projection",
            "candidate_selector.hidden_projection",
            *CODEBOOKS,
        )
        for module in modules:
            tensors = self.packed | {f"{module}.weight_packed": torch.zeros(1, 1).int()}
            with self.subTest(module):
                self.refused(f"{module}.weight_packed", self.described, tensors)

    def test_packed_fc_of_a_draft_that_describes_no_quantization(self):
        """Red when it is dropped under its own or the vendor's name (D2, D7)."""
        packed, _ = drafts.quantize_modules(self.tensors, ["fc"])
        only_in_file = {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "FP8", "exclude_modules": ["*"]},
        }
        for hf_quant_config in (None, only_in_file):
            for vendor in ({}, {"fc.": "encoder.fc."}):
                with self.subTest(vendor=vendor, only_in_file=bool(hf_quant_config)):
                    self.refused(
                        r"fc\.weight_packed.*Linear \(parameters: weight;",
                        self.config,
                        renamed(packed, **vendor),
                        hf_quant_config=hf_quant_config,
                    )

    def test_codes_stored_as_weight_of_a_dense_module(self):
        """Red when FP8 or int8 codes are copied as numbers without their scale."""
        for dtype in (torch.float8_e4m3fn, torch.int8):
            for name in ("fc.weight", "layers.0.self_attn.q_proj.weight"):
                tensors = self.tensors | {name: self.tensors[name].to(dtype)}
                with self.subTest(name, dtype=dtype):
                    self.refused(f"{name}.*{dtype}", self.config, tensors)

    def test_packed_fc_for_another_number_of_target_layers(self):
        """Red when a packed projection's shape is not told in features."""
        config = drafts.make_config(
            quantization_config=self.described["quantization_config"],
            dflash=drafts.DFLASH2 | {"target_layer_ids": [1, 3, 5]},
        )
        self.refused("512 features.*asks for 768.*3 layers", config, self.packed)

    def test_layers_without_fc(self):
        """Red when a checkpoint without a projection is served with a random one
        (D6)."""
        for config, tensors in (
            (self.config, self.tensors),
            (self.described, self.packed),
        ):
            fc = [name for name in tensors if name.startswith("fc.")]
            with self.subTest(packed=config is self.described):
                self.refused("no fc|fc.weight_packed", config, without(tensors, *fc))


class TestFirstLoad(TestCase):
    def test_every_parameter_of_a_quantized_draft_must_be_filled(self):
        """Red when a scale, a shard or a norm stays as memory had it (D2, D11)."""
        down, gate_up, qkv = (
            "layers.1.mlp.down_proj.weight_scale",
            "layers.0.mlp.gate_up_proj.weight_scale (rows 512..1023 of 1024)",
            "layers.0.self_attn.qkv_proj.weight (rows 384..511 of 512)",
        )
        missing = {
            down: down,
            "layers.0.mlp.up_proj.weight_scale": gate_up,
            "layers.0.self_attn.v_proj.weight": qkv,
            "hidden_norm.weight": "hidden_norm.weight",
            CODEBOOKS[0]: CODEBOOKS[0],
        }
        for name, parameter in missing.items():
            with self.subTest(name):
                words = f"unfilled parameters: {re.escape(parameter)}[.]"
                self.refused(words, self.described, without(self.packed, name))

    def test_packed_shapes_may_be_absent(self):
        """Red when a tensor that no kernel reads is asked for."""
        shapes = [name for name in self.packed if name.endswith("weight_shape")]
        draft = drafts.load(self.described, without(self.packed, *shapes))
        self.assert_values(draft, self.meant)

    def test_dense_drafts_are_warned_of(self):
        """Red when a dense draft that stock serves is refused, or passes in silence."""
        with self.assertLogs("sglang.srt.model_loader.load_audit") as logs:
            drafts.load(self.config, without(self.tensors, "hidden_norm.weight"))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("unfilled parameters: hidden_norm.weight.", logs.output[0])

    def test_later_loads_may_be_partial(self):
        """Red when a weight update with some of the tensors is refused."""
        for config, tensors in (
            (self.config, self.tensors),
            (self.described, self.packed),
        ):
            draft = drafts.load(config, tensors)
            part = [kv for kv in tensors.items() if kv[0].startswith("layers.")]
            draft.load_weights(part)
            draft.load_weights(part[:1])
            with drafts.weight_only_on_cpu():
                DefaultModelLoader.load_weights_and_postprocess(
                    draft, part, torch.device("cpu")
                )

    def test_parameters_dropped_after_loading_may_come_again(self):
        """Red when an update from the same files names what a quant method dropped."""
        draft = drafts.load(self.described, self.packed)
        del draft.fc.weight_shape
        draft.load_weights(self.packed.items())

    def test_parts_of_a_checkpoint_may_come_first(self):
        """Red when the projector of a draft, or a bucket of layers, is refused alone."""
        draft = drafts.build(self.config)
        layer = [kv for kv in self.tensors.items() if kv[0].startswith("layers.0.")]
        draft.load_weights(layer)
        draft.load_weights([("hidden_norm.weight", self.tensors["hidden_norm.weight"])])


class TestLayouts(TestCase):
    def test_packed_integers(self):
        """Red when a group size or a width is laid out or scaled wrongly."""
        modules = drafts.projections(self.tensors, *QUANTIZED)
        for bits, group in ((8, 128), (8, 32), (8, None), (4, 128), (4, 32), (4, None)):
            config = drafts.make_config(
                quantization_config=drafts.compressed_tensors(bits, group, IGNORED)
            )
            packed, meant = drafts.quantize_modules(self.tensors, modules, bits, group)
            with self.subTest(bits=bits, group=group):
                self.assert_values(drafts.load(config, packed), meant)

    def load_fp8(self, quantization_config, scale_name, block):
        """Load an FP8 `fc` scaled by `[rows, columns]` blocks; its values and theirs."""
        weight = self.tensors["fc.weight"].float()
        rows, columns = (size or n for size, n in zip(block, weight.shape))
        grid = weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        scale = grid.abs().amax((1, 3)) / 448
        spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        codes = (weight / spread).to(torch.float8_e4m3fn)
        stored = {"fc.weight": codes, f"fc.{scale_name}": scale}
        if block == (None, None):
            stored[f"fc.{scale_name}"] = scale.reshape(())
        config = drafts.make_config(quantization_config=quantization_config)
        with mock.patch.object(DefaultModelLoader, "postprocess_weights"):
            draft = drafts.load(config, self.tensors | stored)
        loaded = getattr(draft.fc, scale_name).float().view_as(scale)
        self.assertTrue(torch.equal(loaded, scale.to(loaded.dtype)))
        return draft.fc.weight.float() * spread, codes.float() * spread

    def test_fp8(self):
        """Red when an FP8 `fc` is dropped, or loaded without its scale (D2)."""
        rest = ["re:.*proj$"]
        fp8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
        dynamic = {**fp8, "strategy": "token", "dynamic": True}

        def compressed(strategy):
            group = {
                "targets": ["re:^fc$"],
                "weights": {**fp8, "strategy": strategy},
                "input_activations": dynamic,
            }
            return {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": group},
                "ignore": rest,
            }

        serialized = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": [f"layers.{i}" for i in range(drafts.LAYERS)],
        }
        layouts = {
            "per channel": (compressed("channel"), "weight_scale", (1, None)),
            "per tensor": (compressed("tensor"), "weight_scale", (None, None)),
            "block": (serialized, "weight_scale_inv", (128, 128)),
        }
        for name, layout in layouts.items():
            with self.subTest(name):
                self.assertTrue(torch.equal(*self.load_fp8(*layout)))


if __name__ == "__main__":
    unittest.main()
