"""NEXTN on the CPU: sampled verification, and drafts in a chain only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Around, Guard, Patch

if TYPE_CHECKING:
    import torch


def refuse_tree(result: None, server_args: Any) -> None:
    """Top-k above 1 drafts a tree, which sgl_kernel's torch operators do not do."""
    from sglang.srt.arg_groups.model_override_base import resolved_view

    view = resolved_view(server_args)
    if view.device == "cpu" and view.speculative_eagle_topk not in (None, 1):
        raise SystemExit(
            "cpu-reference drafts a chain only: --speculative-eagle-topk must be 1, "
            f"got {view.speculative_eagle_topk}."
        )
    return result


def verify_uses_greedy(
    *,
    is_all_greedy: bool,
    is_cpu: bool,
    is_hip: bool,
    is_xpu: bool,
    use_rejection_sampling: bool,
) -> bool:
    """Sample where a request asks for it; SGLang takes the argmax on every CPU."""
    if is_cpu:
        return is_all_greedy
    return CONTINUE


def chain_speculative_sampling(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
) -> None:
    """Rejection sampling without Triton."""
    if target_probs.device.type != "cpu" or block_verification:
        return CONTINUE
    from sglang_cpu_reference.sampling import sample_chain

    sample_chain(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        uniform_samples,
        uniform_samples_for_final_sampling,
        target_probs,
        draft_probs,
    )
    return None


def provide_kernels(
    verify_input: Any,
    batch: Any,
    logits_output: Any,
    grammar_mask: Any = None,
    uno_target_max_top_k: int | None = None,
    *,
    watermark_state: Any = None,
    watermark_full_mask: bool = True,
) -> Any:
    """Fill the names that SGLang binds to None on a CPU.

    Here and not as attributes: the scheduler process has imported the module, and
    so bound the names, before it loads plugins.
    """
    from sglang.srt.speculative import eagle_utils

    from sglang_cpu_reference.sampling import provide

    provide(eagle_utils)
    return CONTINUE


def _drafts_trees() -> bool:
    return False


def _samples_on_cpu() -> bool:
    from sglang.kernels.ops.sampling.renorm import top_k_renorm_prob
    from sglang.kernels.ops.speculative.verify_sampling import (
        tree_speculative_sampling_target_only,
    )

    return None not in (top_k_renorm_prob, tree_speculative_sampling_target_only)


SPECULATIVE = (
    Patch(
        name="cpu-chain-drafts-only",
        symptom="--speculative-eagle-topk above 1 dies in the first request, on an "
        "operator that is not provided.",
        upstream="",
        removal="when sgl_kernel here builds and verifies trees",
        probe=_drafts_trees,
        seams=(
            Around(
                target="sglang.srt.arg_groups.speculative_hook:_handle_eagle_family",
                after=refuse_tree,
                fingerprints={
                    "0.5.23": "f64221e2fad0f3afad01a87851c369f6"
                    "ad9c46d1622d54ff60cffd347bf48c3b"
                },
            ),
        ),
    ),
    Patch(
        name="cpu-sampled-verify",
        symptom="With speculation a CPU commits the argmax whatever the temperature, "
        "and rejection sampling launches a Triton kernel.",
        upstream="",
        removal="when SGLang samples in verify on the CPU",
        probe=_samples_on_cpu,
        seams=(
            Guard(
                target="sglang.srt.speculative.eagle_utils:_verify_uses_greedy",
                function=verify_uses_greedy,
                fingerprints={
                    "0.5.23": "bddc0aff82533c6b3dd6367d3b3182f8"
                    "c5d40d86d12d6935eeb5a0fb6ff9b3fe"
                },
            ),
            Guard(
                target="sglang.kernels.ops.speculative.reject_sampling:"
                "chain_speculative_sampling_triton",
                function=chain_speculative_sampling,
                fingerprints={
                    "0.5.23": "6bf7544146314a7bcda9de7e016f6bfe"
                    "b173435b2bf2e7ed125dd1d247acfc01"
                },
                importers=("sglang.srt.speculative.eagle_utils",),
            ),
            Guard(
                target="sglang.srt.speculative.eagle_utils:eagle_sample",
                function=provide_kernels,
                fingerprints={
                    "0.5.23": "4eaf5545d8222bbd78b819793f911305"
                    "82b21667606dec2943dc3b396f5bdb0b"
                },
                importers=(
                    "sglang.srt.speculative.eagle_worker_common",
                    "sglang.srt.speculative.ngram_worker",
                ),
            ),
        ),
    ),
)
