"""Packed heads through the LM-head gate and into the logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Optional

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes

if TYPE_CHECKING:
    import torch

_MODULE = "sglang.srt.layers.logits_processor"


def should_apply_lm_head_quant_method(lm_head: Any, quant_method: Any) -> Any:
    """Admit a head without a dense weight wherever its quant method can apply it."""
    from sglang.srt.layers.logits_processor import _UNQUANTIZED_LM_HEAD_METHODS
    from sglang.srt.speculative.spec_utils import is_packed_lm_head

    if is_packed_lm_head(lm_head):
        # These read the weight's dtype to tell a quantized head from a dense one
        # under a stale method; without the tensor there is nothing to read.
        needs_weight = (
            "ModelOptFp4LinearMethod",
            "ModelOptNvFp4A16LinearMethod",
            "ModelOptFp8LinearMethod",
        )
        method_name = type(quant_method).__name__
        return (
            callable(getattr(quant_method, "apply", None))
            and method_name not in _UNQUANTIZED_LM_HEAD_METHODS
            and method_name not in needs_weight
        )
    return CONTINUE


def compute_lm_head(
    self: Any,
    hidden_states: torch.Tensor,
    lm_head: torch.nn.Module,
    embedding_bias: Optional[torch.Tensor] = None,
    *,
    out: Optional[torch.Tensor] = None,
) -> Any:
    """Apply a packed head through its quant method, in FP32 where that was asked."""
    import torch
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
    from sglang.srt.speculative.spec_utils import describe_lm_head, is_packed_lm_head

    lora_wrapped = hasattr(lm_head, "set_lora") and hasattr(lm_head, "apply_lora")
    if not lora_wrapped and is_packed_lm_head(lm_head):
        quant_method = getattr(lm_head, "quant_method", None)
        if not should_apply_lm_head_quant_method(lm_head, quant_method):
            raise RuntimeError(
                "This lm_head has no dense weight and no quant method that can apply "
                f"it: {describe_lm_head(lm_head)}. Its tensors were not loaded, or "
                "its quantization config does not describe them."
            )
        if not self.use_fp32_lm_head:
            return quant_method.apply(lm_head, hidden_states, embedding_bias)
        # The gate admits the head ahead of the trailing fallback, which used to
        # cast the activations.
        with torch.autocast(hidden_states.device.type, enabled=False):
            return quant_method.apply(
                lm_head, hidden_states.to(torch.float32), embedding_bias
            )
    return CONTINUE


def _probe_gate() -> bool:
    from sglang.srt.layers import logits_processor

    head = probes.packed_head()
    gate = logits_processor.should_apply_lm_head_quant_method
    return probes.gives(True, gate, head, head.quant_method)


def _probe_logits() -> bool:
    import torch
    from sglang.srt.layers.logits_processor import LogitsProcessor

    head = probes.packed_head()
    head.quant_method = None
    processor = SimpleNamespace(use_fp32_lm_head=False)
    return probes.names_the_head(
        LogitsProcessor._compute_lm_head, processor, torch.zeros(1, 1), head
    )


GATE = Patch(
    name="packed-lm-head-gate",
    symptom="A packed lm_head (no `.weight`) is refused by the LM-head gate, so "
    "DFlash2 drafts fail on their first request.",
    upstream="#40883",
    removal="when should_apply_lm_head_quant_method no longer asks for `.weight`",
    probe=_probe_gate,
    seams=(
        Guard(
            target=f"{_MODULE}:should_apply_lm_head_quant_method",
            function=should_apply_lm_head_quant_method,
            fingerprints={
                "0.5.23": "3e8f073451a629baf9cd3bcd1bd4fc12"
                "e06031059c40570e5b69ce3130bcb353",
            },
            importers=(
                "sglang.srt.models.dflash",
                "sglang.srt.models.dspark",
                "sglang.srt.speculative.dflash_worker_v2",
            ),
        ),
    ),
    requires=("packed-lm-head-predicate",),
    title="Admit packed lm_heads by capability in the LM-head gate",
    cost="One attribute look-up a call; heads with a dense weight take the path they took.",
    tests=(
        "unit/spec/test_spec_packed_target_lm_head.py",
        "unit/spec/test_dflash_logits.py",
        "unit/spec/test_dflash_packed_head.py",
        "unit/spec/dflash_heads.py",
        "unit/spec/test_dflash_folded_selector.py",
    ),
)

LOGITS = Patch(
    name="packed-lm-head-logits",
    symptom="A packed lm_head admitted by the gate loses the FP32 logits of "
    "--enable-fp32-lm-head, and one that nothing can apply dies without its name.",
    upstream="#40883",
    removal="when _compute_lm_head casts for quantized heads and names what it refuses",
    probe=_probe_logits,
    seams=(
        Guard(
            target=f"{_MODULE}:LogitsProcessor._compute_lm_head",
            function=compute_lm_head,
            fingerprints={
                "0.5.23": "35c70f73e6bd0a087a3ae1bd4a4c9db2"
                "b12599073ef5fd21b3b620dd79fc8cad",
            },
        ),
    ),
    requires=("packed-lm-head-predicate", "packed-lm-head-gate"),
    title="Keep FP32 logits and name refused heads for packed lm_heads",
    cost="One attribute look-up a call; heads with a dense weight take the path they took.",
    tests=(
        "unit/spec/test_spec_packed_target_lm_head.py",
        "unit/spec/test_dflash_logits.py",
        "unit/spec/test_dflash_packed_head.py",
        "unit/spec/dflash_heads.py",
    ),
)
