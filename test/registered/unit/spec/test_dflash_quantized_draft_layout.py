"""How a DFlash draft is built: under its checkpoint's names where its own config
describes a quantization, and exactly as without the fixes everywhere else."""

import contextlib
import logging
import os
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.models.dflash import DFlash2DraftModel, DFlashDraftModel
from sglang.srt.speculative.dflash_utils import (
    can_dflash_use_fused_qkv_proj,
    parse_dflash_draft_config,
)
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dflash_drafts as drafts  # noqa: E402

register_cpu_ci(est_time=45, suite="base-a-test-cpu")

QKV = ("q_proj", "k_proj", "v_proj")
MODELOPT = {
    "producer": {"name": "modelopt"},
    "quantization": {"quant_algo": "FP8", "exclude_modules": ["fc"]},
}


def setUpModule():
    init_single_process_dist()


def attention(shards, prefix=""):
    return [
        f"{prefix}layers.{layer}.self_attn.{shard}"
        for layer in range(drafts.LAYERS)
        for shard in shards
    ]


def described(ignore=(), **options):
    """The config of a draft that describes its own quantization."""
    return drafts.make_config(
        quantization_config=drafts.compressed_tensors(ignore=ignore, **options)
    )


def signature(draft):
    """Names, shapes and dtypes of the parameters, and each linear's quant method."""
    methods = {
        name: type(getattr(module, "quant_method", None)).__name__
        for name, module in draft.named_modules()
    }
    parameters = {
        name: (tuple(parameter.shape), parameter.dtype)
        for name, parameter in draft.named_parameters()
    }
    return parameters, methods, type(draft.fc).__name__


@contextlib.contextmanager
def recorded_prefixes():
    """The prefixes under which a draft's modules ask for their quant methods."""
    prefixes = []
    original = CompressedTensorsConfig.get_quant_method

    def record(self, layer, prefix):
        prefixes.append(prefix)
        return original(self, layer, prefix)

    with mock.patch.object(CompressedTensorsConfig, "get_quant_method", record):
        yield prefixes


@contextlib.contextmanager
def without_fixes():
    """Drafts built by SGLang's own constructor, for what must not change."""
    original = drafts.undecorated(DFlashDraftModel.__init__)
    with mock.patch.object(DFlashDraftModel, "__init__", original):
        yield


class TestNames(CustomTestCase):
    def test_layers_and_fc_ask_under_their_checkpoint_names(self):
        """Red when a module of a quantized draft is built under a bare name."""
        with recorded_prefixes() as prefixes:
            drafts.build(described())
        kinds = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj")
        expected = {f"layers.{i}.{kind}" for i in range(2) for kind in kinds}
        self.assertLessEqual(expected | {"fc", "layers.1.mlp.down_proj"}, {*prefixes})

    def test_an_outer_prefix_comes_first(self):
        """Red when the prefix that a draft is given is lost."""
        draft = described()
        with drafts.checkpoint(draft, {}) as folder:
            hf_config = drafts.model_config(folder).hf_config
        config = CompressedTensorsConfig.from_config(
            {**draft["quantization_config"], "packed_modules_mapping": {}}
        )
        with recorded_prefixes() as prefixes, drafts.weight_only_on_cpu():
            DFlash2DraftModel(hf_config, config, prefix="draft")
        self.assertIn("draft.layers.1.self_attn.qkv_proj", prefixes)
        self.assertIn("draft.fc", prefixes)

    def test_names_with_the_models_or_the_vendors_prefix_match(self):
        """Red when a config names modules as its tensors are named and none matches."""
        ignore = [*attention(QKV, prefix="model."), "encoder.fc"]
        draft = drafts.build(described(ignore))
        self.assertTrue(hasattr(draft.layers[1].self_attn.qkv_proj, "weight"))
        self.assertTrue(hasattr(draft.fc, "weight"))
        self.assertTrue(hasattr(draft.layers[1].self_attn.o_proj, "weight_packed"))

    def test_a_module_that_no_target_covers_is_named_with_its_layer(self):
        """Red when the error for it says `down_proj` and not which one (D11)."""
        covered = "re:.*(self_attn|gate_up_proj|fc).*"
        with self.assertRaisesRegex(ValueError, r"layers\.0\.mlp\.down_proj"):
            drafts.build(described(targets=[covered]))


class TestFusedModules(CustomTestCase):
    def test_ignoring_every_shard_ignores_the_fused_module(self):
        """Red when the loader is not given the mapping of fused modules (D3)."""
        mlp = ["re:.*gate_proj", "re:.*up_proj"]
        draft = drafts.build(described([*attention(QKV), *mlp]))
        for layer in draft.layers:
            for module in (layer.self_attn.qkv_proj, layer.mlp.gate_up_proj):
                self.assertIsInstance(module.quant_method, UnquantizedLinearMethod)
            self.assertTrue(hasattr(layer.mlp.down_proj, "weight_packed"))

    def test_ignoring_one_shard_is_an_error_that_names_all(self):
        """Red when a lone shard is taken for the whole fused module (D3)."""
        with self.assertRaisesRegex(ValueError, "q_proj.*k_proj.*v_proj.*layers.0"):
            drafts.build(described(attention(["k_proj"])))

    def test_fused_context_kv_wants_dense_qkv(self):
        """Red when dense q, k and v lose the fused path, or packed ones take it (D10)."""
        dense = drafts.build(described(attention(QKV)))
        packed = drafts.build(described())
        for layer in dense.layers:
            self.assertEqual(
                can_dflash_use_fused_qkv_proj(layer.self_attn.qkv_proj), (True, "")
            )
        worker = SimpleNamespace(draft_model=packed)
        with self.assertLogs("sglang", logging.INFO) as logs:
            DFlashWorkerV2._init_fused_kv_helper(worker)
        self.assertIs(worker._use_fused_kv_materialize, False)
        self.assertRegex(
            logs.output[-1], "quantized qkv_proj is not supported.*layer=0"
        )


class TestFc(CustomTestCase):
    def test_fc_follows_the_config(self):
        """Red when `fc` stays dense under a config that covers it, or the reverse."""
        covered, ignored = drafts.build(described()), drafts.build(described(["fc"]))
        shape = (drafts.HIDDEN, drafts.TAPS * drafts.HIDDEN // 4)
        self.assertEqual(tuple(covered.fc.weight_packed.shape), shape)
        self.assertIsInstance(ignored.fc.quant_method, UnquantizedLinearMethod)

    def test_fc_of_a_dense_draft_is_a_plain_linear(self):
        """Red when a draft that describes no quantization gets another `fc`."""
        self.assertIs(type(drafts.build(drafts.make_config()).fc), torch.nn.Linear)


class TestUnchanged(CustomTestCase):
    def check(self, config, **options):
        ours = signature(drafts.build(config, **dict(options)))
        with without_fixes():
            stock = signature(drafts.build(config, **dict(options)))
        self.assertEqual(ours, stock)
        return ours

    def test_dense_draft_alone_and_told_to_stay_unquantized(self):
        """Red when a dense draft changes; `unquant` reaches the draft as None (D8)."""
        _, methods, _ = self.check(drafts.make_config(), quantization=None)
        self.assertNotIn("Fp8LinearMethod", methods.values())

    def test_dense_draft_under_the_targets_online_fp8(self):
        """Red when an inherited `--quantization fp8` changes more than on stock (D8)."""
        _, methods, fc = self.check(drafts.make_config(), quantization="fp8")
        self.assertEqual(methods["layers.0.self_attn.o_proj"], "Fp8LinearMethod")
        self.assertEqual(fc, "Linear")

    def test_draft_described_only_in_hf_quant_config(self):
        """Red when such a draft is built under names or with a quantized `fc` (D7)."""
        _, methods, fc = self.check(drafts.make_config(), hf_quant_config=MODELOPT)
        self.assertEqual(methods["layers.0.mlp.down_proj"], "ModelOptFp8LinearMethod")
        self.assertEqual(fc, "Linear")

    def test_its_excluded_shards_stay_bare_names(self):
        """Red when the mapping of fused modules reaches a draft built without names."""
        quantization = {
            "quant_algo": "FP8",
            "exclude_modules": ["*q_proj*", "down_proj"],
        }
        hf_quant_config = {**MODELOPT, "quantization": quantization}
        self.check(drafts.make_config(), hf_quant_config=hf_quant_config)


class TestInheritance(CustomTestCase):
    def test_a_drafts_own_quantization_beats_the_targets(self):
        """Red when the target's method is forced on a draft that describes its own."""
        for inherited in ("fp8", None):
            with self.subTest(inherited):
                draft = drafts.build(described(), quantization=inherited)
                self.assertTrue(hasattr(draft.fc, "weight_packed"))

    def test_missing_target_layers_are_refused(self):
        """Red when the target's layers are guessed for a draft that names none (D12)."""
        config = drafts.make_config()
        del config["dflash_config"]["target_layer_ids"]
        parsed = parse_dflash_draft_config(draft_hf_config=config)
        with self.assertRaisesRegex(ValueError, "target_layer_ids"):
            parsed.resolve_target_layer_ids(target_num_layers=8)


if __name__ == "__main__":
    unittest.main()
