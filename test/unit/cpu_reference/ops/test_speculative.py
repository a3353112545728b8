"""Draft layout and verification against plain walks over the drafts."""

from __future__ import annotations

import pytest
import sgl_kernel
import torch
from torch import Tensor

DEPTH = 4


def chain(batch: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    index = torch.arange(batch * n).view(batch, n)
    child = torch.tensor([*range(1, n), -1]).repeat(batch, 1)
    return index, child, torch.full((batch, n), -1)


def verify(
    candidates: Tensor, targets: Tensor, links: tuple[Tensor, Tensor, Tensor]
) -> tuple[list[int], list[list[int]], list[int]]:
    batch, n = candidates.shape
    predicts = torch.zeros(batch * n, dtype=torch.int32)
    accept_index = torch.full((batch, DEPTH), -1, dtype=torch.int32)
    number = torch.empty(batch, dtype=torch.int32)
    index, child, sibling = links
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=number,
        candidates=candidates,
        retrive_index=index,
        retrive_next_token=child,
        retrive_next_sibling=sibling,
        target_predict=targets,
    )
    return predicts.tolist(), accept_index.tolist(), number.tolist()


def test_chain_layout() -> None:
    batch, n = 2, 4
    mask = torch.zeros(batch * n * n, dtype=torch.bool)
    positions = torch.empty(batch * n, dtype=torch.long)
    links = torch.full((3, batch, n), 99)
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.empty(batch, 0, dtype=torch.long),
        torch.tensor([[0, 1, 2], [0, 1, 2]]),
        torch.tensor([7, 20], dtype=torch.int32),
        mask,
        positions,
        *links,
        1,
        3,
        n,
        1,
    )
    assert positions.tolist() == [7, 8, 9, 10, 20, 21, 22, 23]
    for actual, expected in zip(links, chain(batch, n)):
        assert torch.equal(actual, expected)
    for part in mask.view(batch, n, n).tolist():
        assert part == [[j <= i for j in range(n)] for i in range(n)]


@pytest.mark.parametrize("topk, mode, what", [(2, 1, "topk 2"), (1, 0, "mode 0")])
def test_other_layouts_are_refused(topk: int, mode: int, what: str) -> None:
    empty, links = torch.empty(0), torch.zeros(3, 1, 4)
    with pytest.raises(NotImplementedError, match=what):
        sgl_kernel.build_tree_kernel_efficient_cpu(
            empty, empty, torch.tensor([5]), empty, empty, *links, topk, 3, 4, mode
        )


def test_chain_is_accepted_up_to_the_first_rejection() -> None:
    """One request for each place of the rejection, the last one with none."""
    batch, n = DEPTH, DEPTH
    candidates = torch.arange(batch * n).view(batch, n) + 10
    targets = torch.full((batch, n), 5)
    for request in range(batch):
        targets[request, :request] = candidates[request, 1 : request + 1]
    predicts, accepted, number = verify(candidates, targets, chain(batch, n))
    assert number == [0, 1, 2, 3]
    for request in range(batch):
        first, correct = request * n, request
        reached = list(range(first, first + correct + 1))
        assert accepted[request] == reached + [-1] * (DEPTH - 1 - correct)
        drafts = candidates[request, 1 : correct + 1].tolist()
        rest = [0] * (n - correct - 1)
        assert predicts[first : first + n] == [*drafts, 5, *rest]


def test_a_match_behind_a_rejection_is_not_accepted() -> None:
    candidates = torch.tensor([[1, 2, 3, 4]])
    targets = torch.tensor([[9, 3, 4, 5]])
    assert verify(candidates, targets, chain(1, 4)) == (
        [9, 0, 0, 0],
        [[0, -1, -1, -1]],
        [0],
    )


def test_siblings_are_tried_in_turn() -> None:
    #      0 -> 1, 2, 3;  2 -> 4, 5;  the target takes 3rd choice, then the 2nd
    candidates = torch.tensor([[1, 11, 12, 13, 14, 15]] * 3)
    child = torch.tensor([[1, -1, 4, -1, -1, -1]] * 3)
    sibling = torch.tensor([[-1, 2, 3, -1, 5, -1]] * 3)
    index = torch.arange(18).view(3, 6)
    targets = torch.tensor(
        [[13, 0, 0, 77, 0, 0], [12, 0, 15, 0, 0, 88], [16, 0, 0, 0, 0, 0]]
    )
    predicts, accepted, number = verify(candidates, targets, (index, child, sibling))
    assert number == [1, 2, 0]
    assert accepted == [[0, 3, -1, -1], [6, 8, 11, -1], [12, -1, -1, -1]]
    assert [predicts[i] for i in (0, 3, 6, 8, 11, 12)] == [13, 77, 12, 15, 88, 16]


def test_depth_bounds_what_is_accepted() -> None:
    """With a narrow result the walk ends there and its last token is the bonus."""
    candidates = torch.arange(6).view(1, 6)
    targets = torch.arange(1, 7).view(1, 6)
    predicts, accepted, number = verify(candidates, targets, chain(1, 6))
    assert (accepted, number) == ([[0, 1, 2, 3]], [DEPTH - 1])
    assert predicts == [1, 2, 3, 4, 0, 0]


def test_bonus_is_the_last_accepted_token() -> None:
    tokens = torch.arange(12, dtype=torch.int32)
    bonus = torch.zeros(3, dtype=torch.int32)
    lens = torch.tensor([1, 4, 2], dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(tokens, lens, bonus, 4)
    assert bonus.tolist() == [0, 7, 9]


def rotate(select: Tensor | None) -> list[int]:
    ids = torch.arange(10, 20)
    sgl_kernel.rotate_input_ids_cpu(
        ids,
        torch.tensor([0, 3, 4, 4]),
        torch.tensor([3, 1, 0, 4]),
        torch.tensor([[91], [92], [93], [94]]),
        select,
    )
    return ids.tolist()


def test_inputs_are_rotated_within_each_request() -> None:
    assert rotate(None) == [11, 12, 91, 92, 15, 16, 17, 94, 18, 19]


def test_the_new_token_can_go_elsewhere() -> None:
    rotated = rotate(torch.tensor([1, 3, 9, 5]))
    assert rotated == [11, 91, 12, 92, 15, 94, 17, 17, 18, 19]
