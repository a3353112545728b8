"""What DFLASH needs on the CPU beside the operators of ``sgl_kernel``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

ALGORITHM = "DFLASH"
ATTENTION_BACKEND = "intel_amx"


@contextmanager
def admitting_dflash(platform: Any) -> Iterator[None]:
    """Make a platform look, for a while, like a foreign one that has DFLASH.

    Only for a while: some 40 other branches ask whether the platform is foreign.
    """
    answers = {
        "is_out_of_tree": lambda: True,
        "supports_speculative_algorithm": lambda name: name == ALGORITHM,
        "supports_speculative_draft_attention_backend": (
            lambda name, backend: backend == ATTENTION_BACKEND
        ),
        "get_default_speculative_draft_attention_backend": (
            lambda name: ATTENTION_BACKEND
        ),
    }
    for name, answer in answers.items():
        setattr(platform, name, answer)
    try:
        yield
    finally:
        for name in answers:
            delattr(platform, name)


def offer_draft_attention_backend() -> None:
    """Add ``intel_amx`` to the backends that a draft may have."""
    from sglang.srt.arg_groups import choices

    if ATTENTION_BACKEND not in choices.DRAFT_ATTENTION_BACKEND_CHOICES:
        choices.add_draft_attention_backend_choices([ATTENTION_BACKEND])


def skip_record_stream_on_cpu() -> None:
    """Let ``record_stream`` pass on CPU tensors, which have no stream to record."""
    record_stream = torch.Tensor.record_stream
    if getattr(record_stream, "skips_cpu", False):
        return

    def record(self: torch.Tensor, stream: Any) -> None:
        if self.device.type != "cpu":
            record_stream(self, stream)

    record.skips_cpu = True
    torch.Tensor.record_stream = record


def qk_norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    num_q_heads: int,
    num_k_heads: int,
    eps: float,
) -> None:
    """RMS norm and rotation of the query and key heads in ``qkv``, in place.

    ``qkv`` is ``[T, (q + k + v heads) * D]``, the weights ``[D]`` and the cache
    ``[positions, cos and sin of D / 2]``. Rounds to qkv's dtype after the norm.
    """
    head_dim = q_weight.shape[0]
    num_heads = num_q_heads + num_k_heads
    heads = qkv[:, : num_heads * head_dim].unflatten(-1, (num_heads, head_dim))
    weights = torch.cat(
        [q_weight.expand(num_q_heads, -1), k_weight.expand(num_k_heads, -1)]
    )
    x = heads.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weights.float()
    first, second = x.to(qkv.dtype).float().chunk(2, -1)
    cos, sin = cos_sin_cache[positions].float().unsqueeze(1).chunk(2, -1)
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    heads.copy_(rotated)
