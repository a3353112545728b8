"""A quantized DFlash draft's first complete load leaves no parameter unfilled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Iterator, Tuple

from specpack.seams import Addition, Around, Patch
from specpack.series import probes

if TYPE_CHECKING:
    import torch


def missing_draft_parameters(draft: torch.nn.Module, names: Iterable[str]) -> list[str]:
    """The parameters of a draft that a checkpoint with these tensors does not fill.

    A fused projection needs all its shards, or itself. Left out are those a
    checkpoint need not have: scales of a KV cache, the unread shape of packed
    weights, and the activation scale that a weight-only NVFP4 method keeps without
    reading it.
    """
    from sglang.srt.layers.quantization.modelopt_quant import (
        ModelOptNvFp4A16LinearMethod,
    )
    from sglang.srt.models.dflash import find_draft_module, locate_draft_tensor

    shards = {"qkv_proj": {"q", "k", "v"}, "gate_up_proj": {0, 1}}
    optional = (".k_scale", ".v_scale", ".weight_shape")
    found = {}
    for name in names:
        parameter, shard = locate_draft_tensor(draft, name)
        found.setdefault(parameter, set()).add(shard)
    missing = []
    for parameter, _ in draft.named_parameters():
        path = parameter.rpartition(".")[0]
        needed = shards.get(path.rpartition(".")[2], {None})
        present = found.get(parameter, set())
        method = getattr(find_draft_module(draft, path), "quant_method", None)
        unread = parameter.endswith(".input_scale") and isinstance(
            method, ModelOptNvFp4A16LinearMethod
        )
        if not (
            None in present
            or needed <= present
            or unread
            or parameter.endswith(optional)
        ):
            missing.append(parameter)
    return missing


def audit_first_load(
    self: Any, weights: Iterable[Tuple[str, torch.Tensor]]
) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield the tensors of the first complete checkpoint, then refuse what it lacks.

    Only for a draft that describes its quantization. Later loads pass through, since
    weight updates may bring parts. Raises ValueError.
    """
    from sglang.srt.models.dflash import missing_draft_parameters

    first = self.describes_quantization and not getattr(self, "was_audited", False)
    self.was_audited = True
    names = []
    for name, tensor in weights:
        names.append(name)
        yield name, tensor
    missing = missing_draft_parameters(self, names) if first else []
    if missing:
        raise ValueError(
            f"The quantized DFLASH draft checkpoint leaves {len(missing)} parameters "
            f"unfilled: {', '.join(missing)}. Either tensors are missing, or the "
            "quantization_config in its config.json names modules that are stored "
            "dense: list those under its `ignore`."
        )


def before_load_weights_and_postprocess(
    model: torch.nn.Module,
    weights: Iterable[Tuple[str, torch.Tensor]],
    target_device: torch.device,
) -> dict[str, Any]:
    """Let a model watch the complete checkpoint that is loaded into it.

    Weight updates call its ``load_weights`` too, with parts of one.
    """
    audit = getattr(model, "audit_first_load", None)
    if audit is not None:
        weights = audit(weights)
    return {"weights": weights}


def _probe() -> bool:
    import torch
    from sglang.srt.model_loader.loader import DefaultModelLoader

    draft = probes.dflash_draft()
    draft.describes_quantization = True
    return probes.raises(
        ValueError,
        DefaultModelLoader.load_weights_and_postprocess,
        draft,
        [("fc.weight", torch.zeros(2, 2))],
        torch.device("cpu"),
    )


PATCH = Patch(
    name="dflash-quantized-draft-audit",
    symptom="A quantized DFlash draft serves with parameters that its checkpoint never "
    "filled, a scale or a shard of a fused projection: uninitialised memory, accept "
    "length 1 and no error (FAULTS D2, D5, D11).",
    upstream="#39254",
    removal="when SGLang's loader refuses a checkpoint that leaves parameters unfilled",
    probe=_probe,
    seams=(
        Addition(
            target="sglang.srt.models.dflash:missing_draft_parameters",
            function=missing_draft_parameters,
        ),
        Addition(
            target="sglang.srt.models.dflash:DFlashDraftModel.audit_first_load",
            function=audit_first_load,
        ),
        Around(
            target="sglang.srt.model_loader.loader:"
            "DefaultModelLoader.load_weights_and_postprocess",
            before=before_load_weights_and_postprocess,
            fingerprints={
                "0.5.23": "565c1570e97e009a4e8d56159838eba8"
                "985c1a38cb8a03cb9ee872cac46fdf0f",
            },
        ),
    ),
    requires=("dflash-draft-unmatched-tensors",),
    title="DFlash: refuse unfilled parameters of a quantized draft",
    cost="Runs at load only; tensors stay lazy.",
    tests=(
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/dflash_drafts.py",
        "e2e/spec/test_dflash_dense_draft_online_fp8.py",
        "e2e/spec/test_packed_head_speculation.py",
        "e2e/spec/cycle_models.py",
        "e2e/spec/cycle_server.py",
    ),
)
