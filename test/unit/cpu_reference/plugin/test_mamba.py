"""Recurrent states after a verify step, element by element."""

from __future__ import annotations

import pytest
import torch

from sglang_cpu_reference.mamba import scatter_states

LAYERS, SLOTS, ROWS, STEPS = 2, 6, 4, 3


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 0, 2])])
def test_each_slot_gets_the_state_after_its_step(rows: torch.Tensor | None) -> None:
    states = torch.zeros(LAYERS, SLOTS, 2, 2)
    kept = torch.arange(1.0, LAYERS * ROWS * STEPS * 4 + 1).view(
        LAYERS, ROWS, STEPS, 2, 2
    )
    slots, steps = torch.tensor([5, 1, 4]), torch.tensor([2, -1, 0])
    scatter_states([(states, kept)], slots, steps, rows)
    source = rows if rows is not None else torch.arange(3)
    for request, (slot, step) in enumerate(zip(slots, steps)):
        expected = kept[:, source[request], step] if step >= 0 else torch.zeros(2, 2)
        assert torch.equal(states[:, slot], expected.expand(LAYERS, 2, 2))
    untouched = [slot for slot in range(SLOTS) if slot not in (5, 4)]
    assert not states[:, untouched].any()


def test_overlapping_windows_and_another_dtype() -> None:
    """The convolution's windows are views of one buffer, one column apart."""
    buffer = torch.randn(LAYERS, ROWS, 4, STEPS + 2, dtype=torch.bfloat16)
    windows = buffer.unfold(-1, 3, 1).permute(0, 1, 3, 2, 4)
    states = torch.zeros(LAYERS, SLOTS, 4, 3)
    empty = (torch.zeros(LAYERS, 0), torch.zeros(LAYERS, 0, STEPS))
    pairs = [(states, windows), empty]
    scatter_states(pairs, torch.tensor([2]), torch.tensor([1]))
    assert torch.equal(states[:, 2], buffer[:, 0, :, 1:4].float())
