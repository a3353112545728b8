"""The functions SGLang imports from ``sgl_kernel.mamba``, with their call signatures."""

from __future__ import annotations

from typing import Sequence

from sgl_kernel import causal_conv, gated_delta
from sgl_kernel.causal_conv import causal_conv1d_update_cpu
from sgl_kernel.registry import not_provided
from torch import Tensor

__all__ = [
    "causal_conv1d_fn_cpu",
    "causal_conv1d_update_cpu",
    "chunk_gated_delta_rule_cpu",
]


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    query_start_loc: Tensor,
    cache_indices: Tensor,
    conv_states: Tensor,
    has_initial_state: Tensor | None = None,
    activation: str | None = "silu",
    seq_lens_cpu: Sequence[int] | None = None,
) -> Tensor:
    """Convolve packed prompts ``[channels, tokens]``; see ``causal_conv1d_fwd_cpu``.

    ``seq_lens_cpu`` repeats what ``query_start_loc`` says and is not read.
    """
    return causal_conv.causal_conv1d_fwd_cpu(
        x,
        weight,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        has_initial_state,
        activation,
    )


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    initial_state_indices: Tensor | None = None,
) -> tuple[Tensor, None, None]:
    """Run packed prompts; the states are updated in place.

    Returns the output, and None for the last state and the states of the chunks.
    """
    if head_first:
        raise not_provided("chunk_gated_delta_rule_cpu", "head_first")
    if initial_state_indices is None:
        raise not_provided("chunk_gated_delta_rule_cpu", "no initial_state_indices")
    out = gated_delta.chunk_gated_delta_rule_cpu(
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        cu_seqlens,
        use_qk_l2norm_in_kernel,
        initial_state_indices,
    )
    return out, None, None
