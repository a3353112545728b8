"""Text-only Qwen3.5: a packed head is loaded whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Iterator, Tuple

from specpack.seams import Addition, Around, Patch
from specpack.series import probes

if TYPE_CHECKING:
    import torch

_CLASS = "sglang.srt.models.qwen3_5_text:Qwen3_5ForCausalLM"


def load_lm_head_tensors(
    lm_head: torch.nn.Module,
    weights: Iterable[Tuple[str, torch.Tensor]],
    loaded_params: set,
) -> Iterator[Tuple[str, torch.Tensor]]:
    """Load ``lm_head.*`` into the head's parameters, lazily, and yield the rest.

    A dense ``lm_head.weight`` is left to the caller. Names that were loaded are
    added to ``loaded_params``. Raises ValueError for a tensor that a packed head
    has no parameter for, and for packed codes where the head is dense.
    """
    from sglang.srt.model_loader.weight_utils import default_weight_loader
    from sglang.srt.speculative.spec_utils import describe_lm_head, is_packed_lm_head

    packed = is_packed_lm_head(lm_head)
    params = dict(lm_head.named_parameters())
    # Exporters write these also for methods that have no use for them.
    optional = ("bias", "input_scale", "input_global_scale", "output_scale")
    for name, loaded_weight in weights:
        param_name = name.removeprefix("lm_head.")
        dense_weight = param_name == "weight" and not packed
        if param_name == name or dense_weight:
            yield name, loaded_weight
        elif param_name in params:
            param = params[param_name]
            weight_loader = getattr(param, "weight_loader", default_weight_loader)
            weight_loader(param, loaded_weight)
            loaded_params.add(name)
        elif param_name in ("weight_packed", "qweight") or (
            packed and not param_name.endswith(optional)
        ):
            raise ValueError(
                f"The checkpoint's {name} has no parameter in this model's lm_head, "
                f"{describe_lm_head(lm_head)}: its quantization config does not "
                "describe the head as it is stored."
            )


def before_load_weights(
    self: Any, weights: Iterable[Tuple[str, torch.Tensor]]
) -> dict[str, Any]:
    """Take the head's tensors out of the stream.

    The loop below passes on ``lm_head.weight`` only.
    """
    from sglang.srt.layers.utils import PPMissingLayer
    from sglang.srt.models.qwen3_5_text import load_lm_head_tensors

    self.loaded_lm_head_params = set()
    owns_head = self.pooler is None and not self.config.tie_word_embeddings
    if owns_head and not isinstance(self.lm_head, PPMissingLayer):
        weights = load_lm_head_tensors(
            self.lm_head, weights, self.loaded_lm_head_params
        )
    return {"weights": weights}


def after_load_weights(
    result: set[str], self: Any, weights: Iterable[Tuple[str, torch.Tensor]]
) -> set[str]:
    """Count the head's tensors among the loaded ones."""
    return result | self.loaded_lm_head_params


def _probe_loading() -> bool:
    import torch
    from sglang.srt.models.qwen3_5_text import Qwen3_5ForCausalLM

    head = probes.packed_head()
    model = probes.model_with(head)
    model.pooler = None
    model.named_parameters = lambda: [("lm_head.weight_packed", head.weight_packed)]
    model.model.load_weights = lambda weights: {name for name, _ in weights}
    codes = torch.ones(2, 1, dtype=torch.int32)
    loads = probes.gives(
        {"lm_head.weight_packed"},
        Qwen3_5ForCausalLM.load_weights,
        model,
        [("lm_head.weight_packed", codes)],
    )
    return loads and torch.equal(head.weight_packed, codes)


LOADING = Patch(
    name="qwen3_5-text-packed-lm-head-loading",
    symptom="Text-only Qwen3.5 loads `lm_head.weight` only: every tensor of a packed "
    "head is dropped without a word and the logits are noise.",
    upstream="#40883",
    removal="when load_weights of qwen3_5_text passes on every `lm_head.` tensor",
    probe=_probe_loading,
    seams=(
        Addition(
            target="sglang.srt.models.qwen3_5_text:load_lm_head_tensors",
            function=load_lm_head_tensors,
        ),
        Around(
            target=f"{_CLASS}.load_weights",
            before=before_load_weights,
            after=after_load_weights,
            fingerprints={
                "0.5.23": "e3349f8e99bc251f9917f120a93852e4"
                "7491ebd0fbb71097aa7a786c55533d3e",
            },
        ),
    ),
    requires=("packed-lm-head-predicate",),
    title="Text-only Qwen3.5: load every tensor of a packed lm_head",
    cost="Runs at load only; tensors stay lazy.",
    tests=("unit/spec/test_spec_packed_head_qwen3_5.py",),
)
