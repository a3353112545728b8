"""An EAGLE-family draft borrows a quantized target head as a module, or says why not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes


def init_lm_head(self: Any) -> Any:
    """Share a quantized head as a module wherever the draft would borrow its tensor.

    EAGLE3 drafts that keep their own head, dense heads and a pipeline stage without
    a head go on as ever.
    """
    from sglang.srt.speculative.spec_utils import borrow_lm_head

    borrows = not self.speculative_algorithm.is_eagle3() or getattr(
        self.draft_runner.model, "load_lm_head_from_target", False
    )
    if borrows and borrow_lm_head(
        self.target_worker.model_runner, self.draft_runner, self.hot_token_id
    ):
        return None
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    target, draft = probes.eagle_runners()
    worker = SimpleNamespace(
        target_worker=SimpleNamespace(model_runner=target),
        draft_runner=draft,
        speculative_algorithm=SimpleNamespace(is_eagle3=lambda: False),
        hot_token_id=None,
        _resolve_shared_embed_and_head=target.model.get_embed_and_head,
    )
    return probes.gives(None, EagleDraftWorker.init_lm_head, worker) and (
        draft.model.lm_head is target.model.lm_head
    )


PATCH = Patch(
    name="eagle-shares-quantized-lm-head",
    symptom="A draft of a target with a quantized lm_head gets its bare tensor, or keeps "
    "an unfilled head of its own: the text stays right, the accept length falls to 1.",
    upstream="#40883",
    removal="when init_lm_head shares a quantized head as a module with any draft",
    probe=_probe,
    seams=(
        Guard(
            target="sglang.srt.speculative.eagle_worker_v2:"
            "EagleDraftWorker.init_lm_head",
            function=init_lm_head,
            fingerprints={
                "0.5.23": "cdf90e0f957ef05f2e23d42a47ff639e"
                "3bc865ea46a2820570165c7d56a5bed6",
            },
        ),
    ),
    requires=("quantized-lm-head-sharing", "quantized-lm-head-embedding"),
    title="EAGLE: share a quantized lm_head as a module with any draft",
    cost="Runs once, when the worker starts.",
    tests=(
        "unit/spec/test_spec_packed_head_sharing.py",
        "unit/spec/lm_head_sharing.py",
        "unit/spec/test_spec_lm_head_sharing_classes.py",
        "unit/spec/lm_head_classes.py",
    ),
)
