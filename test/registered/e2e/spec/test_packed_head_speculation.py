"""Speculation over packed target heads and with quantized drafts, on real servers."""

import os
import sys
import unittest

import torch
from sglang.test.ci.ci_register import register_cuda_ci

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cycle_server  # noqa: E402

register_cuda_ci(est_time=420, stage="base-b", runner_config="1-gpu-small")

# Of 8 and 4; the last step of a completion can be cut short.
DFLASH_ACCEPT_LENGTH, NEXTN_ACCEPT_LENGTH = 7.5, 3.75


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class TestPackedHeadNEXTN(cycle_server.CycleTestCase):
    write_options = {"nextn": True, "packed_head": True}

    def test_the_target_without_speculation(self) -> None:
        """Red when a text-only target drops its packed head's tensors."""
        self.check_plain()

    def test_the_draft_shares_the_head(self) -> None:
        """Red when start-up reads `.weight`, or the draft keeps a head of its own."""
        self.check_speculation(NEXTN_ACCEPT_LENGTH, *cycle_server.NEXTN)


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class TestPackedHeadDFLASH(cycle_server.CycleTestCase):
    write_options = {"packed_head": True}

    def test_the_target_without_speculation(self) -> None:
        """Red when the packed head itself is wrong."""
        self.check_plain()

    def test_a_dense_draft(self) -> None:
        """Red when the selector refuses a head without `.weight`."""
        draft = self.write_draft("dense")
        self.check_speculation(DFLASH_ACCEPT_LENGTH, *cycle_server.dflash(draft))

    def test_a_quantized_draft(self) -> None:
        """Red when either packing is lost beside the other."""
        draft = self.write_draft("packed", packed=True)
        self.check_speculation(DFLASH_ACCEPT_LENGTH, *cycle_server.dflash(draft))


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class TestDenseHeadDFLASH(cycle_server.CycleTestCase):
    def test_a_quantized_draft(self) -> None:
        """Red when a draft's `fc` is dropped or its ignore list never matches."""
        draft = self.write_draft("packed", packed=True)
        self.check_speculation(DFLASH_ACCEPT_LENGTH, *cycle_server.dflash(draft))


if __name__ == "__main__":
    unittest.main()
