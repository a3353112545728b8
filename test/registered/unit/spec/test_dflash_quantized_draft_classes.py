"""Every class of DFlash draft, with a dense and with a quantized `fc`: built and
loaded by SGLang's loader, its block and its target features run forward."""

import os
import sys
import unittest
from unittest import mock

import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization.modelopt_quant import (
    ModelOptNvFp4A16LinearMethod,
)
from sglang.srt.models.dspark_minimax import MiniMaxDraftBackbone
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import dflash_drafts as drafts  # noqa: E402

register_cpu_ci(est_time=75, suite="base-a-test-cpu")

DOMINO = {
    "projector_type": "domino",
    "shift_label": False,
    "pure_draft_prefix_len": 1,
    "gru_hidden_dim": 32,
    "emb_dim": 16,
}
LILICORR = {
    "lilicorr_candidate_topk": 4,
    "lilicorr_hidden_size": 0,
    "lilicorr_num_layers": 1,
    "lilicorr_num_heads": 4,
    "lilicorr_mlp_ratio": 1.0,
    "lilicorr_factor_dim": 8,
    "lilicorr_vector_eps": 1e-6,
    "lilicorr_logit_scale": 1.0,
}
DSPARK = {"markov_rank": 8, "markov_head_type": "vanilla"}
DSPARK_CLASSES = (
    "DSparkDraftModel",
    "Qwen3DSparkModel",
    "LingDSparkModel",
    "Lfm2DSparkDraftModel",
)
# What each needs in its `dflash_config` and beside it.
CLASSES = {
    "DFlashDraftModel": ({}, {}),
    "MuseGlimmerAssistantModel": ({}, {}),
    "DFlash2DraftModel": (drafts.DFLASH2, {}),
    "DFlash2BeamDraftModel": (drafts.DFLASH2, {}),
    "MiniMaxDFlash2DraftModel": (drafts.DFLASH2, {}),
    "DFlashLagunaForCausalLM": ({}, {"gating": "per-head"}),
    "LiLiCorrDraftModel": (LILICORR, {}),
    **{name: ({}, DSPARK) for name in DSPARK_CLASSES},
}
DRAFTS = CLASSES | {"Domino": (DOMINO, {})}
QUANTIZED = ("o_proj", "gate_proj", "up_proj", "down_proj")


def setUpModule():
    init_single_process_dist()


def make_draft(kind):
    """The config and the tensors of a dense draft."""
    dflash, fields = DRAFTS[kind]
    architecture = "DFlashDraftModel" if kind == "Domino" else kind
    config = drafts.make_config(architecture, dflash, **fields)
    return config, drafts.make_tensors(config)


def quantize(config, tensors, modules):
    """The draft with these of its modules packed, and what its tensors stand for."""
    covered = [f"re:^{module}$" for module in modules]
    matrices = [name for name, tensor in tensors.items() if tensor.ndim == 2]
    others = {name.removesuffix(".weight") for name in matrices} - {*modules}
    quantization = drafts.compressed_tensors(
        targets=covered, ignore=[f"re:^{name}$" for name in sorted(others)]
    )
    packed, meant = drafts.quantize_modules(tensors, modules)
    return {**config, "quantization_config": quantization}, packed, meant


def layer_modules(tensors):
    names = drafts.projections(tensors, *QUANTIZED)
    return [name for name in names if name.startswith("layers.")]


class TestForward(CustomTestCase):
    def assert_close(self, ours, reference):
        for name, mine, theirs in zip(("block", "features"), ours, reference):
            self.assertTrue(torch.isfinite(mine).all(), name)
            error = (mine - theirs).float().norm() / theirs.float().norm()
            self.assertLess(error.item(), 0.02, name)

    def test_quantized_drafts_compute_what_their_values_say(self):
        """Red when a class drops, misplaces or misreads a quantized `fc` or layer
        (D2, D9)."""
        for kind in DRAFTS:
            config, tensors = make_draft(kind)
            layers = layer_modules(tensors)
            for modules in ([*layers, "fc"], ["fc"], layers):
                packed_config, packed, meant = quantize(config, tensors, modules)
                with self.subTest(kind, fc="fc" in modules, layers=len(modules)):
                    draft = drafts.load(packed_config, packed)
                    self.assertIsInstance(draft.fc, ReplicatedLinear)
                    reference = drafts.load(config, meant)
                    self.assert_close(drafts.forward(draft), drafts.forward(reference))

    def test_dense_drafts_run(self):
        """Red when strict loading or the new attributes break a dense draft."""
        for kind in DRAFTS:
            with self.subTest(kind):
                config, tensors = make_draft(kind)
                draft = drafts.load(config, tensors)
                for out in drafts.forward(draft):
                    self.assertTrue(torch.isfinite(out).all())

    def test_wrong_features_are_refused_with_the_numbers(self):
        """Red when features of another number of layers reach `fc`."""
        for kind in ("DFlashDraftModel", "DFlashLagunaForCausalLM"):
            config, packed, _ = quantize(*make_draft(kind), ["fc"])
            draft = drafts.load(config, packed)
            with self.subTest(kind), self.assertRaisesRegex(ValueError, "512.*256"):
                draft.project_target_hidden(torch.zeros(3, 256, dtype=torch.bfloat16))


def nvfp4_values(layer):
    """The matrix that a W4A16 NVFP4 layer's parameters stand for."""
    positive = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = torch.cat([positive, -positive])
    nibbles = torch.stack([layer.weight & 15, layer.weight >> 4], dim=-1)
    codes = levels[nibbles.flatten(1).long()]
    scale = layer.weight_scale.float() * layer.weight_scale_2.float()
    return codes * scale.repeat_interleave(16, dim=1)


class TestNemotron(CustomTestCase):
    """It is known by its W4A16 NVFP4 config, so its dense `fc` is an excluded one."""

    def make(self, fc_is_dense):
        excluded = ["layers*", "embed_tokens*", *(["fc"] if fc_is_dense else [])]
        config = drafts.make_config(
            "DFlashDraftModel",
            {"sample_from_anchor": False},
            has_embed_tokens=True,
            eagle_aux_hidden_state_layer_ids=[2, 4],
            quantization_config={
                "quant_method": "modelopt",
                "quant_algo": "W4A16_NVFP4",
                "kv_cache_quant_algo": None,
                "group_size": 16,
                "ignore": excluded,
            },
        )
        plain = drafts.make_config("DFlashDraftModel", {})
        tensors = drafts.make_tensors(plain)
        embedding = torch.randn(drafts.VOCAB, drafts.HIDDEN)
        tensors["embed_tokens.weight"] = embedding.bfloat16()
        if not fc_is_dense:
            rows, columns = tensors.pop("fc.weight").shape
            codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
            scale = torch.full((rows, columns // 16), 0.5).to(torch.float8_e4m3fn)
            tensors |= {
                "fc.weight": codes,
                "fc.weight_scale": scale,
                "fc.weight_scale_2": torch.tensor(0.01),
            }
        return config, tensors

    def test_runs_with_a_dense_and_a_quantized_fc(self):
        """Red when the audit asks Nemotron for a scale that its method never reads."""

        def apply(self, layer, x, bias=None):
            return (x.float() @ nvfp4_values(layer).T).to(x.dtype)

        method = ModelOptNvFp4A16LinearMethod
        after_loading = "process_weights_after_loading"
        for fc_is_dense in (True, False):
            with (
                self.subTest(fc_is_dense=fc_is_dense),
                mock.patch.object(method, "apply", apply),
                mock.patch.object(method, after_loading, lambda *_: None),
            ):
                draft = drafts.load(*self.make(fc_is_dense))
                self.assertTrue(draft.is_nemotron_35_draft)
                quantized = isinstance(draft.fc.quant_method, method)
                self.assertIs(quantized, not fc_is_dense)
                for out in drafts.forward(draft):
                    self.assertTrue(torch.isfinite(out).all())


class TestContextKV(CustomTestCase):
    def test_keys_and_values_of_a_quantized_qkv(self):
        """Red when K or V is sliced out of packed codes or takes a neighbour's scale
        (D10)."""
        config, tensors = make_draft("DFlashDraftModel")
        shards = drafts.projections(tensors, "q_proj", "k_proj", "v_proj")
        packed_config, packed, meant = quantize(config, tensors, shards)
        quantized = drafts.load(packed_config, packed)
        dense = drafts.load(config, meant)
        context = torch.randn(3, drafts.HIDDEN, dtype=torch.bfloat16)
        for ours, theirs in zip(quantized.layers, dense.layers):
            with drafts.weight_only_on_cpu():
                pairs = zip(
                    ours.self_attn.kv_proj_only(context),
                    theirs.self_attn.kv_proj_only(context),
                )
            for mine, reference in pairs:
                torch.testing.assert_close(mine, reference, rtol=0.02, atol=0.02)


class TestDSpark(CustomTestCase):
    def test_the_audit_knows_the_heads_that_dspark_fills_itself(self):
        """Red when DSpark's Markov head is missed, or a missing one is served."""
        config, packed, _ = quantize(*make_draft("DSparkDraftModel"), ["fc"])
        head = "markov_head.markov_w2.weight"
        self.assertIn(head, packed)
        with self.assertRaisesRegex(ValueError, f"unfilled parameters: {head}"):
            drafts.load(config, {k: v for k, v in packed.items() if k != head})

    def test_minimax_keeps_the_names_it_had(self):
        """Red when the mapping of fused modules reaches the backbone that builds and
        loads itself."""
        self.assertEqual(
            getattr(MiniMaxDraftBackbone, "packed_modules_mapping", {}), {}
        )


if __name__ == "__main__":
    unittest.main()
