"""DFLASH on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Around, Attribute, Guard, Patch

if TYPE_CHECKING:
    import torch


def handle_dflash(server_args: Any) -> None:
    """Past the device gate, and nowhere else, a CPU passes for a foreign platform."""
    from sglang.srt.arg_groups import speculative_hook

    platform = speculative_hook.current_platform
    if server_args.device != "cpu" or platform.is_out_of_tree():
        return CONTINUE
    from sglang_cpu_reference.dflash import admitting_dflash

    with admitting_dflash(platform):
        speculative_hook._handle_dflash(server_args)
    return None


def before_worker(
    self: Any, server_args: Any, gpu_id: int, nccl_port: int, target_worker: Any
) -> None:
    """Let the draft have its attention backend, and CPU tensors be recorded."""
    from sglang_cpu_reference.dflash import (
        offer_draft_attention_backend,
        skip_record_stream_on_cpu,
    )

    offer_draft_attention_backend()
    skip_record_stream_on_cpu()


def table_qk_norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    num_q_heads: int,
    num_k_heads: int,
    head_dim: int,
    eps: float,
) -> None:
    """The draft layers' norm and rotation without Triton."""
    if qkv.device.type != "cpu":
        return CONTINUE
    from sglang_cpu_reference.dflash import qk_norm_rope

    qk_norm_rope(
        qkv,
        positions,
        q_weight,
        k_weight,
        cos_sin_cache,
        num_q_heads,
        num_k_heads,
        eps,
    )
    return None


def provide_kernels(
    *,
    candidates: torch.Tensor,
    next_token_logits: torch.Tensor,
    sampling_info: Any,
    max_top_k: int | None = None,
    uniform_top_k_value: int | None = None,
    threshold_single: float | None = None,
    threshold_acc: float | None = None,
    uniform_samples: torch.Tensor | None = None,
    uniform_samples_for_final_sampling: torch.Tensor | None = None,
    use_sparse_topk: bool = True,
) -> Any:
    """Fill the names that SGLang binds to None on a CPU."""
    from sglang.srt.speculative import dflash_utils

    from sglang_cpu_reference.sampling import provide

    provide(dflash_utils)
    return CONTINUE


def _not_yet() -> bool:
    return False


DFLASH = (
    Patch(
        name="cpu-dflash",
        symptom="DFLASH is refused on a CPU, and without the refusal dies in its "
        "worker's streams, its attention metadata and a Triton kernel.",
        upstream="",
        removal="when SGLang admits DFLASH on the CPU",
        probe=_not_yet,
        seams=(
            Guard(
                target="sglang.srt.arg_groups.speculative_hook:_handle_dflash",
                function=handle_dflash,
                fingerprints={
                    "0.5.23": "8133f7beca9bff7bda76cdfe1aa6cc85"
                    "8c04941a6c0101592416763395ffb380"
                },
            ),
            Around(
                target="sglang.srt.speculative.dflash_worker_v2:"
                "DFlashWorkerV2.__init__",
                before=before_worker,
                fingerprints={
                    "0.5.23": "ac6ad1b9d6dfa7feb847bb2f3f3c9de8"
                    "578af54c06bf6f61e55b00927d9acf0a"
                },
            ),
            # The attention backend asks for it; a block is a chain.
            Attribute(
                target="sglang.srt.speculative.dflash_info:"
                "DFlashVerifyInput.tree_topk",
                value=1,
            ),
            Guard(
                target="sglang.kernels.ops.attention.table_qk_norm_rope:"
                "table_qk_norm_rope_",
                function=table_qk_norm_rope,
                fingerprints={
                    "0.5.23": "d57d3818bb3fc10873cbed06272c5a16"
                    "3b9039b4ccaa171f40c02760d7a7dce1"
                },
            ),
        ),
    ),
    Patch(
        name="cpu-dflash-sampling",
        symptom="A draft without a selector verifies sampled requests by argmax, for "
        "want of a sampling kernel.",
        upstream="",
        removal="when SGLang samples in verify on the CPU",
        probe=_not_yet,
        requires=("cpu-dflash", "cpu-sampled-verify"),
        seams=(
            Attribute(
                target="sglang.srt.speculative.dflash_utils:"
                "_DFLASH_SAMPLING_VERIFY_AVAILABLE",
                value=True,
                expected="tree_speculative_sampling_target_only is not None "
                "and not is_npu()",
            ),
            Guard(
                target="sglang.srt.speculative.dflash_utils:"
                "compute_dflash_sampling_correct_drafts_and_bonus",
                function=provide_kernels,
                fingerprints={
                    "0.5.23": "63e310ac7e331729791fdc8e4accd8ea"
                    "7a7f4a36c14d0415d81d5e4642c2a85f"
                },
                importers=("sglang.srt.speculative.dflash_worker_v2",),
            ),
        ),
    ),
)
