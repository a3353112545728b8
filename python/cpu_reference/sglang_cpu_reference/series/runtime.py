"""Serving Qwen3.5 on a CPU without AMX: norm, attention backend, recurrent state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Guard, Patch

if TYPE_CHECKING:
    import torch


def gated_rmsnorm(
    self: Any, x: torch.Tensor, z: torch.Tensor | None = None
) -> torch.Tensor:
    """SGLang's own CPU operator, which it reserves for AMX."""
    import torch

    if z is not None and self.norm_before_gate and self.group_size is None:
        return torch.ops.sgl_kernel.fused_rmsnorm_gated_cpu(x, self.weight, z, self.eps)
    return CONTINUE


def attention_backend_fallback(view: Any) -> dict[str, Any]:
    """Keep ``intel_amx``: torch_native has no speculative draft backend."""
    if view.attention_backend == "intel_amx" and view.device == "cpu":
        return {}
    return CONTINUE


def scatter_mamba_states(
    mamba_caches: Any,
    state_indices_tensor: torch.Tensor,
    last_correct_step_indices: torch.Tensor,
    mamba_track_indices: torch.Tensor | None,
    mamba_steps_to_track: torch.Tensor | None,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Copy each request's state after its last correct draft, without Triton."""
    if mamba_caches.temporal.device.type != "cpu":
        return CONTINUE
    from sglang_cpu_reference.mamba import scatter_states

    pairs = [(mamba_caches.temporal, mamba_caches.intermediate_ssm)]
    pairs += zip(mamba_caches.conv, mamba_caches.intermediate_conv_window)
    targets = [(state_indices_tensor, last_correct_step_indices)]
    if mamba_track_indices is not None:
        targets.append((mamba_track_indices, mamba_steps_to_track))
    for slots, steps in targets:
        scatter_states(pairs, slots, steps, src_indices_raw)
    return None


def _gated_rmsnorm_runs() -> bool:
    import torch
    from sglang.kernels.ops.attention.fla.layernorm_gated import RMSNorm

    try:
        RMSNorm(32)(torch.ones(1, 32), torch.ones(1, 32))
    except Exception:
        return False
    return True


def _keeps_intel_amx() -> bool:
    from types import SimpleNamespace

    from sglang.srt.arg_groups.overrides import _attention_backend_platform_fallbacks

    view = SimpleNamespace(attention_backend="intel_amx", device="cpu")
    return not _attention_backend_platform_fallbacks(view)


def _scatters_on_cpu() -> bool:
    from types import SimpleNamespace

    import torch
    from sglang.kernels.ops.mamba.mamba_state_scatter_triton import (
        scatter_mamba_states_after_mtp_verify,
    )

    caches = SimpleNamespace(
        temporal=torch.zeros(1, 2, 1),
        intermediate_ssm=torch.ones(1, 1, 1, 1),
        conv=[],
        intermediate_conv_window=[],
    )
    slot, step = torch.tensor([1]), torch.tensor([0])
    try:
        scatter_mamba_states_after_mtp_verify(caches, slot, step, None, None)
    except Exception:
        return False
    return bool(caches.temporal[0, 1, 0] == 1)


RUNTIME = (
    Patch(
        name="cpu-gated-rmsnorm",
        symptom="Without AMX the gated norm of linear attention launches a Triton "
        "kernel, which a CPU cannot run.",
        upstream="",
        removal="when layernorm_gated asks for a CPU rather than for AMX",
        probe=_gated_rmsnorm_runs,
        seams=(
            Guard(
                target="sglang.kernels.ops.attention.fla.layernorm_gated:"
                "RMSNorm.forward",
                function=gated_rmsnorm,
                fingerprints={
                    "0.5.23": "05916581cff73cbffb07242683df6a3a"
                    "3b3ce76dcb226a2a96ba6c9db98207da"
                },
            ),
        ),
    ),
    Patch(
        name="cpu-attention-backend",
        symptom="Without AMX --attention-backend intel_amx becomes torch_native, "
        "which cannot serve speculative decoding.",
        upstream="",
        removal="when intel_amx is kept on every CPU",
        probe=_keeps_intel_amx,
        seams=(
            Guard(
                target="sglang.srt.arg_groups.overrides:"
                "_attention_backend_platform_fallbacks",
                function=attention_backend_fallback,
                fingerprints={
                    "0.5.23": "b92bd4aabab0cde54b7ff1cfeab7db5b"
                    "f5180ed6d10a8cd148cfd917ab386fa9"
                },
                importers=("sglang.srt.arg_groups.attention_hook",),
            ),
        ),
    ),
    Patch(
        name="cpu-mamba-state-scatter",
        symptom="After a verify step the recurrent states are scattered by a Triton "
        "kernel that refuses CPU tensors.",
        upstream="",
        removal="when scatter_mamba_states_after_mtp_verify has a CPU path",
        probe=_scatters_on_cpu,
        seams=(
            Guard(
                target="sglang.kernels.ops.mamba.mamba_state_scatter_triton:"
                "scatter_mamba_states_after_mtp_verify",
                function=scatter_mamba_states,
                fingerprints={
                    "0.5.23": "6877af72482f45b485a6db638baffbbb"
                    "84ce8c0fc9a2c51a7372584f7478dada"
                },
                importers=(
                    "sglang.srt.layers.attention.hybrid_linear_attn_backend",
                    "sglang.srt.layers.attention.linear.inkling_sconv_backend",
                ),
            ),
        ),
    ),
)
