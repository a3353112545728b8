"""The operators SGLang's CPU engine calls, in vectorised torch for any x86 CPU.

SGLang looks for a top-level module of this name. Importing it needs only torch and
registers ``torch.ops.sgl_kernel``: the operators of Qwen3.5 served plainly, with
NEXTN (top-k 1) and with DFLASH. Other names raise ``NotImplementedError`` when called.
"""

from __future__ import annotations

import torch
from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.gated_delta import (
    fused_gdn_gating_cpu,
    fused_qkvzba_split_reshape_cat_contiguous_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
)
from sgl_kernel.kv_cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.mamba import (
    causal_conv1d_fn_cpu,
    causal_conv1d_update_cpu,
    chunk_gated_delta_rule_cpu,
)
from sgl_kernel.names import NOT_PROVIDED, placeholder
from sgl_kernel.norms import (
    fused_qk_gemma_rmsnorm_cpu,
    fused_qk_gemma_rmsnorm_with_gate_cpu,
    fused_qk_norm_cpu,
    fused_rmsnorm_gated_cpu,
    fused_sigmoid_mul_cpu,
)
from sgl_kernel.registry import NAMESPACE
from sgl_kernel.speculative import (
    build_tree_kernel_efficient_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "causal_conv1d_fn_cpu",
    "causal_conv1d_update_cpu",
    "chunk_gated_delta_rule_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "fused_gdn_gating_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qk_norm_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_rmsnorm_gated_cpu",
    "fused_sigmoid_gating_delta_rule_update_cpu",
    "fused_sigmoid_mul_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# The sglang-kernel release whose calls these operators answer: SGLang asks for 0.4.9.
__version__ = "0.4.9"

for _name in NOT_PROVIDED:
    globals()[_name] = placeholder(_name)
    setattr(getattr(torch.ops, NAMESPACE), _name, globals()[_name])
