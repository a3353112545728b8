"""A target with a packed head hands over its embedding, whatever its accessor reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes

if TYPE_CHECKING:
    from torch import nn


def resolve_target_embed_and_head(
    target_model: nn.Module, *, draft_model: Optional[nn.Module] = None
) -> Any:
    """Ask a target with a packed head for its embedding alone.

    Nearly every accessor reads ``lm_head.weight``, so the head has an empty one while
    it is asked. ValueError where a target cannot answer, or ties such a head to its
    embedding.
    """
    import torch
    from sglang.srt.speculative.pp_draft_embedding import resolve_target_embed_and_head
    from sglang.srt.speculative.spec_utils import (
        describe_lm_head,
        find_lm_head,
        is_packed_lm_head,
    )

    lm_head = find_lm_head(target_model)
    if is_packed_lm_head(lm_head):
        named = f"{type(target_model).__name__}'s lm_head, {describe_lm_head(lm_head)}"
        wrapped = [
            module
            for module in target_model.modules()
            if lm_head in (module, getattr(module, "base_layer", None))
        ]
        for module in wrapped:
            module._parameters["weight"] = torch.nn.Parameter(torch.empty(0))
        try:
            embed, _ = resolve_target_embed_and_head(
                target_model, draft_model=draft_model
            )
        except AttributeError as error:
            raise ValueError(
                f"The embedding next to {named}, cannot be handed to a draft: {error}."
            ) from error
        finally:
            for module in wrapped:
                del module._parameters["weight"]
        if embed is not None and embed.numel() == 0:
            raise ValueError(
                f"{named}, is its embedding too, and a quantized embedding cannot be "
                "handed to a draft."
            )
        return embed, None
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.speculative import pp_draft_embedding

    target = probes.llama_with(probes.packed_head())
    return probes.gives(
        (target.model.embed_tokens.weight, None),
        pp_draft_embedding.resolve_target_embed_and_head,
        target,
    )


PATCH = Patch(
    name="quantized-lm-head-embedding",
    symptom="Speculation on a target with a packed lm_head dies at start with "
    "\"'ParallelLMHead' object has no attribute 'weight'\", in the accessor of some 75 "
    "model classes.",
    upstream="#40883, #21150",
    removal="when no accessor that a draft worker asks reads a head's `.weight`",
    probe=_probe,
    seams=(
        Guard(
            target="sglang.srt.speculative.pp_draft_embedding:"
            "resolve_target_embed_and_head",
            function=resolve_target_embed_and_head,
            fingerprints={
                "0.5.23": "bb4c51481192434d139d3f30257ce585"
                "ae4740a0e5c29ae57778dc61c4b6dbc2",
            },
        ),
    ),
    requires=("quantized-lm-head-sharing",),
    title="Hand over the embedding of a target with a packed lm_head",
    cost="Runs once, when the worker starts.",
    tests=(
        "unit/spec/test_spec_packed_head_sharing.py",
        "unit/spec/lm_head_sharing.py",
        "unit/spec/test_spec_lm_head_sharing_classes.py",
        "unit/spec/lm_head_classes.py",
        "unit/spec/test_spec_packed_head_qwen3_5.py",
    ),
)
