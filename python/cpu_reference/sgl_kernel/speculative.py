"""Draft chains: how they are laid out, verified and moved on.

A request's ``n`` draft tokens are nodes of a tree: ``retrive_index`` numbers them
across the batch, ``retrive_next_token`` names a node's first child and
``retrive_next_sibling`` the next child of the same parent (-1: none), both within
the request. The spelling is that of the operators' callers.
"""

from __future__ import annotations

import torch
from sgl_kernel.names import placeholder
from sgl_kernel.ragged import owners_and_offsets
from sgl_kernel.registry import not_provided, operator
from torch import Tensor

# SGLang's TreeMaskMode.QLEN_ONLY: booleans [B, n, n] among the draft tokens.
QLEN_ONLY = 1

# NGRAM's worker imports this from here.
reconstruct_indices_from_tree_mask = placeholder("reconstruct_indices_from_tree_mask")


@operator(
    "build_tree_kernel_efficient_cpu(Tensor parent_list, Tensor selected_index,"
    " Tensor verified_seq_len, Tensor(a!) tree_mask, Tensor(b!) positions,"
    " Tensor(c!) retrive_index, Tensor(d!) retrive_next_token,"
    " Tensor(e!) retrive_next_sibling, int topk, int depth, int draft_token_num,"
    " int tree_mask_mode) -> ()"
)
def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Lay out one chain a request; with ``topk`` 1 the parents are known."""
    name = "build_tree_kernel_efficient_cpu"
    if topk != 1:
        raise not_provided(name, f"topk {topk}, only 1")
    if tree_mask_mode != QLEN_ONLY:
        raise not_provided(name, f"tree mask mode {int(tree_mask_mode)}, only 1")
    batch, n = verified_seq_len.numel(), draft_token_num
    steps = torch.arange(n)
    ancestors = torch.ones(n, n, dtype=torch.bool).tril()
    tree_mask.view(-1)[: batch * n * n].view(batch, n, n).copy_(ancestors)
    positions.view(batch, n).copy_(verified_seq_len.unsqueeze(1) + steps)
    retrive_index.view(batch, n).copy_(torch.arange(batch * n).view(batch, n))
    retrive_next_token.view(batch, n).copy_((steps + 1).where(steps < n - 1, -1))
    retrive_next_sibling.fill_(-1)


def _matching_child(
    node: Tensor, wanted: Tensor, candidates: Tensor, child: Tensor, sibling: Tensor
) -> Tensor:
    """Return for each request the child of ``node`` that holds ``wanted``, or -1."""
    rows = torch.arange(node.numel())
    current = child[rows, node]
    for _ in range(candidates.shape[1]):
        mismatch = (current >= 0) & (candidates[rows, current.clamp(min=0)] != wanted)
        if not mismatch.any():
            break
        current = sibling[rows, current.clamp(min=0)].where(mismatch, current)
    return current


@operator(
    "verify_tree_greedy_cpu(Tensor(a!) predicts, Tensor(b!) accept_index,"
    " Tensor(c!) accept_token_num, Tensor candidates, Tensor retrive_index,"
    " Tensor retrive_next_token, Tensor retrive_next_sibling, Tensor target_predict)"
    " -> ()"
)
def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follow the target's greedy tokens down each request's draft tree.

    Args:
        predicts: ``[B * n]``, receives the target's token after every accepted node.
        accept_index: ``[B, depth]`` filled with -1, receives the accepted nodes'
            numbers in the batch, the root (the last verified token) first.
        accept_token_num: ``[B]``, receives the number of correct drafts.
        candidates: draft tokens ``[B, n]``; ``target_predict`` the target's next
            token after each.
    """
    batch, _ = candidates.shape
    rows = torch.arange(batch)
    index, targets = retrive_index.long(), target_predict.reshape(-1)
    child, sibling = retrive_next_token.long(), retrive_next_sibling.long()
    node = torch.zeros(batch, dtype=torch.long)
    alive = torch.ones(batch, dtype=torch.bool)
    count = torch.zeros(batch, dtype=torch.long)
    for step in range(accept_index.shape[1]):
        reached = index[rows, node]
        accept_index[alive, step] = reached[alive].to(accept_index.dtype)
        wanted = targets[reached]
        predicts[reached[alive]] = wanted[alive].to(predicts.dtype)
        following = _matching_child(node, wanted, candidates, child, sibling)
        alive = alive & (following >= 0)
        if step + 1 == accept_index.shape[1] or not alive.any():
            break
        count += alive
        node = following.clamp(min=0)
    accept_token_num.copy_(count)


@operator(
    "fill_bonus_tokens_cpu(Tensor accept_tokens, Tensor accept_lens,"
    " Tensor(a!) bonus_tokens, int accept_stride) -> ()"
)
def fill_bonus_tokens_cpu(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """Take each request's last accepted token; ``accept_lens`` counts the bonus."""
    starts = accept_stride * torch.arange(accept_lens.numel())
    chosen = accept_tokens.reshape(-1)[starts + accept_lens.long() - 1]
    bonus_tokens[: chosen.numel()] = chosen.to(bonus_tokens.dtype)


@operator(
    "rotate_input_ids_cpu(Tensor(a!) input_ids, Tensor extend_start_loc,"
    " Tensor extend_seq_lens, Tensor topk_index, Tensor? select_index=None) -> ()"
)
def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one and put its new token behind them.

    With ``select_index`` the new token goes to that row instead of the last one.
    """
    lengths, starts = extend_seq_lens.long(), extend_start_loc.long()
    owners, offsets = owners_and_offsets((lengths - 1).clamp(min=0))
    kept = starts[owners] + offsets
    input_ids[kept] = input_ids[kept + 1]
    last = starts + lengths - 1 if select_index is None else select_index.long()
    filled = lengths > 0
    new = topk_index.reshape(-1)[: lengths.numel()]
    input_ids[last[: lengths.numel()][filled]] = new[filled].to(input_ids.dtype)
