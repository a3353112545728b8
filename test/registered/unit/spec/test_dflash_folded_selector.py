"""DFlash2's selector over a packed target head inside a CUDA graph."""

import os
import sys
import unittest
from types import SimpleNamespace

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.models.dflash import CandidateSelector, DFlash2DraftModel
from sglang.srt.speculative.dflash_worker_v2 import (
    _selector_lattice,
    _SelectorDraftSampler,
)
from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.layer_ut_utils import init_single_process_dist
from sglang.test.test_utils import CustomTestCase

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from dflash_heads import W8A16  # noqa: E402

register_cuda_ci(est_time=60, stage="base-b", runner_config="1-gpu-small")

HIDDEN, VOCAB, BLOCK, BLOCKS = 256, 1000, 8, 4  # VOCAB is not a multiple of 64


def make_head():
    """A packed head as its loader leaves it, its padded rows above all others."""
    config = CompressedTensorsConfig.from_config(
        {**W8A16, "packed_modules_mapping": {}}
    )
    with torch.device("cuda"):
        head = ParallelLMHead(
            VOCAB,
            HIDDEN,
            quant_config=config,
            prefix="lm_head",
            params_dtype=torch.bfloat16,
        )
    codes = torch.randint(0, 256, (len(head.weight_packed), HIDDEN), device="cuda")
    codes[VOCAB:] = 255
    packed = codes.to(torch.uint8).view(torch.int32)
    head.weight_packed.data.copy_(packed)
    head.weight_scale.data.fill_(0.01)
    head.quant_method.process_weights_after_loading(head)
    return head


def make_draft(head):
    """A draft as far as its selector goes."""
    draft = DFlash2DraftModel.__new__(DFlash2DraftModel)
    torch.nn.Module.__init__(draft)
    draft.draft_config = SimpleNamespace(
        output_multiplier=1.0, final_logit_softcapping=None
    )
    draft.lm_head = head
    draft.candidate_selector = CandidateSelector(
        hidden_size=HIDDEN, vocab_size=VOCAB, state_rank=16, top_k=4
    ).to("cuda", torch.bfloat16)
    for parameter in draft.candidate_selector.parameters():
        parameter.data.normal_(std=0.05)
    return draft


def eager_tokens(draft, hidden, ids):
    blocks = hidden.view(BLOCKS, BLOCK, HIDDEN)[:, 1:]
    anchors = ids.view(BLOCKS, BLOCK)[:, 0]
    candidates, scores = _selector_lattice(draft, blocks, anchors)
    tokens, _ = draft.candidate_selector.sample_path(
        candidate_ids=candidates,
        scores=scores,
        uniforms=torch.rand(BLOCKS, BLOCK - 1, device="cuda"),
        temperatures=torch.ones(BLOCKS, device="cuda"),
        greedy_mask=torch.ones(BLOCKS, dtype=torch.bool, device="cuda"),
    )
    return tokens.flatten()


@unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
class TestFoldedSelector(CustomTestCase):
    @torch.no_grad()
    def test_replays_draft_what_the_eager_selector_drafts(self):
        """Red when a packed head cannot be captured, or a replay keeps old logits."""
        init_single_process_dist(backend="nccl")
        torch.manual_seed(0)
        draft = make_draft(make_head())
        hidden = torch.zeros(BLOCKS * BLOCK, HIDDEN, dtype=torch.bfloat16).cuda()
        ids = torch.zeros(BLOCKS * BLOCK, dtype=torch.long, device="cuda")
        sampler = _SelectorDraftSampler(
            draft_model=draft,
            block_size=BLOCK,
            max_bs=BLOCKS,
            device="cuda",
            sampling_enabled=False,
        )
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                sampler(hidden, ids)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            sampler(hidden, ids)
        for _ in range(3):
            hidden.normal_()
            ids.random_(0, VOCAB)
            graph.replay()
            torch.cuda.synchronize()
            expected = eager_tokens(draft, hidden, ids)
            self.assertTrue(torch.equal(sampler.out, expected))
            self.assertLess(int(sampler.out.max()), VOCAB)


if __name__ == "__main__":
    unittest.main()
