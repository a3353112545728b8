"""A draft that borrows a quantized target head: the module, or an error before decoding."""

import gc
import os
import sys
import unittest
import weakref
from types import SimpleNamespace

import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.utils.common import PPMissingLayer
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.lora.layers import BaseLayerWithLoRA
from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle
from sglang.srt.models.qwen3_5_mtp import Qwen3_5ForCausalLMMTP
from sglang.srt.speculative.multi_layer_eagle_worker_v2 import (
    MultiLayerEagleDraftWorker,
)
from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_head_sharing import (  # noqa: E402
    HIDDEN,
    KINDS,
    VOCAB,
    ScalingMethod,
    init_lm_head,
    make_draft,
    make_target,
    own_packed_head,
    quantized_head,
    runner,
)

register_cpu_ci(est_time=45, suite="base-a-test-cpu")


def setUpModule():
    init_single_process_dist()


class SharingCase(CustomTestCase):
    def assert_embedding_shared(self, target, draft):
        embed = target.model.embed_tokens.weight
        self.assertIs(draft.model.embed_tokens.weight, embed)

    def assert_borrowed(self, target, draft):
        self.assertIs(draft.lm_head, target.lm_head)
        self.assert_embedding_shared(target, draft)


class TestEagleSharing(SharingCase):
    def test_a_quantized_head_is_shared_as_a_module_with_any_draft(self):
        """Red when a draft gets the bare tensor of a head, or keeps its own."""
        processor = LogitsProcessor(SimpleNamespace(vocab_size=VOCAB))
        processor.use_fp32_lm_head = False
        hidden = torch.ones(2, HIDDEN)
        for name in KINDS:
            for draft_class in (Qwen3_5ForCausalLMMTP, LlamaForCausalLMEagle):
                with self.subTest(name, draft=draft_class.__name__):
                    target = make_target(quantized_head(name))
                    draft = make_draft(draft_class)
                    init_lm_head(target, draft)
                    self.assert_borrowed(target, draft)
                    expected = target.lm_head.quant_method.apply(target.lm_head, hidden)
                    logits = processor._compute_lm_head(hidden, draft.lm_head)
                    self.assertTrue(torch.equal(logits, expected))

    def test_the_target_is_left_as_it_was(self):
        """Red when a ``.weight`` that was lent for an accessor stays on the head."""
        target = make_target(quantized_head("weight_packed"))
        before = [name for name, _ in target.named_parameters()]
        init_lm_head(target, make_draft())
        self.assertEqual([name for name, _ in target.named_parameters()], before)
        self.assertFalse(hasattr(target.lm_head, "weight"))

    def test_the_head_that_the_draft_had_is_freed(self):
        """Red when its memory waits for a garbage collection that may never come."""
        gc.disable()
        self.addCleanup(gc.enable)
        draft = make_draft()
        own_head = weakref.ref(draft.lm_head.weight)
        init_lm_head(make_target(quantized_head("weight_packed")), draft, collect=True)
        self.assertIsNone(own_head())

    def test_a_lora_wrapper_is_taken_off(self):
        """Red when the draft applies the adapters of the target's head."""
        for name in ("weight_packed", "float8_e4m3fn"):
            head, draft = quantized_head(name), make_draft()
            init_lm_head(make_target(BaseLayerWithLoRA(head, None)), draft)
            self.assertIs(draft.lm_head, head)

    def test_eagle3_draft_that_borrows_gets_the_module(self):
        """Red when sharing depends on the algorithm instead of on borrowing."""
        target, draft = make_target(quantized_head("int8")), make_draft()
        draft.load_lm_head_from_target = True
        init_lm_head(target, draft, "EAGLE3")
        self.assert_borrowed(target, draft)

    def test_eagle3_draft_with_its_own_head_gets_the_embedding(self):
        """Red when a draft that borrows nothing is given a head, or nothing at all."""
        for name in ("weight_packed", "float8_e4m3fn"):
            target, draft = make_target(quantized_head(name)), make_draft()
            own, draft.hot_token_id = draft.lm_head.weight, None
            init_lm_head(target, draft, "EAGLE3")
            self.assertIs(draft.lm_head.weight, own)
            self.assert_embedding_shared(target, draft)

    def test_a_draft_that_is_built_quantized_borrows_a_dense_head_as_a_module(self):
        """Red when a dense tensor lands under a head that applies its own codes."""
        target = make_target(ParallelLMHead(VOCAB, HIDDEN))
        for own in (own_packed_head(), ParallelLMHead(VOCAB, HIDDEN)):
            own.weight_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
            own.quant_method = ScalingMethod()
            draft = make_draft(lm_head=own)
            init_lm_head(target, draft)
            self.assert_borrowed(target, draft)

    def test_drafts_that_cannot_take_the_module_are_refused_by_name(self):
        """Red when such a draft decodes with its own head, or dies in an accessor."""
        reduced, unable = make_draft(), torch.nn.Module()
        reduced.hot_token_id = torch.arange(4)
        tied = make_draft(Qwen3_5ForCausalLMMTP, tied=True)
        cases = (
            ("no set_embed_and_head", unable, {}),
            ("speculative-token-map", make_draft(), {"hot_token_id": torch.arange(4)}),
            ("reduced vocabulary", reduced, {}),
            ("ties its head", tied, {}),
        )
        for words, draft, options in cases:
            for name in ("weight_packed", "float8_e4m3fn"):
                target = make_target(quantized_head(name))
                error = f"{type(draft).__name__}.*weight_scale.*{words}"
                with self.subTest(words), self.assertRaisesRegex(ValueError, error):
                    init_lm_head(target, draft, **options)

    def test_the_modules_say_whether_a_draft_is_tied(self):
        """Red when a config's default, which is tied, refuses a draft with a head."""
        target, draft = make_target(quantized_head("int8")), make_draft()
        draft.config.tie_word_embeddings = True
        init_lm_head(target, draft)
        self.assert_borrowed(target, draft)

    def test_a_target_that_cannot_hand_over_its_embedding_is_named(self):
        """Red when such a target ends in a bare AttributeError, or without embedding."""
        silent = torch.nn.Module()
        silent.lm_head = quantized_head("weight_packed")
        tied = make_target(silent.lm_head)
        tied.model.embed_tokens = tied.lm_head
        for target in (silent, tied):
            words = (
                f"{type(target).__name__}'s lm_head.*weight_packed.*embedding|handed"
            )
            with self.assertRaisesRegex(ValueError, words):
                init_lm_head(target, make_draft())

    def test_a_head_inside_a_language_model_is_found(self):
        """Red when a wrapped target's head is not looked for."""
        for names in (["language_model"], ["llm"], ["thinker", "language_model"]):
            target, draft = make_target(quantized_head("uint8")), make_draft()
            wrapper = target
            for name in reversed(names):
                outer = torch.nn.Module()
                outer.get_embed_and_head = wrapper.get_embed_and_head
                setattr(outer, name, wrapper)
                wrapper = outer
            init_lm_head(wrapper, draft)
            self.assert_borrowed(target, draft)

    def test_a_stage_without_a_head_is_accepted(self):
        """Red when a pipeline stage's placeholder counts as a quantized head."""
        target = make_target(PPMissingLayer())
        target.get_embed_and_head = lambda: (target.model.embed_tokens.weight, None)
        draft = make_draft(Qwen3_5ForCausalLMMTP)
        init_lm_head(target, draft)
        self.assert_embedding_shared(target, draft)

    def test_standalone_draft_is_left_alone(self):
        """Red when a worker that shares nothing looks at the target."""
        worker = StandaloneDraftWorker.__new__(StandaloneDraftWorker)
        self.assertIsNone(worker.init_lm_head())

    def test_a_dense_head_is_shared_as_a_tensor_as_before(self):
        """Red when a dense pair shares more, or less, than its tensors."""
        target, draft = make_target(ParallelLMHead(VOCAB, HIDDEN)), make_draft()
        own = draft.lm_head
        init_lm_head(target, draft)
        self.assertIs(draft.lm_head, own)
        self.assertIs(draft.lm_head.weight, target.lm_head.weight)
        self.assert_embedding_shared(target, draft)

    def test_a_dense_head_may_be_reduced_to_hot_tokens(self):
        """Red when the check for quantized heads refuses a token map of a dense one."""
        target, draft = make_target(ParallelLMHead(VOCAB, HIDDEN)), make_draft()
        init_lm_head(target, draft, hot_token_id=torch.arange(4))
        self.assertEqual(draft.lm_head.weight.shape, (4, HIDDEN))


class TestOwnHeads(SharingCase):
    def loaded_draft(self, value):
        """A draft whose head came from its checkpoint."""
        draft = make_draft()
        head = draft.lm_head
        head.weight_loader(head.weight, torch.full((VOCAB, HIDDEN), value))
        return draft

    def dense_target(self):
        head = ParallelLMHead(VOCAB, HIDDEN)
        head.weight_loader(head.weight, torch.ones(VOCAB, HIDDEN))
        return make_target(head)

    def test_a_head_that_the_draft_brought_is_kept(self):
        """Red when a head that a draft was trained with is overwritten."""
        for name in ("weight_packed", "float8_e4m3fn"):
            target, draft = make_target(quantized_head(name)), self.loaded_draft(2.0)
            own, weight = draft.lm_head, draft.lm_head.weight
            init_lm_head(target, draft, path="draft")
            self.assertIs(draft.lm_head, own)
            self.assertIs(draft.lm_head.weight, weight)
            self.assertTrue(weight[:VOCAB].eq(2).all())
            self.assert_embedding_shared(target, draft)

    def test_a_packed_head_that_the_draft_brought_is_kept(self):
        """Red when sharing the embedding leaves a ``.weight`` on it, or replaces it."""
        own = own_packed_head()
        own.weight_loader(own.weight_packed, torch.ones(VOCAB, HIDDEN // 4))
        for lm_head in (quantized_head("weight_packed"), ParallelLMHead(VOCAB, HIDDEN)):
            target, draft = make_target(lm_head), make_draft(lm_head=own)
            init_lm_head(target, draft, path="draft")
            self.assertIs(draft.lm_head, own)
            self.assertFalse(hasattr(own, "weight"))
            self.assert_embedding_shared(target, draft)

    def test_a_missing_head_is_borrowed(self):
        """Red when a head that nobody filled is taken for the draft's own."""
        target, draft = make_target(quantized_head("int8")), make_draft()
        init_lm_head(target, draft, path="draft")
        self.assert_borrowed(target, draft)

    def test_a_head_of_the_targets_own_checkpoint_is_borrowed(self):
        """Red when a NEXTN draft keeps a second copy of the target's head."""
        target, draft = make_target(quantized_head("int8")), self.loaded_draft(2.0)
        init_lm_head(target, draft)
        self.assert_borrowed(target, draft)

    def test_the_same_head_from_another_checkpoint_is_borrowed(self):
        """Red when equal tensors are kept twice."""
        heads = [own_packed_head(), own_packed_head()]
        for head in heads:
            head.weight_loader(head.weight_packed, torch.ones(VOCAB, HIDDEN // 4))
        target, draft = make_target(heads[0]), make_draft(lm_head=heads[1])
        init_lm_head(target, draft, path="draft")
        self.assert_borrowed(target, draft)

    def test_a_dense_head_that_the_draft_brought_is_kept(self):
        """Red when the target's dense head replaces one a draft was trained with."""
        target, draft = self.dense_target(), self.loaded_draft(2.0)
        own, weight = draft.lm_head, draft.lm_head.weight
        init_lm_head(target, draft, path="draft")
        self.assertIs(draft.lm_head, own)
        self.assertIs(draft.lm_head.weight, weight)
        self.assertTrue(weight[:VOCAB].eq(2).all())
        self.assert_embedding_shared(target, draft)

    def test_a_copy_of_the_targets_dense_head_is_shared_as_before(self):
        """Red when rounding to another dtype makes a draft hold a second head."""
        for value in (1.0, 1.001):
            target, draft = self.dense_target(), self.loaded_draft(value)
            init_lm_head(target, draft, path="draft")
            self.assertIs(draft.lm_head.weight, target.lm_head.weight)

    def test_dense_heads_of_one_checkpoint_are_shared_as_before(self):
        """Red when two unquantized models stop sharing the target's tensor."""
        target, draft = self.dense_target(), self.loaded_draft(2.0)
        init_lm_head(target, draft)
        self.assertIs(draft.lm_head.weight, target.lm_head.weight)

    def test_a_token_map_still_takes_rows_of_the_targets_dense_head(self):
        """Red when a draft's own dense head ends a token map."""
        target, draft = self.dense_target(), self.loaded_draft(2.0)
        init_lm_head(target, draft, hot_token_id=torch.arange(4), path="draft")
        self.assertEqual(draft.lm_head.weight.shape, (4, HIDDEN))


class TestMultiLayerSharing(SharingCase):
    def share(self, target, drafts):
        worker = MultiLayerEagleDraftWorker.__new__(MultiLayerEagleDraftWorker)
        worker.target_worker = SimpleNamespace(model_runner=runner(target))
        worker.draft_runner_list = [runner(draft) for draft in drafts]
        worker.speculative_num_steps = len(drafts)
        worker.init_lm_head()

    def test_every_steps_draft_borrows_the_module(self):
        """Red when a quantized head is refused, or reaches some drafts only."""
        for name in KINDS:
            target = make_target(quantized_head(name))
            drafts = [make_draft() for _ in range(3)]
            self.share(target, drafts)
            for draft in drafts:
                self.assert_borrowed(target, draft)

    def test_dense_heads_are_shared_as_before(self):
        """Red when a dense head is shared as more than its tensor."""
        target, drafts = make_target(ParallelLMHead(VOCAB, HIDDEN)), [make_draft()]
        own = drafts[0].lm_head
        self.share(target, drafts)
        self.assertIs(drafts[0].lm_head, own)
        self.assertIs(own.weight, target.lm_head.weight)

    def test_a_reduced_vocabulary_is_refused_by_name(self):
        """Red when rows of a head without rows are asked for."""
        draft = make_draft()
        draft.hot_token_id = torch.arange(4)
        with self.assertRaisesRegex(ValueError, "reduced vocabulary"):
            self.share(make_target(quantized_head("int8")), [draft])


if __name__ == "__main__":
    unittest.main()
