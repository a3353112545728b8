"""Multi-layer EAGLE shares tensors only: a packed head is refused before loading."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes

if TYPE_CHECKING:
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import ServerArgs


def init(
    self: Any,
    server_args: ServerArgs,
    gpu_id: int,
    nccl_port: int,
    target_worker: TpModelWorker,
) -> Any:
    """Refuse a packed target head before any draft is loaded."""
    from sglang.srt.speculative.spec_utils import (
        describe_lm_head,
        find_lm_head,
        is_packed_lm_head,
    )

    target = target_worker.model_runner.model
    lm_head = find_lm_head(target)
    if is_packed_lm_head(lm_head):
        raise ValueError(
            "Multi-layer EAGLE shares the target's lm_head as a tensor, and the packed "
            f"lm_head of {type(target).__name__}, {describe_lm_head(lm_head)}, "
            "has none. Leave it unquantized, or drop --enable-multi-layer-eagle."
        )
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.speculative.multi_layer_eagle_worker_v2 import (
        MultiLayerEagleDraftWorker,
    )

    target = SimpleNamespace(
        model_runner=SimpleNamespace(model=probes.model_with(probes.packed_head()))
    )
    worker = object.__new__(MultiLayerEagleDraftWorker)
    return probes.names_the_head(
        MultiLayerEagleDraftWorker.__init__, worker, None, 0, 0, target
    )


PATCH = Patch(
    name="multi-layer-eagle-refuses-packed-lm-head",
    symptom="--enable-multi-layer-eagle on a target with a packed lm_head loads every "
    "draft and then dies reading `.weight`, or drafts with unfilled heads.",
    upstream="#40883",
    removal="when multi-layer EAGLE shares the head as a module",
    probe=_probe,
    seams=(
        Guard(
            target="sglang.srt.speculative.multi_layer_eagle_worker_v2:"
            "MultiLayerEagleDraftWorker.__init__",
            function=init,
            fingerprints={
                "0.5.23": "2822c76d09082941d09ab1fd144a7812"
                "ec9068a4115d35c17b7bb6dad7608df1",
            },
        ),
    ),
    requires=("packed-lm-head-predicate",),
    title="Multi-layer EAGLE: refuse a packed lm_head before loading",
    cost="Runs once, when the worker starts.",
    tests=("unit/spec/test_spec_packed_head_sharing.py",),
)
