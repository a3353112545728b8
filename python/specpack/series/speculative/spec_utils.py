"""The one predicate for packed heads and the words errors describe a head with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from specpack.seams import Addition, Patch

if TYPE_CHECKING:
    import torch

_MODULE = "sglang.srt.speculative.spec_utils"


def is_packed_lm_head(lm_head: Optional[torch.nn.Module]) -> bool:
    """Whether a head keeps its weights in a form only its quant method can read.

    Such a head has no dense ``.weight``: compressed-tensors keeps
    ``weight_packed``, GPTQ, AWQ and GGUF keep ``qweight``. It can be shared with a
    draft only as a module, and applied only through its quant method. The missing
    tensor decides, not the class of the quant method, since exporters' configs
    promise what the checkpoint does not hold. A LoRA wrapper mirrors its base
    layer's ``weight`` and so needs no unwrapping; a pipeline stage's placeholder
    for the head it does not have is not packed.
    """
    from sglang.srt.layers.utils.common import PPMissingLayer

    if lm_head is None or isinstance(lm_head, PPMissingLayer):
        return False
    return getattr(lm_head, "weight", None) is None


def find_lm_head(target_model: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The head module of a target, or of the language model it wraps, without LoRA."""
    from sglang.srt.lora.layers import unwrap_lora_layer

    inner = getattr(target_model, "language_model", None)
    found = getattr(target_model, "lm_head", None)
    return unwrap_lora_layer(
        getattr(inner, "lm_head", None) if found is None else found
    )


def describe_lm_head(lm_head: torch.nn.Module) -> str:
    """A head's class, its parameters and its quant method, for error messages."""
    named_parameters = getattr(lm_head, "named_parameters", dict().items)
    names = ", ".join(name for name, _ in named_parameters()) or "none"
    method = type(getattr(lm_head, "quant_method", None)).__name__
    return f"{type(lm_head).__name__} (parameters: {names}; quant method: {method})"


def packed_lm_head_obstacle(draft_model: Any, hot_token_id: Any) -> Optional[str]:
    """Why a draft cannot take the target's packed head, or None where it can."""
    name = type(draft_model).__name__
    if not hasattr(draft_model, "set_lm_head_from_target"):
        return f"{name} has no set_lm_head_from_target to take the module with"
    if hot_token_id is not None:
        return "--speculative-token-map selects rows, which a packed head does not have"
    if getattr(draft_model, "hot_token_id", None) is not None:
        return (
            f"{name} has a reduced vocabulary, whose rows a packed head does not have"
        )
    config = getattr(draft_model, "config", None)
    if getattr(config, "tie_word_embeddings", False) is True:
        return f"{name} ties its head to its embedding and would not take the module"
    return None


_ADDITIONS = (
    is_packed_lm_head,
    find_lm_head,
    describe_lm_head,
    packed_lm_head_obstacle,
)


def _probe() -> bool:
    from sglang.srt.speculative import spec_utils

    return all(hasattr(spec_utils, addition.__name__) for addition in _ADDITIONS)


PATCH = Patch(
    name="packed-lm-head-predicate",
    symptom="Each place that reads a target's lm_head decides for itself what a "
    "quantized head is, and most decide by reading a `.weight` that is not there.",
    upstream="#40883",
    removal="when spec_utils has a predicate for packed heads of its own",
    probe=_probe,
    seams=tuple(
        Addition(target=f"{_MODULE}:{addition.__name__}", function=addition)
        for addition in _ADDITIONS
    ),
    title="Add one predicate for packed lm_heads",
    cost="A few attribute look-ups.",
    tests=(
        "unit/spec/test_spec_packed_target_lm_head.py",
        "unit/spec/test_dflash_logits.py",
        "unit/spec/test_dflash_packed_head.py",
        "unit/spec/dflash_heads.py",
    ),
)
