"""Verifying a chain of draft tokens by sampling, in torch.

The drop-in counterparts of the kernels SGLang has for CUDA only; shapes: ``B``
requests, ``S`` slots (the last committed token and ``S - 1`` drafts), ``V`` tokens.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def renormalize_top_k(probs: torch.Tensor, top_ks: torch.Tensor) -> torch.Tensor:
    """Keep each row's ``top_ks`` likeliest tokens of ``probs`` ``[rows, V]``."""
    ordered, order = probs.sort(dim=-1, descending=True)
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    ordered = ordered * (ranks < top_ks.reshape(-1, 1))
    return _in_token_order(ordered, order)


def renormalize_top_p(probs: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep each row's smallest set of tokens with a mass of at least ``top_ps``."""
    ordered, order = probs.sort(dim=-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    ordered = ordered * (mass_before < top_ps.reshape(-1, 1))
    return _in_token_order(ordered, order)


def _in_token_order(ordered: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    ordered = ordered / ordered.sum(-1, keepdim=True)
    return torch.zeros_like(ordered).scatter_(-1, order, ordered)


def sample_chain(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
) -> None:
    """Rejection sampling of drafts drawn from ``draft_probs`` ``[B, >= S - 1, V]``.

    Fills the first three arguments: the committed token of each slot ``[B * S]``,
    the slots committed ``[B, S]`` and the number of drafts among them ``[B]``.
    """
    drafts = candidates[:, 1:].long()
    steps = drafts.shape[1]
    p = _probability(target_probs[:, :steps], drafts)
    q = _probability(draft_probs[:, :steps], drafts)
    accept = (q > 0) & (uniform_samples[:, :steps] * q < p)
    commit(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        uniform_samples_for_final_sampling,
        target_probs,
        draft_probs,
        accept,
    )


def sample_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    **unused: Any,
) -> None:
    """As ``sample_chain``, for drafts chosen without sampling: ``q`` is one-hot.

    Takes the keywords of the CUDA kernel; what only a tree of drafts needs, and the
    all-zero ``draft_probs`` it is given, is unused.
    """
    drafts = candidates[:, 1:].long()
    steps = drafts.shape[1]
    p = _probability(target_probs[:, :steps], drafts)
    accept = (uniform_samples[:, :steps] * threshold_acc < p) | (p >= threshold_single)
    one_hot = torch.zeros_like(target_probs[:, :steps])
    one_hot.scatter_(-1, drafts.unsqueeze(-1), 1.0)
    commit(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        uniform_samples_for_final_sampling,
        target_probs,
        one_hot,
        accept,
    )


def commit(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    coins: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    accept: torch.Tensor,
) -> None:
    """Commit each chain up to its first rejected draft, then one sampled token."""
    num_slots = candidates.shape[1]
    num_correct = accept.long().cumprod(1).sum(1)
    slots = torch.arange(num_slots, device=candidates.device)
    committed = slots <= num_correct[:, None]
    accept_index[committed] = retrive_index[committed].to(accept_index.dtype)
    accept_token_num.copy_(num_correct)

    tokens = candidates.roll(-1, 1).long()
    last = num_correct[:, None]
    bonus = _final_tokens(num_correct, coins, target_probs, draft_probs)
    tokens.scatter_(1, last, bonus[:, None])
    predicts[retrive_index[committed].long()] = tokens[committed].to(predicts.dtype)


def _final_tokens(
    num_correct: torch.Tensor,
    coins: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
) -> torch.Tensor:
    """One token a request: from ``relu(p - q)`` after a rejection, else from ``p``."""
    rows = torch.arange(num_correct.shape[0], device=num_correct.device)
    p = target_probs[rows, num_correct]
    num_drafts = target_probs.shape[1] - 1
    rejected = num_correct < num_drafts
    q = draft_probs[rows, num_correct.clamp(max=draft_probs.shape[1] - 1)]
    residual = torch.where(rejected[:, None], (p - q.nan_to_num(0.0)).relu(), p)
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
    mass = residual.cumsum(-1)
    return (mass > coins[:, None] * mass[:, -1:]).long().argmax(-1)


def _probability(probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


_KERNELS = {
    "tree_speculative_sampling_target_only": sample_target_only,
    "top_k_renorm_prob": renormalize_top_k,
    "top_p_renorm_prob": renormalize_top_p,
}


def provide(module: ModuleType) -> None:
    """Bind the kernels that a SGLang module holds as None to those here."""
    for name, kernel in _KERNELS.items():
        if getattr(module, name) is None:
            setattr(module, name, kernel)
