"""A DFlash draft says which target layers it was trained on; none are guessed."""

from __future__ import annotations

from typing import Any, Optional

from specpack.seams import CONTINUE, Guard, Patch
from specpack.series import probes


def resolve_target_layer_ids(
    self: Any, *, target_num_layers: int, draft_num_layers: Optional[int] = None
) -> Any:
    """Refuse a config without ``target_layer_ids``."""
    if self.target_layer_ids is None:
        raise ValueError(
            "The DFLASH draft's config.json has no dflash_config.target_layer_ids, so "
            f"nothing says which of the target's {target_num_layers} layers it was "
            "trained on, and the wrong ones cost all acceptance without an error. Add "
            "the 0-based layers, one for each part of fc's input."
        )
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    config = probes.dflash_config()
    del config.dflash_config["target_layer_ids"]

    def resolve() -> list[int]:
        parsed = parse_dflash_draft_config(draft_hf_config=config)
        return parsed.resolve_target_layer_ids(target_num_layers=4, draft_num_layers=1)

    return probes.raises(ValueError, resolve)


PATCH = Patch(
    name="dflash-target-layer-ids",
    symptom="A DFlash draft whose config lacks target_layer_ids gets guessed ones: "
    "features it was not trained on, and no acceptance (FAULTS D12).",
    upstream="#37475",
    removal="when resolve_target_layer_ids refuses a config without them",
    probe=_probe,
    seams=(
        Guard(
            target="sglang.srt.speculative.dflash_utils:"
            "DFlashDraftConfig.resolve_target_layer_ids",
            function=resolve_target_layer_ids,
            fingerprints={
                "0.5.23": "a52cca2907ea64b8b883e03f3468f173"
                "f2610b274980949aa30a45699c1ef5dd",
            },
        ),
    ),
    title="DFlash: refuse a draft config without target_layer_ids",
    cost="Runs once, when the worker starts.",
    tests=("unit/spec/test_dflash_quantized_draft_layout.py",),
)
