"""Candidates for DFlash2's selector from every kind of target head."""

import os
import socket
import subprocess
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.models import dflash
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase, publish_build_topology

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from dflash_heads import TOP_K, VOCAB, hidden, make_head, values  # noqa: E402

register_cpu_ci(est_time=75, suite="base-a-test-cpu")

RANK = "DFLASH_LOGITS_TEST_RANK"


def setUpModule():
    init_single_process_dist()


def check_candidates(kind):
    """The global top-k, from contiguous logits, with nothing beyond the vocabulary."""
    contiguous = []
    top_k = dflash._radix_topk

    def record(scores, k):
        contiguous.append(scores.is_contiguous())
        return top_k(scores, k)

    with mock.patch.object(dflash, "_radix_topk", record):
        ids, scores, _ = dflash.candidate_topk(hidden(), make_head(kind), TOP_K)
    expected = (hidden() @ values().T).topk(TOP_K)
    assert contiguous == [True], kind
    assert torch.equal(scores.float(), expected.values), kind
    chosen = (hidden() @ values().T).gather(-1, ids)
    assert torch.equal(chosen, expected.values) and int(ids.max()) < VOCAB, kind


class TestCandidates(CustomTestCase):
    def test_one_rank(self):
        """Red when a padded row is drafted, or the crop is handed on as a view (H4)."""
        for kind in ("dense", "packed", "W4A4", "W4A16"):
            with self.subTest(kind):
                check_candidates(kind)

    def test_two_ranks(self):
        """Red when shards' logits are gathered whole, or their ids stay local (H4)."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__],
                env={**env, RANK: str(rank), "WORLD_SIZE": "2"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in (0, 1)
        ]
        for rank in ranks:
            _, errors = rank.communicate(timeout=300)
            self.assertEqual(rank.returncode, 0, errors[-2000:])

    def test_a_packed_head_that_nothing_applies_is_refused(self):
        """Red when a stale head is read as a dense matrix."""
        head = make_head("packed")
        head.quant_method = None
        with self.assertRaisesRegex(RuntimeError, "lm_head"):
            dflash.candidate_topk(hidden(), head, TOP_K)


def run_rank(rank):
    """One of two ranks: the same candidates, and only local top-k cross the wire."""
    from sglang.srt.distributed import parallel_state
    from sglang.srt.plugins import load_plugins

    load_plugins()
    parallel_state.init_distributed_environment(
        world_size=2, rank=rank, local_rank=rank, backend="gloo"
    )
    publish_build_topology(world_rank=rank, tp_size=2, ep_size=1, pp_size=1)
    # It asks for a CUDA device as soon as there are two ranks.
    disabled = mock.Mock(return_value=SimpleNamespace(disabled=True))
    communicators = "sglang.srt.distributed.device_communicators"
    with mock.patch(f"{communicators}.pynccl.PyNcclCommunicator", disabled):
        parallel_state.initialize_model_parallel(backend="gloo")
    gather, widths = dflash.tensor_model_parallel_all_gather, []

    def record(tensor, dim=-1):
        widths.append(tensor.shape[-1])
        return gather(tensor, dim)

    with mock.patch.object(dflash, "tensor_model_parallel_all_gather", record):
        for kind in ("dense", "packed", "W4A4"):
            check_candidates(kind)
    assert widths == [TOP_K] * 6, widths


if __name__ == "__main__":
    if RANK in os.environ:
        run_rank(int(os.environ[RANK]))
    else:
        unittest.main()
