"""Multi-layer EAGLE shares a quantized target head with the draft of every step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes


def init_lm_head(self: Any) -> Any:
    """Share a quantized head as a module with the draft of every step."""
    from sglang.srt.speculative.spec_utils import borrow_lm_head

    borrowed = [
        borrow_lm_head(self.target_worker.model_runner, draft_runner, None)
        for draft_runner in self.draft_runner_list[: self.speculative_num_steps]
    ]
    if any(borrowed):
        return None
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.speculative.multi_layer_eagle_worker_v2 import (
        MultiLayerEagleDraftWorker,
    )

    target, draft = probes.eagle_runners()
    worker = SimpleNamespace(
        target_worker=SimpleNamespace(model_runner=target),
        draft_runner_list=[draft],
        speculative_num_steps=1,
    )
    return probes.gives(None, MultiLayerEagleDraftWorker.init_lm_head, worker) and (
        draft.model.lm_head is target.model.lm_head
    )


PATCH = Patch(
    name="multi-layer-eagle-shares-quantized-lm-head",
    symptom="--enable-multi-layer-eagle on a target with a quantized lm_head dies "
    "reading `.weight`, or drafts with its bare tensor.",
    upstream="#40883",
    removal="when multi-layer EAGLE shares a quantized head as a module",
    probe=_probe,
    seams=(
        Guard(
            target="sglang.srt.speculative.multi_layer_eagle_worker_v2:"
            "MultiLayerEagleDraftWorker.init_lm_head",
            function=init_lm_head,
            fingerprints={
                "0.5.23": "8e212fa822e90e8aec2e1d08d507e0ab"
                "2c2c76c3da85852bd1a79f7e852334f0",
            },
        ),
    ),
    requires=("quantized-lm-head-sharing", "quantized-lm-head-embedding"),
    title="Multi-layer EAGLE: share a quantized lm_head as a module",
    cost="Runs once, when the worker starts.",
    tests=(
        "unit/spec/test_spec_packed_head_sharing.py",
        "unit/spec/lm_head_sharing.py",
        "unit/spec/test_spec_lm_head_sharing_classes.py",
        "unit/spec/lm_head_classes.py",
    ),
)
