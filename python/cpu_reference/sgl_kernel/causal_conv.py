"""The short causal convolution in front of the gated delta rule.

A request's convolution state is its last ``taps - 1`` inputs, oldest first:
``conv_states[slot]`` has shape ``[channels, taps - 1]``. A negative slot marks a
padded request: its output is zero and no state is written.
"""

from __future__ import annotations

from typing import Sequence

import torch
import torch.nn.functional as F
from sgl_kernel.ragged import owners_and_offsets
from sgl_kernel.registry import operator
from torch import Tensor


def _convolve(
    inputs: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
) -> Tensor:
    """Weigh one ``[..., channels]`` tensor a tap, oldest first, in float32.

    Element by element in a fixed order, so that a token gets the same bits in a
    prefill, a decode and a verify pass.
    """
    total = torch.zeros_like(inputs[0], dtype=torch.float32)
    if bias is not None:
        total += bias.float()
    for tap, column in zip(inputs, weight.float().unbind(1)):
        total += tap.float() * column
    if activation is None:
        return total
    if activation not in ("silu", "swish"):
        raise ValueError(f"activation must be silu, swish or None, not {activation}")
    return F.silu(total)


def _read_history(
    conv_states: Tensor, slots: Tensor, has_initial_state: Tensor | None, like: Tensor
) -> Tensor:
    """Return the states as ``[B, taps - 1, channels]``, zeros where there is none."""
    history = conv_states[slots.clamp(min=0)].transpose(1, 2).to(like.dtype)
    usable = slots >= 0
    if has_initial_state is not None:
        usable = usable & has_initial_state.bool()
    return history.masked_fill(~usable[:, None, None], 0)


def _write_states(conv_states: Tensor, slots: Tensor, windows: Tensor) -> None:
    """Store ``windows`` ``[B, taps - 1, channels]`` in the slots that exist."""
    real = slots >= 0
    conv_states[slots[real]] = windows[real].transpose(1, 2).to(conv_states.dtype)


@operator(
    "causal_conv1d_fwd_cpu(Tensor x, Tensor weight, Tensor? bias,"
    " Tensor(a!) conv_states, Tensor query_start_loc, Tensor cache_indices,"
    " Tensor? has_initial_state, str? activation) -> Tensor"
)
def causal_conv1d_fwd_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor,
    query_start_loc: Tensor,
    cache_indices: Tensor,
    has_initial_state: Tensor | None,
    activation: str | None,
) -> Tensor:
    """Convolve packed prompts ``x`` ``[channels, tokens]`` and update the states."""
    starts = query_start_loc.long()
    requests, num_tokens = starts.numel() - 1, int(starts[-1])
    slots = cache_indices[:requests].long()
    lag = weight.shape[1] - 1
    owners, _ = owners_and_offsets(starts.diff())
    # Each request's history is put in front of its tokens.
    rows = torch.arange(num_tokens) + lag * (owners + 1)
    firsts = starts[:-1] + lag * torch.arange(requests)
    ends = starts[1:] + lag * torch.arange(requests)
    extended = x.new_empty(num_tokens + lag * requests, x.shape[0])
    extended[rows] = x.t()[:num_tokens]
    window = torch.arange(lag)
    extended[firsts.unsqueeze(1) + window] = _read_history(
        conv_states, slots, has_initial_state, x
    )

    taps = [extended[rows - lag + tap] for tap in range(lag + 1)]
    convolved = _convolve(taps, weight, bias, activation)
    out = x.new_zeros(x.shape[1], x.shape[0])
    out[:num_tokens] = convolved.masked_fill((slots[owners] < 0).unsqueeze(1), 0)
    _write_states(conv_states, slots, extended[ends.unsqueeze(1) + window])
    return out.t()


def _tap_positions(steps: int, lag: int, parents: Tensor | None) -> Tensor:
    """Return ``[B or 1, steps, taps]``: where each token's inputs stand, oldest first.

    Positions count the ``lag`` entries of the history first; a token's previous
    input is its parent's in the draft tree, the root's is the newest history entry.
    """
    positions = lag + torch.arange(steps)
    if parents is None:
        return (positions.unsqueeze(1) + torch.arange(-lag, 1)).unsqueeze(0)
    parents = parents[:, :steps].long().clamp(min=-1, max=steps - 1)
    root = torch.arange(steps) == 0
    parents = parents.masked_fill(root, -1)
    history = torch.arange(-1, lag - 1).clamp(min=0).expand(len(parents), -1)
    previous = torch.cat([history, lag + parents], dim=1)
    columns = [positions.expand(len(parents), -1)]
    for _ in range(lag):
        columns.append(previous.gather(1, columns[-1]))
    return torch.stack(columns[::-1], dim=-1)


@operator(
    "causal_conv1d_update_cpu(Tensor x, Tensor(a!) conv_states, Tensor weight,"
    " Tensor? bias=None, str? activation=None, Tensor? conv_state_indices=None,"
    " Tensor(b!)? intermediate_conv_window=None,"
    " Tensor? intermediate_state_indices=None, Tensor? retrieve_next_token=None,"
    " Tensor? retrieve_next_sibling=None, Tensor? retrieve_parent_token=None)"
    " -> Tensor"
)
def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
    intermediate_conv_window: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
) -> Tensor:
    """Convolve one or a few new tokens a request, ``x`` ``[B, channels(, steps)]``.

    With ``intermediate_conv_window`` ``[rows, steps, channels, taps - 1]`` (a verify
    pass) the state after every token is stored there and ``conv_states`` is kept.
    """
    tokens = (x.unsqueeze(-1) if x.ndim == 2 else x).transpose(1, 2)
    batch, steps = tokens.shape[:2]
    slots = torch.arange(batch) if conv_state_indices is None else conv_state_indices
    slots = slots[:batch].long()
    lag = weight.shape[1] - 1
    extended = torch.cat([_read_history(conv_states, slots, None, x), tokens], dim=1)
    positions = _tap_positions(steps, lag, retrieve_parent_token)
    windows = extended[torch.arange(batch)[:, None, None], positions]
    convolved = _convolve(windows.unbind(2), weight, bias, activation)
    convolved = convolved.masked_fill((slots < 0)[:, None, None], 0)
    if intermediate_conv_window is None:
        _write_states(conv_states, slots, windows[:, -1, 1:])
    else:
        chosen = intermediate_state_indices
        rows = slots if chosen is None else chosen
        real = slots >= 0
        intermediate_conv_window[rows[:batch][real].long(), :steps] = (
            windows[real][:, :, 1:].transpose(2, 3).to(intermediate_conv_window.dtype)
        )
    out = convolved.to(x.dtype).transpose(1, 2)
    return out.squeeze(-1) if x.ndim == 2 else out
