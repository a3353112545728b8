"""Recurrent states after a verify step."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def scatter_states(
    pairs: Iterable[tuple[torch.Tensor, torch.Tensor]],
    slots: torch.Tensor,
    steps: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> None:
    """``states[:, slots[i]] = steps_states[:, rows[i], steps[i]]`` where a step is set.

    Each pair is the states ``[layers, slots, ...]`` and those kept for each step
    ``[layers, rows, steps, ...]``; a step below 0 leaves its slot alone, and without
    ``rows`` request ``i`` has row ``i``.
    """
    valid = steps >= 0
    if rows is None:
        rows = torch.arange(steps.shape[0], device=steps.device)
    slots, steps, rows = (t[valid].long() for t in (slots, steps, rows))
    for states, step_states in pairs:
        if states.numel():
            states[:, slots] = step_states[:, rows, steps].to(states.dtype)
