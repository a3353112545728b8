"""A dense DFLASH draft beside a target that a server quantizes to FP8 as it loads."""

import os
import sys
import unittest

import torch
from sglang.test.ci.ci_register import register_cuda_ci

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cycle_server  # noqa: E402

register_cuda_ci(est_time=180, stage="base-b", runner_config="1-gpu-small")

ACCEPT_LENGTH = 7.5  # of 8; the last step of a completion can be cut short


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class TestDenseDraftOnlineFP8(cycle_server.CycleTestCase):
    flags = ("--quantization", "fp8")

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.draft = cls.write_draft("draft")

    def test_the_target_without_speculation(self) -> None:
        """Red when the target itself does not survive FP8."""
        self.check_plain()

    def test_the_draft_inherits_the_quantization(self) -> None:
        """Red when an inherited config changes how a draft's `fc` is built or loaded."""
        self.check_speculation(ACCEPT_LENGTH, *cycle_server.dflash(self.draft))

    def test_the_draft_is_left_unquantized(self) -> None:
        """Red when `unquant` no longer keeps a dense draft dense and whole."""
        flags = ("--speculative-draft-model-quantization", "unquant")
        self.check_speculation(ACCEPT_LENGTH, *cycle_server.dflash(self.draft, *flags))


if __name__ == "__main__":
    unittest.main()
