"""Sampled verification keeps the target's distribution, whatever the draft says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_cpu_reference.sampling import (
    provide,
    renormalize_top_k,
    renormalize_top_p,
    sample_chain,
    sample_target_only,
)

REQUESTS, SLOTS, VOCAB = 40_000, 3, 5


def distributions(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SLOTS, VOCAB, generator=generator).softmax(-1)


def verify(function, drafts: torch.Tensor, seed: int = 0, **arguments) -> tuple:
    """Run one verify step; returns predictions, committed slots and draft counts."""
    generator = torch.Generator().manual_seed(seed)
    batch = drafts.shape[0]
    predicts = torch.zeros(batch * SLOTS, dtype=torch.int32)
    accept_index = torch.full((batch, SLOTS), -1, dtype=torch.int32)
    num_correct = torch.empty(batch, dtype=torch.int32)
    root = torch.zeros(batch, 1, dtype=drafts.dtype)
    function(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=num_correct,
        candidates=torch.cat([root, drafts], 1),
        retrive_index=torch.arange(batch * SLOTS).view(batch, SLOTS),
        uniform_samples=torch.rand(batch, SLOTS, generator=generator),
        uniform_samples_for_final_sampling=torch.rand(batch, generator=generator),
        **arguments,
    )
    return predicts.view(batch, SLOTS), accept_index, num_correct


def frequencies(tokens: torch.Tensor) -> torch.Tensor:
    return torch.bincount(tokens.long(), minlength=VOCAB) / tokens.numel()


def test_drafts_that_were_sampled_leave_the_target_distribution() -> None:
    p, q = distributions(1), distributions(2)
    drafts = torch.stack(
        [torch.multinomial(q[i], REQUESTS, replacement=True) for i in range(SLOTS - 1)],
        1,
    )
    predicts, _, num_correct = verify(
        sample_chain,
        drafts,
        target_probs=p.expand(REQUESTS, -1, -1),
        draft_probs=q[:-1].expand(REQUESTS, -1, -1),
    )
    assert (frequencies(predicts[:, 0]) - p[0]).abs().max() < 0.01
    second = predicts[num_correct >= 1, 1]
    assert (frequencies(second) - p[1]).abs().max() < 0.015
    expected = torch.minimum(p[0], q[0]).sum()
    assert ((num_correct >= 1).float().mean() - expected).abs() < 0.01


def test_drafts_that_were_chosen_leave_the_target_distribution() -> None:
    p = distributions(3)
    drafts = torch.tensor([[1, 2]]).expand(REQUESTS, -1)
    predicts, accept_index, num_correct = verify(
        sample_target_only,
        drafts,
        target_probs=p.expand(REQUESTS, -1, -1),
        draft_probs=torch.zeros(REQUESTS, SLOTS, VOCAB),
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    assert (frequencies(predicts[:, 0]) - p[0]).abs().max() < 0.01
    assert (frequencies(predicts[num_correct == 2, 2]) - p[2]).abs().max() < 0.02
    assert ((num_correct >= 1).float().mean() - p[0, 1]).abs() < 0.01
    committed = (accept_index >= 0).sum(1)
    assert torch.equal(committed, num_correct + 1)


def test_a_certain_target_commits_its_own_tokens() -> None:
    certain = torch.eye(VOCAB)[[1, 2, 3]].unsqueeze(0)
    predicts, accept_index, num_correct = verify(
        sample_target_only, torch.tensor([[1, 4]]), target_probs=certain
    )
    assert predicts[0, :2].tolist() == [1, 2]
    assert accept_index[0].tolist() == [0, 1, -1]
    assert num_correct.tolist() == [1]


def test_a_draft_that_its_own_distribution_excludes_is_rejected() -> None:
    p = distributions(4).unsqueeze(0)
    q = torch.zeros(1, SLOTS - 1, VOCAB)
    _, _, num_correct = verify(
        sample_chain, torch.tensor([[0, 0]]), target_probs=p, draft_probs=q
    )
    assert num_correct.tolist() == [0]


@pytest.mark.parametrize("top_k", [1, 3, VOCAB, 1 << 30])
def test_top_k_keeps_the_likeliest(top_k: int) -> None:
    probs = distributions(5)
    kept = renormalize_top_k(probs, torch.full((SLOTS,), top_k))
    threshold = probs.topk(min(top_k, VOCAB)).values[:, -1:]
    expected = torch.where(probs >= threshold, probs, 0)
    torch.testing.assert_close(kept, expected / expected.sum(-1, keepdim=True))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probs = torch.tensor([[0.1, 0.5, 0.25, 0.15]]).expand(3, -1)
    kept = renormalize_top_p(probs, torch.tensor([0.4, 0.6, 1.0]))
    assert [(row > 0).sum().item() for row in kept] == [1, 2, 4]
    torch.testing.assert_close(kept[1], torch.tensor([0.0, 2 / 3, 1 / 3, 0.0]))


def test_only_absent_kernels_are_provided() -> None:
    theirs = object()
    module = SimpleNamespace(
        tree_speculative_sampling_target_only=None,
        top_k_renorm_prob=theirs,
        top_p_renorm_prob=None,
    )
    provide(module)
    assert module.tree_speculative_sampling_target_only is sample_target_only
    assert module.top_k_renorm_prob is theirs
