"""What drafts of the DFlash family do over a packed target head: fold it into the
draft's graph, run it eagerly and say why, or refuse it."""

import contextlib
import logging
import os
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.models import dflash
from sglang.srt.models.dspark import project_through_lm_head
from sglang.srt.models.lilicorr import LiLiCorrHead
from sglang.srt.speculative import dflash_worker_v2, lilicorr_utils
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.domino_utils import validate_domino_runtime
from sglang.srt.speculative.dspark_components import dspark_worker_v2
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from dflash_heads import HIDDEN, TOP_K, VOCAB, hidden, make_head, values  # noqa: E402

register_cpu_ci(est_time=40, suite="base-a-test-cpu")

BLOCK = 4
# What DSpark's worker reads or builds before it looks at the target's head.
WORKER_PARTS = (
    "build_block_pos_offsets",
    "build_draft_tp_worker",
    "draft_is_deepseek_v4",
    "draft_pp_context",
    "get_disagg",
    "get_dp_tp_group",
    "get_exec",
    "get_parallel",
    "get_pp_stage_load_group",
    "get_schedule",
    "get_spec",
    "make_draft_block_spec_info",
    "mambaish_config",
    "model_draft_parallel_spec",
    "resolve_draft_parallel_layout",
    "resolve_runtime_config",
    "SpecTpSync",
)


def setUpModule():
    init_single_process_dist()


def make_worker(lm_head, **parts):
    """A worker as far as its draft sampler and its greedy head look at it."""
    embedding = torch.nn.Embedding(VOCAB, HIDDEN)
    target = SimpleNamespace(lm_head=lm_head, get_input_embeddings=lambda: embedding)
    runner = SimpleNamespace(
        model=target, model_config=SimpleNamespace(vocab_size=VOCAB)
    )
    fields = {
        "block_size": BLOCK,
        "device": "cpu",
        "draft_model": None,
        "selector": None,
        "lilicorr": None,
        "model_runner": runner,
        "_is_domino": False,
        "_target_tp_rank": 0,
        "_target_worker": SimpleNamespace(model_runner=runner),
        "_selector_sampling_enabled": False,
        "_lilicorr_sampling_enabled": False,
    }
    worker = object.__new__(DFlashWorkerV2)
    worker.__dict__.update(fields | parts)
    return worker


def make_selector_draft():
    draft = dflash.DFlash2DraftModel.__new__(dflash.DFlash2DraftModel)
    torch.nn.Module.__init__(draft)
    draft.lm_head = None
    draft.draft_config = SimpleNamespace(
        output_multiplier=1.0, final_logit_softcapping=None
    )
    draft.candidate_selector = dflash.CandidateSelector(
        hidden_size=HIDDEN, vocab_size=VOCAB, state_rank=8, top_k=TOP_K
    )
    return draft


def make_lilicorr():
    head = LiLiCorrHead(
        model_hidden_size=HIDDEN,
        block_size=BLOCK,
        rms_norm_eps=1e-6,
        config=lilicorr_utils.LiLiCorrConfig(
            candidate_topk=TOP_K,
            hidden_size=0,
            num_layers=1,
            num_heads=4,
            mlp_ratio=1.0,
            factor_dim=8,
            vector_eps=1e-6,
            logit_scale=1.0,
        ),
    )
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    head.materialize_inference_buffers(torch.device("cpu"), torch.float32)
    return head


@torch.no_grad()
def fold(worker):
    """The draft sampler for one captured batch size, called once on two blocks."""
    graph = SimpleNamespace(
        cuda_graph_config=SimpleNamespace(decode=SimpleNamespace(bs=[2]))
    )
    exec_config = mock.Mock(return_value=SimpleNamespace(graph=graph))
    with (
        mock.patch.object(dflash_worker_v2, "get_exec", exec_config),
        mock.patch.object(lilicorr_utils, "get_exec", exec_config),
        torch.compiler.set_stance("force_eager"),
    ):
        sampler = DFlashWorkerV2._maybe_build_draft_sampler(worker)
        if sampler is not None:
            ids = torch.zeros(2 * BLOCK, dtype=torch.long)
            sampler(hidden(2 * BLOCK), ids)
        return sampler


class TestFolding(CustomTestCase):
    def test_selector_folds_over_every_head(self):
        """Red when a packed head keeps DFlash2's selector out of the graph."""
        for kind in ("dense", "packed", "W4A4"):
            draft, head = make_selector_draft(), make_head(kind)
            worker = make_worker(
                head, draft_model=draft, selector=draft.candidate_selector
            )
            with self.subTest(kind):
                sampler = fold(worker)
                self.assertIs(draft.lm_head, head)
                # Codebooks of zeros leave the best token of the head.
                best = (hidden(2 * BLOCK) @ values().T).argmax(-1).view(2, BLOCK)
                self.assertEqual(sampler.out.tolist(), best[:, 1:].flatten().tolist())

    def test_lilicorr_folds_and_runs_eagerly_over_a_packed_head(self):
        """Red when LiLiCorr reads the ``.weight`` that a packed head lacks."""
        head, lilicorr = make_head("packed"), make_lilicorr()
        draft = SimpleNamespace(fc=SimpleNamespace(output_size=HIDDEN))
        worker = make_worker(head, draft_model=draft, lilicorr=lilicorr)
        self.assertLess(int(fold(worker).out.max()), VOCAB)
        with torch.no_grad():
            tokens, _, _ = lilicorr_utils.propose_lilicorr_block(
                head=lilicorr,
                draft_hidden=hidden(2 * BLOCK).view(2, BLOCK, HIDDEN),
                lm_head=head,
                embed_tokens=torch.nn.Embedding(VOCAB, HIDDEN),
                anchor=None,
            )
        self.assertLess(int(tokens.max()), VOCAB)

    def test_plain_and_domino_heads_stay_eager_and_say_why(self):
        """Red when a quantized head is folded as a dense matrix, or without a word."""
        reasons = {"packed": "no dense weight", "FP8": "quantized lm_head"}
        for kind, reason in reasons.items():
            for domino in (False, True):
                worker = make_worker(make_head(kind), _is_domino=domino)
                with self.subTest(kind, domino=domino):
                    with self.assertLogs("sglang", logging.INFO) as logs:
                        self.assertIsNone(fold(worker))
                    self.assertIn(reason, logs.output[-1])


class TestGreedyHead(CustomTestCase):
    def sample(self, kind):
        head = make_head(kind)
        worker = make_worker(head, _draft_greedy_local_cap=0)
        return worker._greedy_sample_from_vocab_parallel_head(
            hidden_states=hidden(), lm_head=head, chunk_size=4
        )

    def test_greedy_tokens_come_from_the_vocabulary(self):
        """Red when the plain head reads ``.weight`` or drafts a padded row (H4, H5)."""
        best = (hidden() @ values().T).argmax(-1)
        for kind in ("dense", "packed", "W4A4"):
            with self.subTest(kind):
                self.assertTrue(torch.equal(self.sample(kind), best))

    def test_more_ranks_are_refused(self):
        """Red when a rank drafts from its own shard alone."""
        parallel = SimpleNamespace(tp_group=SimpleNamespace(world_size=2))
        with mock.patch.object(dflash_worker_v2, "get_parallel", return_value=parallel):
            with self.assertRaisesRegex(RuntimeError, "quantized target lm_head.*tp=1"):
                self.sample("packed")


class TestOtherDrafts(CustomTestCase):
    def test_dspark_projects_through_the_gate(self):
        """Red when DSpark multiplies with a packed head's missing weight (H5)."""
        for kind in ("packed", "W4A4"):
            with self.subTest(kind):
                logits = project_through_lm_head(hidden(), make_head(kind))
                expected = hidden() @ values().T
                self.assertTrue(torch.equal(logits[:, :VOCAB], expected))

    def test_the_dspark_worker_refuses_a_head_without_a_weight(self):
        """Red when DSpark, DeepSeek-V4's included, starts and then reads ``.weight``."""
        draft = SimpleNamespace(sample_from_anchor=True, markov_head=None)
        bundle = mock.Mock(draft_model=draft)
        target_worker = mock.MagicMock()
        target_worker.model_runner.model.lm_head = make_head("packed")
        replaced = {name: mock.MagicMock() for name in WORKER_PARTS}
        replaced["build_draft_tp_worker"].return_value = bundle
        replaced["draft_is_deepseek_v4"].return_value = False
        with contextlib.ExitStack() as stack:
            for name, part in replaced.items():
                stack.enter_context(mock.patch.object(dspark_worker_v2, name, part))
            worker = dspark_worker_v2.DSparkWorkerV2
            stack.enter_context(mock.patch.object(worker, "_draft_context"))
            with self.assertRaisesRegex(RuntimeError, "DSpark requires .*lm_head"):
                worker(None, 0, 0, target_worker)

    def test_domino_refuses_a_head_without_a_weight(self):
        """Red when Domino starts on a packed head and dies in its first rollout."""
        with self.assertRaisesRegex(ValueError, "Domino requires .*lm_head weight"):
            validate_domino_runtime(
                device=torch.device("cuda"),
                tp_size=1,
                tp_rank=0,
                target_vocab_size=VOCAB,
                draft_vocab_size=VOCAB,
                hidden_size=HIDDEN,
                target_embedding=torch.nn.Embedding(VOCAB, HIDDEN),
                lm_head=make_head("packed"),
                prefix_gru=None,
                embed_proj=None,
            )


if __name__ == "__main__":
    unittest.main()
