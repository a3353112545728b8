"""The multimodal Qwen3.5 classes hand over no tensor for a packed head."""

from __future__ import annotations

from typing import Any

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes

_MODULE = "sglang.srt.models.qwen3_5"
_CLASSES = ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")


def get_embed_and_head(self: Any) -> Any:
    """Hand over no tensor for a packed head.

    A packed head is shared as a module instead.
    """
    from sglang.srt.speculative.spec_utils import is_packed_lm_head

    if is_packed_lm_head(self.lm_head):
        embed = self.model.embed_tokens.weight if self.pp_group.is_first_rank else None
        return embed, None
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.models import qwen3_5

    target = probes.model_with(probes.packed_head())
    return all(
        probes.gives(
            ("embedding", None), getattr(qwen3_5, name).get_embed_and_head, target
        )
        for name in _CLASSES
    )


PATCH = Patch(
    name="qwen3_5-packed-lm-head-accessor",
    symptom="NEXTN on a Qwen3.5 target with a packed lm_head dies at start with "
    "\"'ParallelLMHead' object has no attribute 'weight'\".",
    upstream="#40883",
    removal="when get_embed_and_head of both classes answers for a packed head",
    probe=_probe,
    seams=tuple(
        Guard(
            target=f"{_MODULE}:{name}.get_embed_and_head",
            function=get_embed_and_head,
            fingerprints={
                "0.5.23": "1b3fbd5b8e8cfd2ab7dd263d8633dac4"
                "93c882ecf156416b4413465f93fd70fe",
            },
        )
        for name in _CLASSES
    ),
    requires=("packed-lm-head-predicate",),
    title="Qwen3.5: hand over no tensor for a packed lm_head",
    cost="Runs once, when the worker starts.",
    tests=("unit/spec/test_spec_packed_head_qwen3_5.py",),
)
