"""A head remembers that a checkpoint filled it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Guard, Patch

if TYPE_CHECKING:
    import torch
    from torch.nn import Parameter

_MODULE = "sglang.srt.layers.vocab_parallel_embedding"


def weight_loader(self: Any, param: Parameter, loaded_weight: torch.Tensor) -> Any:
    """Mark the module that a checkpoint's tensor reaches.

    A draft keeps the head that its own checkpoint brought.
    """
    self.loaded_from_checkpoint = True
    return CONTINUE


def _probe() -> bool:
    import torch
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

    head = SimpleNamespace()
    param = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    VocabParallelEmbedding.weight_loader(head, param, torch.ones(1))
    return getattr(head, "loaded_from_checkpoint", False)


PATCH = Patch(
    name="lm-head-loaded-mark",
    symptom="Nothing tells a head that a draft brought from one that nobody filled, so a "
    "trained one is replaced by the target's (FAULTS H13).",
    upstream="#40883",
    removal="when a draft worker knows which heads a checkpoint filled",
    probe=_probe,
    seams=(
        Guard(
            target=f"{_MODULE}:VocabParallelEmbedding.weight_loader",
            function=weight_loader,
            fingerprints={
                "0.5.23": "962c92876bb0728bc4f8a42cd2c08603"
                "e5e05a0982c4c47b8252fee4084a975f",
            },
        ),
    ),
    title="Mark the vocabulary layers that a checkpoint filled",
    cost="One attribute a tensor, at load.",
    tests=(
        "unit/spec/test_spec_packed_head_sharing.py",
        "unit/spec/lm_head_sharing.py",
        "unit/spec/test_spec_lm_head_sharing_classes.py",
        "unit/spec/lm_head_classes.py",
    ),
)
