"""Operators that SGLang's CPU code names and that we leave out.

They exist because SGLang reads some of them while it is imported. Names that SGLang
probes with ``hasattr`` to choose a path must stay absent and are not listed:
``convert_weight_packed`` (its presence means AMX), ``fused_qk_norm_rope_cpu``.
"""

from __future__ import annotations

from typing import Any, Callable, NoReturn

from sgl_kernel.registry import not_provided

NOT_PROVIDED = (
    "apply_multidimensional_rope_cpu",
    "apply_rotary_pos_emb_cpu",
    "biased_grouped_topk_cpu",
    "bmm_cpu",
    "causal_conv1d_weight_pack",
    "conv3d_embed_cpu",
    "conv3d_embed_weight_pack",
    "convert_scale_packed",
    "convert_weight_packed_scale_zp",
    "flash_attn_varlen_func",
    "fp8_per_tensor_scaled_mm_cpu",
    "fp8_scaled_mm_cpu",
    "fused_add_rmsnorm_cpu",
    "fused_dual_residual_rmsnorm_cpu",
    "fused_experts_cpu",
    "fused_input_proj_cpu",
    "fused_linear_sigmoid_mul",
    "fused_moe_router_cpu",
    "fused_qk_rmsnorm_apply_from_stats_cpu",
    "fused_qk_rmsnorm_cpu",
    "fused_qk_rmsnorm_sumsq_cpu",
    "fused_qkvzba_split_reshape_cat_cpu",
    "gelu_and_mul_cpu",
    "gelu_tanh_and_mul_cpu",
    "gemma3_rmsnorm_cpu",
    "gemma4_rmsnorm_cpu",
    "gemma_fused_add_rmsnorm_cpu",
    "gemma_rmsnorm_cpu",
    "grouped_topk_cpu",
    "image_preprocess_cpu",
    "init_cpu_threads_env",
    "initialize",
    "int4_scaled_mm_cpu",
    "int8_scaled_mm_with_quant",
    "l2norm_cpu",
    "layernorm_cpu",
    "multimodal_rotary_embedding_cpu",
    "murmur_hash32_cpu",
    "qkv_proj_with_rope_fused_weight",
    "rmsnorm_cpu",
    "rotary_embedding_cpu",
    "shared_expert_cpu",
    "shm_allgather",
    "shm_allreduce",
    "silu_and_mul_cpu",
    "store_cache_cpu",
    "topk_sigmoid_cpu",
    "topk_softmax_cpu",
    "weight_packed_linear",
)


def placeholder(name: str) -> Callable[..., NoReturn]:
    """Return a function that names itself in the error it always raises."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        kinds = [tuple(getattr(x, "shape", [type(x).__name__])) for x in args]
        raise not_provided(name, f"called with {kinds}, keywords {sorted(kwargs)}")

    call.__name__ = call.__qualname__ = name
    return call
