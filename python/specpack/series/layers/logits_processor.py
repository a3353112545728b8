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
    """Judge a head by its tensors, and its quant method by what it can do.

    A head without a dense weight is admitted wherever its method can apply it. A
    float weight with no tensor beside it leaves a method nothing to apply, whatever
    its class; so does one under a ModelOpt method that was built for codes.
    """
    import torch
    from sglang.srt.layers.logits_processor import _UNQUANTIZED_LM_HEAD_METHODS
    from sglang.srt.speculative.spec_utils import holds_codes, is_packed_lm_head

    # These read the weight's dtype to tell a quantized head from a dense one
    # under a stale method; without the tensor there is nothing to read.
    needs_codes = {
        "ModelOptFp4LinearMethod",
        "ModelOptNvFp4A16LinearMethod",
        "ModelOptFp8LinearMethod",
    }
    kinds = {kind.__name__ for kind in type(quant_method).__mro__}
    unfit = not kinds.isdisjoint(needs_codes | _UNQUANTIZED_LM_HEAD_METHODS)
    if is_packed_lm_head(lm_head):
        return callable(getattr(quant_method, "apply", None)) and not unfit
    weight = getattr(lm_head, "weight", None)
    if isinstance(weight, torch.Tensor) and not holds_codes(lm_head):
        if unfit:
            return False
        named = {
            **vars(lm_head),
            **getattr(lm_head, "_parameters", {}),
            **getattr(lm_head, "_buffers", {}),
        }
        beside = named.keys() - {"weight", "bias"}
        if not any(isinstance(named[name], torch.Tensor) for name in beside):
            return False
    return CONTINUE


def compute_lm_head(
    self: Any,
    hidden_states: torch.Tensor,
    lm_head: torch.nn.Module,
    embedding_bias: Optional[torch.Tensor] = None,
    *,
    out: Optional[torch.Tensor] = None,
) -> Any:
    """Apply a packed head through its quant method, in FP32 where that was asked.

    Codes that no method can apply are refused instead of multiplied as numbers.
    """
    import torch
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method
    from sglang.srt.speculative.spec_utils import (
        describe_lm_head,
        holds_codes,
        is_packed_lm_head,
    )

    lora_wrapped = hasattr(lm_head, "set_lora") and hasattr(lm_head, "apply_lora")
    packed = is_packed_lm_head(lm_head)
    if not lora_wrapped and (packed or holds_codes(lm_head)):
        quant_method = getattr(lm_head, "quant_method", None)
        if not should_apply_lm_head_quant_method(lm_head, quant_method):
            raise RuntimeError(
                "This lm_head has no dense weight and no quant method that can apply "
                f"it: {describe_lm_head(lm_head)}. Its tensors were not loaded, or "
                "its quantization config does not describe them."
            )
        if packed and self.use_fp32_lm_head:
            # The gate admits the head ahead of the trailing fallback, which used to
            # cast the activations.
            with torch.autocast(hidden_states.device.type, enabled=False):
                return quant_method.apply(
                    lm_head, hidden_states.to(torch.float32), embedding_bias
                )
        if packed:
            return quant_method.apply(lm_head, hidden_states, embedding_bias)
    return CONTINUE


def _probe_gate() -> bool:
    import torch
    from sglang.srt.layers import logits_processor

    head = probes.packed_head()
    dense = torch.nn.Linear(1, 1, bias=False)
    gate = logits_processor.should_apply_lm_head_quant_method
    return probes.gives(True, gate, head, head.quant_method) and probes.gives(
        False, gate, dense, head.quant_method
    )


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
    "DFlash2 drafts fail on their first request; a dense one under an unquantized "
    "method of unknown class is taken for quantized.",
    upstream="#40883",
    removal="when should_apply_lm_head_quant_method judges a head by its tensors",
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
    title="Judge lm_heads by tensors and capability in the LM-head gate",
    cost="A few attribute look-ups a call; dense heads take the path they took.",
    tests=(
        "unit/spec/test_spec_packed_target_lm_head.py",
        "unit/spec/lm_heads.py",
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
        "unit/spec/test_spec_packed_head_logits.py",
        "unit/spec/lm_heads.py",
        "unit/spec/test_dflash_logits.py",
        "unit/spec/test_dflash_packed_head.py",
        "unit/spec/dflash_heads.py",
    ),
)
