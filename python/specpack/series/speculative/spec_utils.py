"""What a target's lm_head is, and how a draft borrows one: predicates and the act."""

from __future__ import annotations

from collections.abc import Callable
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


def holds_codes(lm_head: Optional[torch.nn.Module]) -> bool:
    """Whether a head has a ``.weight`` whose numbers mean nothing without scales.

    FP8 and FP4 count as codes: no product of activations reads them by themselves.
    """
    import torch

    weight = getattr(lm_head, "weight", None)
    if not isinstance(weight, torch.Tensor):
        return False
    return not (weight.dtype.is_floating_point and weight.dtype.itemsize >= 2)


def is_quantized_lm_head(lm_head: Optional[torch.nn.Module]) -> bool:
    """Whether a head is anything but a dense float weight.

    Only the module carries what such a head needs beside its tensor: scales,
    shapes, the quant method.
    """
    from sglang.srt.layers.logits_processor import should_apply_lm_head_quant_method

    if is_packed_lm_head(lm_head) or holds_codes(lm_head):
        return True
    return should_apply_lm_head_quant_method(
        lm_head, getattr(lm_head, "quant_method", None)
    )


def find_lm_head(target_model: torch.nn.Module) -> Optional[torch.nn.Module]:
    """The head module of a target, or of the language model it wraps, without LoRA."""
    from sglang.srt.lora.layers import unwrap_lora_layer

    owner = target_model
    while owner is not None and getattr(owner, "lm_head", None) is None:
        inner = (getattr(owner, n, None) for n in ("language_model", "llm", "thinker"))
        owner = next((model for model in inner if model is not None), None)
    return unwrap_lora_layer(getattr(owner, "lm_head", None))


def describe_lm_head(lm_head: torch.nn.Module) -> str:
    """A head's class, its parameters and its quant method, for error messages."""
    named_parameters = getattr(lm_head, "named_parameters", dict().items)
    names = ", ".join(name for name, _ in named_parameters()) or "none"
    method = type(getattr(lm_head, "quant_method", None)).__name__
    return f"{type(lm_head).__name__} (parameters: {names}; quant method: {method})"


def lm_heads_of_draft(draft_model: torch.nn.Module) -> list[torch.nn.Module]:
    """The heads that a draft was built with."""
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

    return [head for head in draft_model.modules() if isinstance(head, ParallelLMHead)]


def same_weights(own: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers: floats up to rounding, codes exactly."""
    import torch

    if own.shape != other.shape:
        return False
    values = (torch.float16, torch.bfloat16, torch.float32)
    if own.dtype in values and other.dtype in values:
        difference = norm = 0.0
        for ours, theirs in zip(own.split(4096), other.split(4096)):
            difference += (ours.float() - theirs.float()).square().sum().item()
            norm += theirs.float().square().sum().item()
        return difference <= 1e-4 * norm
    # As bytes: few operators know the narrowest dtypes.
    return own.dtype == other.dtype and torch.equal(
        own.flatten().view(torch.uint8), other.flatten().view(torch.uint8)
    )


def same_lm_head(own: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Whether two heads hold the same tensors."""
    ours, theirs = dict(own.named_parameters()), dict(other.named_parameters())
    return ours.keys() == theirs.keys() and all(
        same_weights(ours[name].detach(), theirs[name].detach()) for name in ours
    )


def brings_lm_head(target_runner: Any, draft_runner: Any) -> bool:
    """Whether a draft's own checkpoint filled a head that is not the target's."""
    paths = [r.model_config.model_path for r in (target_runner, draft_runner)]
    lm_head = find_lm_head(target_runner.model)
    return paths[0] != paths[1] and any(
        getattr(head, "loaded_from_checkpoint", False)
        and not same_lm_head(head, lm_head)
        for head in lm_heads_of_draft(draft_runner.model)
    )


def lm_head_sharing_obstacle(draft_model: Any, hot_token_id: Any) -> Optional[str]:
    """Why a draft cannot take a head as a module, or None where it can."""
    from sglang.srt.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )

    name = type(draft_model).__name__
    if not hasattr(draft_model, "set_embed_and_head"):
        return f"{name} has no set_embed_and_head to take anything with"
    if hot_token_id is not None:
        return "--speculative-token-map picks rows, which only a dense tensor has"
    if getattr(draft_model, "hot_token_id", None) is not None:
        return f"{name} has a reduced vocabulary, and only a dense tensor has its rows"
    own = getattr(draft_model, "lm_head", None)
    if isinstance(own, VocabParallelEmbedding) and not isinstance(own, ParallelLMHead):
        return f"{name} ties its head to its embedding and would not take the module"
    return None


def place_lm_head(
    draft_model: torch.nn.Module,
    embed: torch.Tensor,
    lm_head: Optional[torch.nn.Module],
) -> None:
    """Set a draft's embedding, and its head to a module; None leaves the head.

    The draft's own setter says where its heads are: it gets a marker for the head's
    tensor, and whichever modules hold the marker afterwards are replaced. A setter
    that ignores the head keeps the draft's own by design.
    """
    import torch

    marker = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    own = [
        (head, head._parameters.get("weight"))
        for head in lm_heads_of_draft(draft_model)
    ]
    for head, weight in own:
        # Setters delete the tensor that they replace, and a packed head has none.
        head._parameters["weight"] = weight
    draft_model.set_embed_and_head(embed, marker)
    if lm_head is not None and hasattr(draft_model, "set_lm_head_from_target"):
        draft_model.set_lm_head_from_target(lm_head)
    for parent in list(draft_model.modules()):
        for name, head in list(parent._modules.items()):
            if lm_head is not None and getattr(head, "weight", None) is marker:
                setattr(parent, name, lm_head)
    for head, weight in own:
        head._parameters["weight"] = weight
        if weight is None:
            del head._parameters["weight"]


def borrow_lm_head(target_runner: Any, draft_runner: Any, hot_token_id: Any) -> bool:
    """Share a target's head with a draft as a module, and the embedding with it.

    Only where a tensor would not do, because either head is quantized, or where the
    draft's own checkpoint brought another head, which is kept; False leaves the
    sharing to the caller. Raises ValueError, before any accessor runs, where the
    draft cannot take the module.
    """
    import gc

    from sglang.srt.layers.utils.common import PPMissingLayer
    from sglang.srt.platforms import current_platform
    from sglang.srt.speculative.pp_draft_embedding import resolve_draft_embed_and_head
    from sglang.srt.speculative.spec_utils import logger

    target, draft = target_runner.model, draft_runner.model
    lm_head = find_lm_head(target)
    if lm_head is None or isinstance(lm_head, PPMissingLayer):
        return False
    keeps = brings_lm_head(target_runner, draft_runner)
    quantized = any(map(is_quantized_lm_head, [lm_head, *lm_heads_of_draft(draft)]))
    obstacle = lm_head_sharing_obstacle(draft, hot_token_id)
    if not quantized and (obstacle is not None or not keeps):
        return False
    if obstacle is not None:
        raise ValueError(
            f"{type(draft).__name__} cannot borrow the lm_head of "
            f"{type(target).__name__}, {describe_lm_head(lm_head)}, as a module: "
            f"{obstacle}. Leave the lm_heads unquantized, or serve without "
            "speculative decoding."
        )
    if keeps:
        logger.info(
            f"{type(draft).__name__} keeps the lm_head of its own checkpoint, which is "
            f"not that of {type(target).__name__}."
        )
    embed, _ = resolve_draft_embed_and_head(
        target_model=target,
        draft_model=draft,
        model_path=target_runner.model_config.model_path,
        revision=target_runner.model_config.revision,
        load_config=target_runner.load_config,
    )
    place_lm_head(draft, embed, None if keeps else lm_head)
    # A replaced head refers to itself through its weight loader, so only the
    # collector frees it.
    gc.collect()
    current_platform.empty_cache()
    return True


_PREDICATES = (
    is_packed_lm_head,
    holds_codes,
    is_quantized_lm_head,
    find_lm_head,
    describe_lm_head,
)
_SHARING = (
    lm_heads_of_draft,
    same_weights,
    same_lm_head,
    brings_lm_head,
    lm_head_sharing_obstacle,
    place_lm_head,
    borrow_lm_head,
)


def _additions(functions: tuple[Callable[..., Any], ...]) -> tuple[Addition, ...]:
    return tuple(
        Addition(target=f"{_MODULE}:{function.__name__}", function=function)
        for function in functions
    )


def _all_there(functions: tuple[Callable[..., Any], ...]) -> bool:
    from sglang.srt.speculative import spec_utils

    return all(hasattr(spec_utils, function.__name__) for function in functions)


PATCH = Patch(
    name="packed-lm-head-predicate",
    symptom="Each place that reads a target's lm_head decides for itself what a "
    "quantized head is, and most decide by reading a `.weight` that is not there.",
    upstream="#40883",
    removal="when spec_utils has a predicate for packed heads of its own",
    probe=lambda: _all_there(_PREDICATES),
    seams=_additions(_PREDICATES),
    title="Add one predicate for packed lm_heads",
    cost="A few attribute look-ups.",
    tests=(
        "unit/spec/test_spec_packed_target_lm_head.py",
        "unit/spec/lm_heads.py",
        "unit/spec/test_dflash_logits.py",
        "unit/spec/test_dflash_packed_head.py",
        "unit/spec/dflash_heads.py",
    ),
)

SHARING = Patch(
    name="quantized-lm-head-sharing",
    symptom="SGLang shares a head with a draft as a tensor, which of a quantized head is "
    "missing or means nothing without its scales.",
    upstream="#40883, #21150",
    removal="when a draft can be given a head as a module, whatever its class",
    probe=lambda: _all_there(_SHARING),
    seams=_additions(_SHARING),
    requires=("packed-lm-head-predicate", "packed-lm-head-gate", "lm-head-loaded-mark"),
    title="Share a quantized lm_head with a draft as a module",
    cost="Runs once, when the worker starts.",
    tests=(
        "unit/spec/test_spec_packed_head_sharing.py",
        "unit/spec/lm_head_sharing.py",
        "unit/spec/test_spec_lm_head_sharing_classes.py",
        "unit/spec/lm_head_classes.py",
    ),
)
