"""What DFLASH needs beside the operators."""

from __future__ import annotations

import pytest
import torch

from sglang_cpu_reference.dflash import (
    admitting_dflash,
    qk_norm_rope,
    skip_record_stream_on_cpu,
)


class Platform:
    def is_out_of_tree(self) -> bool:
        return False


def test_the_platform_is_foreign_only_inside() -> None:
    platform = Platform()
    with admitting_dflash(platform):
        assert platform.is_out_of_tree()
        assert platform.supports_speculative_algorithm("DFLASH")
        assert not platform.supports_speculative_algorithm("DSPARK")
        backend = platform.get_default_speculative_draft_attention_backend("DFLASH")
        assert platform.supports_speculative_draft_attention_backend("DFLASH", backend)
    assert not platform.is_out_of_tree() and vars(platform) == {}


def test_the_platform_is_itself_again_after_an_error() -> None:
    platform = Platform()
    with pytest.raises(ValueError), admitting_dflash(platform):
        raise ValueError
    assert vars(platform) == {}


def test_record_stream_passes_on_the_cpu_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda t, s: recorded.append(s))
    skip_record_stream_on_cpu()
    skip_record_stream_on_cpu()
    torch.ones(1).record_stream(object())
    assert recorded == []
    torch.ones(1, device="meta").record_stream("stream")
    assert recorded == ["stream"]


def rotated(head: list[float], position: int, weight: list[float]) -> list[float]:
    """One head's norm and rotation in Python floats, pairs half a head apart."""
    half = len(head) // 2
    scale = (sum(x * x for x in head) / len(head) + 1e-6) ** -0.5
    x = [v * scale * w for v, w in zip(head, weight)]
    turned = [complex(x[i], x[i + half]) for i in range(half)]
    for i in range(half):
        angle = torch.tensor(position * 10000 ** (-i / half), dtype=torch.float64)
        turned[i] *= complex(angle.cos().item(), angle.sin().item())
    return [z.real for z in turned] + [z.imag for z in turned]


def test_norm_and_rotation_of_queries_and_keys_in_place() -> None:
    heads, key_heads, size, tokens = 4, 2, 8, 5
    generator = torch.Generator().manual_seed(0)
    width = (heads + 2 * key_heads) * size
    # A slice of a wider tensor: the operator must work on strided rows.
    wide = torch.randn(tokens, width + 8, generator=generator)
    qkv, before = wide[:, :width], wide.clone()
    q_weight, k_weight = torch.rand(2, size, generator=generator) + 0.5
    positions = torch.tensor([0, 3, 1, 40, 7])
    angles = torch.arange(64.0)[:, None] * 10000 ** (-torch.arange(4) / 4)
    cache = torch.cat([angles.cos(), angles.sin()], -1)
    qk_norm_rope(qkv, positions, q_weight, k_weight, cache, heads, key_heads, 1e-6)
    for token in range(tokens):
        for head in range(heads + key_heads):
            columns = slice(head * size, head * size + size)
            weight = q_weight if head < heads else k_weight
            expected = rotated(
                before[token, columns].tolist(),
                positions[token].item(),
                weight.tolist(),
            )
            torch.testing.assert_close(
                wide[token, columns], torch.tensor(expected), atol=1e-5, rtol=1e-4
            )
    values = slice((heads + key_heads) * size, None)
    assert torch.equal(wide[:, values], before[:, values])
