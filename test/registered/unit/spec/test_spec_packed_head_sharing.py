"""A draft that borrows a packed target head: the module, or an error before decoding."""

import gc
import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.utils.common import PPMissingLayer
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.lora.layers import BaseLayerWithLoRA
from sglang.srt.models.qwen3_5_mtp import Qwen3_5ForCausalLMMTP
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative import multi_layer_eagle_worker_v2
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import (
    MultiLayerEagleDraftWorker,
)
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=45, suite="base-a-test-cpu")

VOCAB, HIDDEN = 200, 32


def setUpModule():
    init_single_process_dist()


class PackedHead(torch.nn.Module):
    """What loading leaves of a head: its codes, and no ``.weight``."""

    def __init__(self):
        super().__init__()
        codes = torch.zeros(VOCAB, HIDDEN // 4, dtype=torch.int32)
        self.weight_packed = torch.nn.Parameter(codes, requires_grad=False)
        self.quant_method = SimpleNamespace(apply=lambda layer, x, bias=None: x)


class Target(torch.nn.Module):
    """A target that hands over its embedding and no tensor for a packed head."""

    def __init__(self, lm_head):
        super().__init__()
        self.embed = torch.nn.Parameter(torch.ones(VOCAB, HIDDEN))
        self.lm_head = lm_head

    def get_embed_and_head(self):
        return self.embed, getattr(self.lm_head, "weight", None)


class UnreadTarget(Target):
    def get_embed_and_head(self):
        raise AssertionError("an accessor ran before the check")


class WeightReadingTarget(Target):
    """The accessor of most model classes."""

    def get_embed_and_head(self):
        return self.embed, self.lm_head.weight


class TensorDraft:
    """A draft that takes tensors only, as most classes do."""

    hot_token_id = None

    def __init__(self):
        self.shared = []

    def set_embed_and_head(self, embed, head):
        self.shared.append((embed, head))


class ModuleDraft(TensorDraft):
    def set_lm_head_from_target(self, target_lm_head):
        self.lm_head = target_lm_head


class Eagle3Draft(TensorDraft):
    load_lm_head_from_target = False

    def set_embed(self, embed):
        self.shared.append(embed)


def make_mtp_draft(tied=False):
    """The real Qwen3.5 draft class with the two modules that are shared."""
    draft = Qwen3_5ForCausalLMMTP.__new__(Qwen3_5ForCausalLMMTP)
    torch.nn.Module.__init__(draft)
    draft.config = SimpleNamespace(tie_word_embeddings=tied)
    draft.model = torch.nn.Module()
    draft.model.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN)
    draft.lm_head = draft.model.embed_tokens if tied else ParallelLMHead(VOCAB, HIDDEN)
    return draft


def init_lm_head(target, draft, algorithm="EAGLE", hot_token_id=None):
    worker = EagleDraftWorker.__new__(EagleDraftWorker)
    target_config = SimpleNamespace(model_path="target", revision=None)
    worker.target_worker = SimpleNamespace(
        model_runner=SimpleNamespace(
            model=target, model_config=target_config, load_config=None
        )
    )
    worker.draft_runner = SimpleNamespace(model=draft)
    worker.speculative_algorithm = SpeculativeAlgorithm.from_string(algorithm)
    worker.hot_token_id = hot_token_id
    worker.init_lm_head()


class TestEagleSharing(CustomTestCase):
    def test_mtp_draft_gets_the_module_and_the_embedding(self):
        """Red when the draft keeps its own head or embedding."""
        target, draft = Target(PackedHead()), make_mtp_draft()
        init_lm_head(target, draft)
        self.assertIs(draft.lm_head, target.lm_head)
        self.assertIs(draft.model.embed_tokens.weight, target.embed)

    def test_the_head_that_the_draft_had_is_freed(self):
        """Red when its memory waits for a garbage collection that may never come."""
        gc.disable()
        self.addCleanup(gc.enable)
        draft = make_mtp_draft()
        own_head = weakref.ref(draft.lm_head.weight)
        init_lm_head(Target(PackedHead()), draft)
        self.assertIsNone(own_head())

    def test_a_lora_wrapper_is_taken_off(self):
        """Red when the draft applies the adapters of the target's head."""
        head, draft = PackedHead(), ModuleDraft()
        init_lm_head(Target(BaseLayerWithLoRA(head, None)), draft)
        self.assertIs(draft.lm_head, head)

    def test_eagle3_draft_that_borrows_gets_the_module(self):
        """Red when sharing depends on the algorithm instead of on borrowing."""
        target, draft = Target(PackedHead()), ModuleDraft()
        draft.load_lm_head_from_target = True
        init_lm_head(target, draft, "EAGLE3")
        self.assertIs(draft.lm_head, target.lm_head)

    def test_drafts_that_cannot_take_the_module_are_refused_unread(self):
        """Red when such a draft decodes with its own head, or dies in an accessor."""
        tokens = torch.arange(4)
        reduced = ModuleDraft()
        reduced.hot_token_id = tokens
        borrowing = Eagle3Draft()
        borrowing.load_lm_head_from_target = True
        cases = (
            ("no method", TensorDraft(), {}),
            ("token map", ModuleDraft(), {"hot_token_id": tokens}),
            ("reduced vocabulary", reduced, {}),
            ("EAGLE3 that borrows", borrowing, {"algorithm": "EAGLE3"}),
            ("tied to its embedding", make_mtp_draft(tied=True), {}),
        )
        for name, draft, options in cases:
            words = f"(?s){type(draft).__name__}.*lm_head.*weight_packed"
            with self.subTest(name), self.assertRaisesRegex(ValueError, words):
                init_lm_head(UnreadTarget(PackedHead()), draft, **options)

    def test_an_accessor_that_reads_the_weight_is_a_clear_error(self):
        """Red when a capable draft of such a target sees a bare AttributeError."""
        target = WeightReadingTarget(PackedHead())
        words = "(?s)WeightReadingTarget.*lm_head.*weight_packed"
        with self.assertRaisesRegex(ValueError, words):
            init_lm_head(target, ModuleDraft())

    def test_a_head_inside_a_language_model_is_found(self):
        """Red when a wrapped target's head is not looked for."""
        wrapper = torch.nn.Module()
        wrapper.language_model = UnreadTarget(PackedHead())
        with self.assertRaisesRegex(ValueError, "packed lm_head"):
            init_lm_head(wrapper, TensorDraft())

    def test_a_stage_without_a_head_is_accepted(self):
        """Red when a pipeline stage's placeholder counts as a packed head."""
        target, draft = Target(PPMissingLayer()), TensorDraft()
        init_lm_head(target, draft)
        ((embed, head),) = draft.shared
        self.assertIs(embed, target.embed)
        self.assertIsNone(head)

    def test_eagle3_draft_with_its_own_head_is_left_alone(self):
        """Red when a draft that borrows nothing is refused or given a head."""
        target, draft = Target(PackedHead()), Eagle3Draft()
        init_lm_head(target, draft, "EAGLE3")
        self.assertEqual(len(draft.shared), 1)
        self.assertIs(draft.shared[0], target.embed)

    def test_standalone_draft_is_left_alone(self):
        """Red when a worker that shares nothing looks at the target."""
        worker = StandaloneDraftWorker.__new__(StandaloneDraftWorker)
        self.assertIsNone(worker.init_lm_head())

    def test_dense_head_is_shared_as_before(self):
        """Red when a dense head's tensor no longer reaches a draft."""
        for draft in (TensorDraft(), ModuleDraft()):
            target = Target(ParallelLMHead(VOCAB, HIDDEN))
            init_lm_head(target, draft)
            with self.subTest(type(draft).__name__):
                ((embed, head),) = draft.shared
                self.assertIs(embed, target.embed)
                self.assertIs(head, target.lm_head.weight)
                self.assertIs(getattr(draft, "lm_head", target.lm_head), target.lm_head)

    def test_a_dense_head_may_be_reduced_to_hot_tokens(self):
        """Red when the check for packed heads refuses a token map of a dense one."""
        target, draft = Target(ParallelLMHead(VOCAB, HIDDEN)), TensorDraft()
        init_lm_head(target, draft, hot_token_id=torch.arange(4))
        self.assertEqual(draft.shared[0][1].shape, (4, HIDDEN))


class Loading(Exception):
    pass


class TestMultiLayerRefusal(CustomTestCase):
    def start(self, lm_head):
        runner = SimpleNamespace(
            model=Target(lm_head), model_config=SimpleNamespace(context_len=16)
        )
        target = SimpleNamespace(model_runner=runner, model_config=None)
        options = {
            "speculative_algorithm": "EAGLE",
            "speculative_num_steps": 1,
            "speculative_num_draft_tokens": 2,
            "speculative_eagle_topk": 1,
        }
        with (
            get_context().override_server_args(**options),
            mock.patch.object(
                multi_layer_eagle_worker_v2, "TpModelWorker", side_effect=Loading
            ),
        ):
            MultiLayerEagleDraftWorker(None, 0, 0, target)

    def test_packed_head_is_refused_before_any_draft_is_loaded(self):
        """Red when a draft is built for a head that cannot be shared with it."""
        with self.assertRaisesRegex(ValueError, "enable-multi-layer-eagle"):
            self.start(PackedHead())

    def test_other_heads_load_their_drafts(self):
        """Red when a dense head or a pipeline placeholder is refused."""
        for lm_head in (ParallelLMHead(VOCAB, HIDDEN), PPMissingLayer()):
            with self.subTest(type(lm_head).__name__), self.assertRaises(Loading):
                self.start(lm_head)


if __name__ == "__main__":
    unittest.main()
