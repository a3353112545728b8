"""DFlash drafts load every tensor that is theirs, and refuse what does not fit.

The functions of `sglang.srt.models.dflash` that take or judge a checkpoint's tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Iterator, Optional, Tuple, Union

from specpack.seams import Addition, Around, Patch
from specpack.series import probes

if TYPE_CHECKING:
    import torch

_MODULE = "sglang.srt.models.dflash"
_LOAD_WEIGHTS = f"{_MODULE}:DFlashDraftModel.load_weights"
_FINGERPRINTS = {
    "0.5.23": "a56f82eee1ad8964509c124d935b264828f9e0af055784a5607c1981f01fc803",
}


def find_draft_module(draft: torch.nn.Module, path: str) -> Optional[torch.nn.Module]:
    """The module of a draft at a dotted path, or None where it has none there."""
    try:
        return draft.get_submodule(path)
    except AttributeError:
        return None


def locate_draft_tensor(
    draft: torch.nn.Module, name: str
) -> Tuple[str, Optional[Union[str, int]]]:
    """The parameter a checkpoint's tensor is for, in the draft's names, and its shard.

    Knows the ``model.`` prefix, the vendor's ``encoder.`` names, the shards of fused
    projections and a bare parameter stored as a module's ``weight``. The draft need
    not have the parameter.
    """
    from sglang.srt.models.dflash import find_draft_module

    vendor_names = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
    fused_shards = {
        "q_proj": ("qkv_proj", "q"),
        "k_proj": ("qkv_proj", "k"),
        "v_proj": ("qkv_proj", "v"),
        "gate_proj": ("gate_up_proj", 0),
        "up_proj": ("gate_up_proj", 1),
    }
    name = name.removeprefix("model.")
    for theirs, ours in vendor_names.items():
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
    path, _, parameter = name.rpartition(".")
    if parameter == "weight" and path in dict(draft.named_parameters()):
        return path, None
    parent, _, module = path.rpartition(".")
    if parent and module in fused_shards:
        fused, shard = fused_shards[module]
        if find_draft_module(draft, f"{parent}.{fused}") is not None:
            return f"{parent}.{fused}.{parameter}", shard
    return name, None


def describe_draft_module(module: torch.nn.Module) -> str:
    """A module's class, its parameters and its quant method, for error messages."""
    names = ", ".join(name for name, _ in module.named_parameters()) or "none"
    method = type(getattr(module, "quant_method", None)).__name__
    return f"{type(module).__name__} (parameters: {names}; quant method: {method})"


def draft_name_problem(draft: torch.nn.Module, parameter: str) -> Optional[str]:
    """Why a module of a draft has no such parameter, or None.

    None also for the tensors of modules that the draft does not have and for those
    that exporters write and no parameter takes by design.
    """
    from sglang.srt.models.dflash import describe_draft_module, find_draft_module

    without_parameter = (
        ".bias",
        ".inv_freq",
        ".cos_cached",
        ".sin_cached",
        ".input_scale",
        ".input_global_scale",
        ".output_scale",
        ".k_scale",
        ".v_scale",
        ".kv_scale",
    )
    params = dict(draft.named_parameters())
    # Quant methods drop parameters after loading, and a reload brings them again.
    known = parameter in params or parameter in draft.parameters_at_first_load
    if known or parameter.endswith(without_parameter):
        return None
    path, _, leaf = parameter.rpartition(".")
    if path in params:
        path = path.rpartition(".")[0]
    module = find_draft_module(draft, path) if path else None
    # The head is borrowed from the target, and the caller never loads it.
    if module is None or path == "lm_head":
        return None
    return f"{path} is {describe_draft_module(module)}, without {leaf}"


def draft_dtype_problem(
    draft: torch.nn.Module, parameter: str, tensor: torch.Tensor
) -> Optional[str]:
    """Why a ``weight`` is codes where values belong, or the reverse, or None."""
    import torch
    from sglang.srt.models.dflash import describe_draft_module, find_draft_module

    path, _, leaf = parameter.rpartition(".")
    param = dict(draft.named_parameters()).get(parameter)
    if leaf != "weight" or param is None or path == "lm_head":
        return None
    module = find_draft_module(draft, path)
    described = f"{path} is {describe_draft_module(module)}"
    dense_dtypes = (torch.float16, torch.bfloat16, torch.float32)
    holds_values = param.dtype in dense_dtypes
    brings_values = tensor.dtype in dense_dtypes
    method = type(getattr(module, "quant_method", None)).__name__
    unquantized = method in ("NoneType", "UnquantizedLinearMethod")
    if holds_values and not brings_values and unquantized:
        return f"{described}, and the tensor is {tensor.dtype}, codes without values"
    if brings_values and not holds_values and draft.describes_quantization:
        return f"{described}, and the tensor is dense, {tensor.dtype}"
    return None


def draft_fc_problem(
    draft: torch.nn.Module, parameter: str, tensor: torch.Tensor
) -> Optional[str]:
    """Why a quantized ``fc``'s codes are for another number of features, or None."""
    if not draft.describes_quantization or parameter not in (
        "fc.weight",
        "fc.weight_packed",
        "fc.qweight",
    ):
        return None
    codes = dict(draft.named_parameters()).get(parameter)
    if codes is None or tuple(codes.shape) == tuple(tensor.shape):
        return None
    hidden = int(draft.config.hidden_size)
    features = int(draft.num_context_features) * hidden
    found = tensor.numel() * features // codes.numel()
    return (
        f"its shape {tuple(tensor.shape)} holds {found} features for {hidden} outputs, "
        f"and the config asks for {features} ({draft.num_context_features} layers of "
        f"the target), which is {tuple(codes.shape)}. The checkpoint's fc and "
        "dflash_config.target_layer_ids disagree"
    )


def match_draft_weights(
    draft: torch.nn.Module, weights: Iterable[Tuple[str, torch.Tensor]]
) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield a checkpoint's tensors, lazily, under names that the draft resolves.

    Raises ValueError for one whose module the draft has and cannot put it in.
    """
    from sglang.srt.models.dflash import (
        draft_dtype_problem,
        draft_fc_problem,
        draft_name_problem,
        locate_draft_tensor,
    )

    if not hasattr(draft, "parameters_at_first_load"):
        draft.parameters_at_first_load = frozenset(dict(draft.named_parameters()))
    for name, tensor in weights:
        parameter, shard = locate_draft_tensor(draft, name)
        problem = (
            draft_name_problem(draft, parameter)
            or draft_dtype_problem(draft, parameter, tensor)
            or draft_fc_problem(draft, parameter, tensor)
        )
        if problem is not None:
            source = (
                "The quantization_config in the draft's config.json must describe each "
                "module as it is stored"
                if draft.describes_quantization
                else "Without a quantization_config in its own config.json a draft is "
                "built dense but for its layers"
            )
            raise ValueError(
                f"DFLASH cannot load the draft checkpoint's {name}: {problem}. {source}."
            )
        yield (name if shard is not None else parameter), tensor


def require_draft_fc(
    draft: torch.nn.Module, weights: Iterable[Tuple[str, torch.Tensor]]
) -> Iterator[Tuple[str, torch.Tensor]]:
    """Yield a checkpoint's tensors and refuse one that has every layer but no ``fc``.

    Weight updates bring parts: once ``fc`` was filled, no later part needs it.
    """
    from sglang.srt.models.dflash import locate_draft_tensor

    layers = set()
    for name, tensor in weights:
        yield name, tensor
        parameter, _ = locate_draft_tensor(draft, name)
        if parameter.startswith("layers."):
            layers.add(parameter.split(".")[1])
        elif parameter.startswith("fc."):
            draft.fc_was_loaded = True
    if len(layers) >= len(draft.layers) and not getattr(draft, "fc_was_loaded", False):
        raise ValueError(
            "The DFLASH draft checkpoint has its decoder layers but no fc, which "
            "projects the target's features: it would draft from a random projection. "
            "Its tensors are fc.* or encoder.fc.*."
        )


def before_load_weights(
    self: Any, weights: Iterable[Tuple[str, torch.Tensor]]
) -> dict[str, Any]:
    """Resolve each tensor as it comes, so that none is dropped that is the draft's."""
    from sglang.srt.models.dflash import match_draft_weights

    weights = match_draft_weights(self, weights)
    return {"weights": weights}


def before_load_weights_with_fc(
    self: Any, weights: Iterable[Tuple[str, torch.Tensor]]
) -> dict[str, Any]:
    """Watch for the tensors of ``fc``."""
    from sglang.srt.models.dflash import require_draft_fc

    weights = require_draft_fc(self, weights)
    return {"weights": weights}


def _probe_matching() -> bool:
    import torch
    from sglang.srt.models.dflash import DFlashDraftModel

    codes = torch.zeros(1, 1, dtype=torch.int32)
    return all(
        probes.raises(
            ValueError,
            DFlashDraftModel.load_weights,
            probes.dflash_draft(),
            [(f"{name}.weight_packed", codes)],
        )
        for name in ("fc", "encoder.fc")
    )


def _probe_fc() -> bool:
    import torch
    from sglang.srt.models.dflash import DFlashDraftModel

    return probes.raises(
        ValueError,
        DFlashDraftModel.load_weights,
        probes.dflash_draft(),
        [("layers.0.weight", torch.zeros(2, 2))],
    )


MATCHING = Patch(
    name="dflash-draft-unmatched-tensors",
    symptom="A DFlash draft drops every tensor it finds no parameter for: a packed one "
    "for a dense layer and a dense one for a packed layer, the vendor's quantized "
    "`encoder.fc.*`, codebooks stored with `.weight`, a quantized `fc` described only "
    "in hf_quant_config.json. Acceptance collapses, the text stays right "
    "(FAULTS D4, D5, D7).",
    upstream="#39254",
    removal="when DFlashDraftModel.load_weights refuses tensors of modules that it has",
    probe=_probe_matching,
    seams=(
        *(
            Addition(target=f"{_MODULE}:{addition.__name__}", function=addition)
            for addition in (
                find_draft_module,
                locate_draft_tensor,
                describe_draft_module,
                draft_name_problem,
                draft_dtype_problem,
                draft_fc_problem,
                match_draft_weights,
            )
        ),
        Around(
            target=_LOAD_WEIGHTS, before=before_load_weights, fingerprints=_FINGERPRINTS
        ),
    ),
    requires=("dflash-quantized-draft-building",),
    title="DFlash: refuse draft tensors that fit no parameter",
    cost="Runs at load only; tensors stay lazy.",
    tests=(
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/dflash_drafts.py",
    ),
)

FC = Patch(
    name="dflash-draft-missing-fc",
    symptom="A DFlash draft checkpoint without `fc` serves with a random projection "
    "and about no acceptance, without an error (FAULTS D6).",
    upstream="#39254",
    removal="when DFlashDraftModel.load_weights refuses layers without `fc`",
    probe=_probe_fc,
    seams=(
        Addition(target=f"{_MODULE}:require_draft_fc", function=require_draft_fc),
        Around(
            target=_LOAD_WEIGHTS,
            before=before_load_weights_with_fc,
            fingerprints=_FINGERPRINTS,
        ),
    ),
    requires=("dflash-draft-unmatched-tensors",),
    title="DFlash: refuse a draft checkpoint without fc",
    cost="Runs at load only; tensors stay lazy.",
    tests=(
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/dflash_drafts.py",
    ),
)
