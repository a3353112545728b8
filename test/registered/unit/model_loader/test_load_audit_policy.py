"""Whom the load audit refuses, whom it warns of, and which heads it asks for."""

import os
import sys
import unittest

import torch
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from audited_models import (  # noqa: E402
    WIDTH,
    Draft,
    Model,
    layer,
    load,
    parameter,
    plan,
    tensors,
)

register_cpu_ci(est_time=20, suite="base-a-test-cpu")


def setUpModule():
    init_single_process_dist()


class TestHeads(CustomTestCase):
    def make(self, cls):
        embedding = VocabParallelEmbedding(8, WIDTH)
        return cls(embed_tokens=embedding, lm_head=ParallelLMHead(8, WIDTH))

    def test_a_targets_head_must_be_filled(self):
        """Red when a target serves with a head that nobody filled (H6)."""
        given = tensors("embed_tokens.weight", shape=(8, WIDTH))
        with self.assertRaisesRegex(ValueError, "lm_head.weight"):
            load(plan(self.make(Model)), given)
        self.assertEqual(len(load(plan(self.make(Model), tied=True), given)), 1)

    def test_a_draft_borrows_what_its_checkpoint_lacks(self):
        """Red when sharing is asked of the checkpoint, or a draft that cannot share
        is let pass."""
        self.assertEqual(load(plan(self.make(Draft), draft=True), []), [])
        messages = load(plan(self.make(Model), draft=True), [])
        self.assertIn("embed_tokens.weight; lm_head.weight.", messages[0])

    def test_a_head_that_came_in_part_is_the_drafts_own(self):
        """Red when a head without its scale passes as one to be borrowed."""
        model = self.make(Draft)
        model.lm_head.register_parameter("weight_scale", parameter(64, 1))
        given = tensors("lm_head.weight", shape=(8, WIDTH))
        messages = load(plan(model, draft=True), given)
        self.assertIn("unfilled parameters: lm_head.weight_scale.", messages[0])


class TestPolicy(CustomTestCase):
    def outcome(self, model, given=()):
        try:
            return "warned" if load(model, given) else "silent"
        except ValueError:
            return "refused"

    def damaged(self):
        return Model(
            a=layer(weight=parameter(WIDTH, WIDTH)), b=layer(weight=parameter(4, 4))
        )

    def test_who_is_refused(self):
        """Red when a default or the setting decides otherwise than it says."""
        for stored, draft, setting, expected in (
            (False, False, None, "warned"),
            (True, False, None, "warned"),
            (False, True, None, "warned"),
            (True, True, None, "refused"),
            (True, True, "warn", "warned"),
            (False, False, "refuse", "refused"),
            (True, True, "off", "silent"),
        ):
            with self.subTest(stored=stored, draft=draft, setting=setting):
                model = plan(self.damaged(), draft, stored, setting=setting)
                self.assertEqual(self.outcome(model), expected)

    def test_a_dense_draft_quantized_while_it_loads_is_dense(self):
        """Red when online FP8 turns a warning into a refusal, or asks for scales."""
        model = self.damaged()
        model.a.register_parameter("weight_scale", parameter(WIDTH, 1))
        plan(model, draft=True, stored=False, quantizes=True)
        messages = load(model, tensors("a.weight"))
        self.assertIn("unfilled parameters: b.weight.", messages[0])

    def test_an_unknown_setting_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "'loud', and may be off, warn, refuse"):
            plan(self.damaged(), setting="loud")

    def test_later_loads_are_judged_by_what_they_bring(self):
        """Red when an update with some of the tensors is blamed for the others."""
        model = plan(self.damaged(), draft=True, stored=True)
        self.assertEqual(load(model, tensors("a.weight", "b.weight")), [])
        self.assertEqual(load(model, tensors("a.weight")), [])
        codes = tensors("a.weight", dtype=torch.int8)
        self.assertEqual(self.outcome(model, codes), "warned")

    def test_a_load_that_fails_does_not_count(self):
        """Red when a second try is not judged, or the error is another."""

        def fail(model, tensor):
            raise KeyError("a.weight")

        model = plan(self.damaged())
        model.loads = {"a.weight": fail}
        with self.assertRaises(KeyError):
            load(model, tensors("a.weight"))
        model.loads = {}
        self.assertIn("b.weight", load(model, tensors("a.weight"))[0])

    def test_models_that_no_loader_built_are_left_alone(self):
        self.assertEqual(load(self.damaged(), []), [])


if __name__ == "__main__":
    unittest.main()
