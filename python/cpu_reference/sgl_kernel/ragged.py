"""Index arithmetic for batches whose requests lie one after another in a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def padded_index(starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Lay requests out as rows of equal length.

    Returns the row to read for each place, ``[B, max(lengths)]``, and which places
    exist; the others read row 0.
    """
    steps = torch.arange(int(lengths.max()) if lengths.numel() else 0)
    exists = steps < lengths.unsqueeze(1)
    index = starts.long().unsqueeze(1) + steps
    return index.where(exists, 0), exists


def owners_and_offsets(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each packed element, its request and its offset within it."""
    lengths = lengths.long()
    owners = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
    firsts = lengths.cumsum(0) - lengths
    return owners, torch.arange(owners.numel()) - firsts[owners]


def groups_of_similar_length(lengths: Tensor) -> list[Tensor]:
    """Split requests so that padding within a group at most doubles its tokens.

    Lengths up to 64 share a group, empty requests are left out.
    """
    sizes = lengths.tolist()
    groups: dict[int, list[int]] = {}
    for request, size in enumerate(sizes):
        if size > 0:
            groups.setdefault((max(size, 64) - 1).bit_length(), []).append(request)
    return [torch.tensor(group) for group in groups.values()]
