"""Every model class with ``get_embed_and_head``: sharing a quantized head works, or says so.

Each class that is not listed here as an exception must share the module, so that one of
a later release that does not shows itself.
"""

import ast
import os
import sys
import unittest
from pathlib import Path

from sglang.srt import models
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lm_head_classes import (  # noqa: E402
    KEPT,
    MODULE,
    NOTHING,
    STOCK,
    rows,
    scan,
)

register_cpu_ci(est_time=120, suite="base-a-test-cpu")

GETTER = "get_embed_and_head"
# Drafts whose own setter leaves their head alone: they are trained with one.
KEEP_THEIR_OWN = {
    "gemma4_mtp:Gemma4AssistantForCausalLM",
    "gemma4_mtp:Gemma4UnifiedAssistantForCausalLM",
    "iquest_q1_mtp:IQuestQ1MTP",
    "step3p5_mtp:Step3p5MTP",
}
# Its heads are no torch modules.
NO_HEAD = {"mindspore:MindSporeForCausalLM"}


def methods(part):
    """The names that a class defines in its body."""
    body = part.body if isinstance(part, ast.ClassDef) else ()
    return {getattr(inner, "name", None) for inner in body}


def setUpModule():
    init_single_process_dist()


class TestClasses(CustomTestCase):
    def test_every_class_with_an_accessor_is_judged(self):
        """Red when the table misses a class, or SGLang lost most of them."""
        (root,) = map(Path, models.__path__)
        parts = [
            p for f in root.rglob("*.py") for p in ast.walk(ast.parse(f.read_text()))
        ]
        defining = {part.name for part in parts if GETTER in methods(part)}
        judged = {name.partition(":")[2] for name, _, _ in rows()}
        self.assertEqual(defining - judged, set())
        self.assertGreaterEqual(len(defining), 70)

    def test_every_target_lends_its_head_as_a_module(self):
        """Red when an accessor that reads ``.weight`` decides whether sharing works."""
        for name, found, _ in rows():
            expected = STOCK if name in NO_HEAD else MODULE
            with self.subTest(name):
                self.assertIn(found, (expected, NOTHING))

    def test_every_draft_takes_the_module_or_keeps_its_own(self):
        """Red when a draft of some class decodes with the bare tensor of a head."""
        for name, _, found in rows():
            expected = KEPT if name in KEEP_THEIR_OWN else MODULE
            with self.subTest(name):
                self.assertIn(found, (expected, STOCK, NOTHING))
                self.assertTrue(found != STOCK or name in NO_HEAD)

    def test_no_draft_reads_its_heads_tensor_when_it_runs(self):
        """Red when a draft's forward would look for ``.weight`` on the module."""
        for name, node in scan().items():
            if name in KEEP_THEIR_OWN:
                continue
            for method in node.body:
                reads = "forward" in getattr(method, "name", "") and any(
                    ast.unparse(part).endswith("lm_head.weight")
                    for part in ast.walk(method)
                    if isinstance(part, ast.Attribute)
                )
                self.assertFalse(reads, name)


if __name__ == "__main__":
    unittest.main()
