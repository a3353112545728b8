"""An EAGLE-family draft borrows a packed target head as a module, or says why not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes


def init_lm_head(self: Any) -> Any:
    """Share a packed head as a module wherever the draft would borrow its tensor.

    The check comes before any accessor, since a target's may read the head's
    missing `.weight`. EAGLE3 drafts that keep their own head, dense heads and a
    pipeline stage without a head go on as ever.
    """
    import gc

    from sglang.srt.platforms import current_platform
    from sglang.srt.speculative.spec_utils import (
        describe_lm_head,
        find_lm_head,
        is_packed_lm_head,
        packed_lm_head_obstacle,
    )

    target = self.target_worker.model_runner.model
    draft = self.draft_runner.model
    lm_head = find_lm_head(target)
    borrows = not self.speculative_algorithm.is_eagle3() or getattr(
        draft, "load_lm_head_from_target", False
    )
    if borrows and is_packed_lm_head(lm_head):
        obstacle = packed_lm_head_obstacle(draft, self.hot_token_id)
        if obstacle is not None:
            raise ValueError(
                f"{type(draft).__name__} cannot share the packed lm_head of "
                f"{type(target).__name__}, {describe_lm_head(lm_head)}: "
                f"{obstacle}. Leave the target's lm_head unquantized, or serve "
                "without speculative decoding."
            )
        try:
            embed, _ = self._resolve_shared_embed_and_head()
        except AttributeError as error:
            raise ValueError(
                f"{type(target).__name__} cannot hand over its embedding next to its "
                f"packed lm_head, {describe_lm_head(lm_head)}: {error}."
            ) from error
        draft.set_embed_and_head(embed, None)
        draft.set_lm_head_from_target(lm_head)
        # The draft's own head refers to itself through its weight loader, so only
        # the collector frees it.
        gc.collect()
        current_platform.empty_cache()
        return None
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker

    def runner(model: Any) -> Any:
        return SimpleNamespace(model=model)

    unable = SimpleNamespace(set_embed_and_head=lambda embed, head: None)
    worker = SimpleNamespace(
        target_worker=SimpleNamespace(
            model_runner=runner(probes.model_with(probes.packed_head()))
        ),
        draft_runner=runner(unable),
        speculative_algorithm=SimpleNamespace(is_eagle3=lambda: False),
        hot_token_id=None,
        _resolve_shared_embed_and_head=lambda: ("embedding", None),
    )
    return probes.names_the_head(EagleDraftWorker.init_lm_head, worker)


PATCH = Patch(
    name="eagle-shares-packed-lm-head",
    symptom="A draft that cannot take the module of a packed target lm_head drafts "
    "with its own unfilled one: the text stays right, the accept length falls to 1.",
    upstream="#40883",
    removal="when init_lm_head refuses a packed head that it cannot share",
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
    requires=("packed-lm-head-predicate",),
    title="EAGLE: share a packed lm_head as a module or refuse it",
    cost="Runs once, when the worker starts.",
    tests=("unit/spec/test_spec_packed_head_sharing.py",),
)
