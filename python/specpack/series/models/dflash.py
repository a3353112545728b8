"""Quantized DFlash drafts are built under the names their checkpoints use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specpack.seams import CONTINUE, Attribute, Guard, Patch
from specpack.series import probes

if TYPE_CHECKING:
    import torch

_MODULE = "sglang.srt.models.dflash"


def init(self: Any, config: Any, quant_config: Any = None, prefix: str = "") -> Any:
    """Switch a draft with a quantization config of its own to quantized building.

    A draft that describes its quantization gets its checkpoint names as prefixes of
    the layers, and the config for its ``fc``. Any other, one that inherits the
    target's online quantization included, is built as ever.
    """
    from sglang.srt.models.utils import WeightsMapper

    self.describes_quantization = quant_config is not None and any(
        getattr(config, name, None) is not None
        for name in ("quantization_config", "compression_config")
    )
    if self.describes_quantization:
        self.supports_quantization = True
        # The names that loading accepts, for the config's lists of modules.
        quant_config.apply_weight_name_mapper(
            WeightsMapper(
                orig_to_new_prefix={
                    "model.": "",
                    "encoder.fc": "fc",
                    "model.encoder.fc": "fc",
                }
            )
        )
    elif getattr(quant_config, "packed_modules_mapping", None):
        # The loader gives every config the class's mapping.
        fused = getattr(self, "packed_modules_mapping", {})
        quant_config.packed_modules_mapping = {
            name: shards
            for name, shards in quant_config.packed_modules_mapping.items()
            if name not in fused
        }
    return CONTINUE


def laguna_project_target_hidden(self: Any, target_hidden: torch.Tensor) -> Any:
    """Project ``[N, taps * hidden]`` through an ``fc`` that is a quantizable linear.

    A quantizable ``fc`` returns a tuple, has no ``in_features`` and, when packed, no
    ``weight`` whose dtype could be asked.
    """
    import torch

    if self.quantizable:
        taps = int(self.num_context_features)
        expected = int(self.fc.input_size)
        if target_hidden.ndim != 2 or int(target_hidden.shape[-1]) != expected:
            raise ValueError(
                f"Laguna DFLASH projects [N, {expected}] target features "
                f"({taps} layers), but got {tuple(target_hidden.shape)}."
            )
        features = target_hidden.to(self.hidden_norm.weight.dtype).chunk(taps, dim=-1)
        normed = [
            norm(feature.contiguous())
            for norm, feature in zip(self.aux_hidden_norms, features)
        ]
        projected, _ = self.fc(torch.cat(normed, dim=-1))
        return self.hidden_norm(projected)
    return CONTINUE


def _probe_building() -> bool:
    import torch
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
    from sglang.srt.models.dflash import DFlashDraftModel

    class Layer(torch.nn.Module):
        def __init__(self, *, prefix: str, **_: Any) -> None:
            super().__init__()
            self.prefix = prefix

    class Draft(DFlashDraftModel):
        decoder_layer_cls = Layer

    config = probes.dflash_config(quantization_config={"quant_method": "probe"})
    quant_config = SimpleNamespace(
        get_quant_method=lambda layer, prefix: UnquantizedLinearMethod(),
        apply_weight_name_mapper=lambda mapper: None,
    )
    return Draft(config, quant_config).layers[0].prefix == "layers.0"


def _probe_fused() -> bool:
    from sglang.srt.models.dflash import DFlashDraftModel

    mapping = getattr(DFlashDraftModel, "packed_modules_mapping", {})
    return {"qkv_proj", "gate_up_proj"} <= set(mapping)


def _probe_laguna() -> bool:
    import torch
    from sglang.srt.models.dflash import DFlashLagunaForCausalLM

    def fc(x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x, None

    fc.input_size = 2
    draft = SimpleNamespace(
        quantizable=True,
        is_nemotron_35_draft=False,
        num_context_features=1,
        config=SimpleNamespace(hidden_size=2),
        aux_hidden_norms=[torch.nn.Identity()],
        hidden_norm=torch.nn.LayerNorm(2),
        fc=fc,
    )
    project = DFlashLagunaForCausalLM.project_target_hidden
    return not probes.raises(AttributeError, project, draft, torch.ones(1, 2))


BUILDING = Patch(
    name="dflash-quantized-draft-building",
    symptom="A quantized DFlash draft is built under empty prefixes and with a dense "
    "`fc`: its ignore list never matches and a quantized `fc` is dropped without a "
    "word, so that the draft is a random projection (FAULTS D1, D2).",
    upstream="#39254",
    removal="when DFlashDraftModel builds drafts that describe their quantization "
    "under `layers.{i}` and gives `fc` the quantization config",
    probe=_probe_building,
    seams=(
        # For backbones that build themselves and never get to that constructor.
        Attribute(
            target=f"{_MODULE}:DFlashDraftModel.describes_quantization", value=False
        ),
        Guard(
            target=f"{_MODULE}:DFlashDraftModel.__init__",
            function=init,
            fingerprints={
                "0.5.23": "3b26472278a07e220d27e57926446c76"
                "206253912a2e4ac2a9474aaa861905f2",
            },
        ),
    ),
    title="DFlash: build quantized drafts under checkpoint names",
    cost="Runs when the draft is built.",
    tests=(
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/dflash_drafts.py",
    ),
)

FUSED = Patch(
    name="dflash-draft-fused-modules",
    symptom="An ignore list that names q_proj, k_proj and v_proj, or gate_proj and "
    "up_proj, never reaches the fused module of a DFlash draft (FAULTS D3).",
    upstream="#39254",
    removal="when the DFlash draft classes declare packed_modules_mapping",
    probe=_probe_fused,
    seams=(
        Attribute(
            target=f"{_MODULE}:DFlashDraftModel.packed_modules_mapping",
            value={
                "qkv_proj": ["q_proj", "k_proj", "v_proj"],
                "gate_up_proj": ["gate_proj", "up_proj"],
            },
        ),
        # It has layers, names and a loader of its own: what it was given so far.
        Attribute(
            target="sglang.srt.models.dspark_minimax:"
            "MiniMaxDraftBackbone.packed_modules_mapping",
            value={},
        ),
    ),
    requires=("dflash-quantized-draft-building",),
    title="DFlash: declare packed_modules_mapping on draft classes",
    cost="None.",
    tests=(
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/dflash_drafts.py",
    ),
)

LAGUNA = Patch(
    name="dflash-laguna-quantized-fc",
    symptom="A Laguna draft with a quantized `fc` dies on the first request: it reads "
    "`fc.in_features` and `fc.weight.dtype`, and takes the tuple that `fc` returns "
    "for a tensor (FAULTS D9).",
    upstream="#36186",
    removal="when Laguna's project_target_hidden accepts a quantizable `fc`",
    probe=_probe_laguna,
    seams=(
        Guard(
            target=f"{_MODULE}:DFlashLagunaForCausalLM.project_target_hidden",
            function=laguna_project_target_hidden,
            fingerprints={
                "0.5.23": "9cc62cff383fe528678555818830a8f9"
                "5761ab1a3c64c65377e477aa002d54fa",
            },
        ),
    ),
    requires=("dflash-quantized-draft-building",),
    title="DFlash: let Laguna project through a quantizable fc",
    cost="One attribute look-up a call.",
    tests=(
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/dflash_drafts.py",
    ),
)
