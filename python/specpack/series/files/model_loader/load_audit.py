"""Judges what a model's first complete load left behind.

Three kinds of silent damage: a parameter that nothing filled, a tensor that nothing
read although the model took others of its module, and codes that were taken for values
or the reverse. SPECPACK_LOAD_AUDIT decides what follows: `off`, `warn`, or `refuse`.
Unset, a target without its head and a quantized draft with any damage are refused, and
all else is one warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from typing import Any, Iterable, Iterator, List, Optional, Set, Tuple

import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.model_loader.load_trace import LoadTrace, Target

logger = logging.getLogger(__name__)

SETTING = "SPECPACK_LOAD_AUDIT"
SETTINGS = ("off", "warn", "refuse")

# Parameters that a checkpoint need not fill, by the end of their names.
MAY_BE_UNFILLED = {
    "weight_shape": "no kernel reads the shape of packed weights",
    "k_scale": "a scale of a KV cache stays 1 unless it is given",
    "v_scale": "a scale of a KV cache stays 1 unless it is given",
    "blockscale_swizzled": "it is made from the scales after loading",
    "g_idx_sort_indices": "it is made from g_idx after loading",
}
# The same, for one quant method.
NOT_READ_BY = {
    "ModelOptNvFp4A16LinearMethod": (
        "input_scale",
    ),  # its activations stay as they are
}
# Modules that SGLang builds and never runs, by the class that they are part of.
NEVER_RUN = {
    "FalconH1HybridAttentionDecoderLayer": ("q_norm", "k_norm"),
}
# Tensors that exporters write and a module need not take, by the end of their names.
MAY_BE_UNREAD = (
    "bias",  # zeros, written for modules without one
    "k_scale",
    "v_scale",
    "kv_scale",
    "input_scale",  # of activations that are not quantized, or dynamically
    "input_global_scale",
    "output_scale",
    "weight_shape",
    "inv_freq",
    "cos_cached",
    "sin_cached",
    "position_ids",
    "num_batches_tracked",
)
SHARED_NAMES = ("lm_head", "head", "embed_tokens", "word_embeddings")
SHARING_METHODS = ("set_embed_and_head", "set_embed", "set_lm_head_from_target")


@dataclasses.dataclass(eq=False)
class LoadAudit:
    """What is to be judged of a model, and what follows from it.

    `setting` is what the user chose, if anything. `made_scales`: its weights are
    quantized while they load. `is_first` until a load was complete.
    """

    setting: Optional[str]
    is_draft: bool
    is_quantized: bool
    made_scales: bool
    needs_head: bool
    is_first: bool = True
    is_running: bool = False


@dataclasses.dataclass(frozen=True)
class Findings:
    """The names of what went wrong."""

    unfilled: Tuple[str, ...]
    unread: Tuple[str, ...]
    misread: Tuple[str, ...]
    head: Tuple[str, ...]


def plan_load_audit(model: torch.nn.Module, model_config: Any, quantizes: bool) -> None:
    """Let the loads of a model be audited; `quantizes` if it has a quant config.

    Raises ValueError for a setting that does not exist.
    """
    setting = os.environ.get(SETTING) or None
    if setting is not None and setting not in SETTINGS:
        raise ValueError(f"{SETTING} is {setting!r}, and may be {', '.join(SETTINGS)}.")
    if setting == "off":
        return
    stored = quantizes and model_config._is_already_quantized()
    configs = (model_config.hf_config, model_config.hf_text_config)
    tied = any(getattr(config, "tie_word_embeddings", False) for config in configs)
    model.load_audit = LoadAudit(
        setting=setting,
        is_draft=model_config.is_draft_model,
        is_quantized=stored,
        made_scales=quantizes and not stored,
        needs_head=model_config.is_generation and not tied,
    )


def begin_load_audit(model: torch.nn.Module) -> Optional[LoadAudit]:
    """The audit of a load that begins now, or None if there is none or it has begun."""
    audit = getattr(model, "load_audit", None)
    return None if audit is None or audit.is_running else audit


@contextlib.contextmanager
def audited(
    model: torch.nn.Module,
    audit: LoadAudit,
    weights: Iterable[Tuple[str, torch.Tensor]],
) -> Iterator[Iterable[Tuple[str, torch.Tensor]]]:
    """Watch a load of these tensors and judge it when it is through.

    Raises ValueError for what is to be refused.
    """
    trace = LoadTrace(model)
    audit.is_running = True
    try:
        with trace, trace.in_pools():
            yield trace.follow(weights)
    finally:
        audit.is_running = False
    findings = judge(model, audit, trace)
    was_first, audit.is_first = audit.is_first, False
    report(findings, type(model).__name__, audit, was_first)


def judge(model: torch.nn.Module, audit: LoadAudit, trace: LoadTrace) -> Findings:
    """What went wrong in a load; parts of a checkpoint need not fill a parameter."""
    unfilled = unfilled_parameters(model, audit, trace) if audit.is_first else {}
    heads = [name for name in unfilled if name.split(".")[-2:-1] == ["lm_head"]]
    return Findings(
        unfilled=tuple(unfilled.values()),
        unread=tuple(unread_tensors(trace)),
        misread=tuple(misread_tensors(trace)),
        head=tuple(heads if audit.needs_head and not audit.is_draft else ()),
    )


def unfilled_parameters(
    model: torch.nn.Module, audit: LoadAudit, trace: LoadTrace
) -> dict[str, str]:
    """Descriptions of the parameters that nothing filled, or not wholly, by name."""
    parameters = dict(model.named_parameters())
    targets = {name: trace.target_of(value) for name, value in parameters.items()}
    short = {
        name: target.short_rows
        for name, target in targets.items()
        if target is not None and len(target.short_rows)
    }
    filled = {name for name in targets if name not in short}
    kinds = {kind_of(model, name) for name in filled if targets[name]}
    shared = shared_later(model, targets) if audit.is_draft else set()
    found = {}
    for name, rows in short.items():
        left = parameters[name].detach()
        if left.ndim and len(rows) < len(left):
            left = left[rows.to(left.device)]
        expected = kind_of(model, name) in kinds
        if name in shared or may_stay(model, name, audit):
            continue
        if expected or not is_initial_value(model, name, left):
            found[name] = describe(name, rows, targets)
    return found


def kind_of(model: torch.nn.Module, name: str) -> Tuple[type, str]:
    """A parameter's name in its module, and that module's class."""
    path, _, leaf = name.rpartition(".")
    return type(model.get_submodule(path)), leaf


def may_stay(model: torch.nn.Module, name: str, audit: LoadAudit) -> bool:
    """Whether a parameter has a listed reason to stay as it was built."""
    path, _, leaf = name.rpartition(".")
    method = getattr(model.get_submodule(path), "quant_method", None)
    return (
        leaf.endswith(tuple(MAY_BE_UNFILLED))
        or (leaf.endswith("g_idx") and not is_reordered(method))
        or leaf in NOT_READ_BY.get(type(method).__name__, ())
        or (audit.made_scales and "scale" in leaf)
        or is_never_run(model, path)
    )


def is_reordered(method: Any) -> bool:
    """Whether a quant method takes its rows in the order of `g_idx`.

    Others have the parameter, too, and pass over it.
    """
    config = getattr(method, "quant_config", None)
    return bool(getattr(config, "desc_act", False) or getattr(method, "actorder", None))


def shared_later(
    model: torch.nn.Module, targets: dict[str, Optional[Target]]
) -> Set[str]:
    """The parameters of heads and embeddings that a draft borrows from the target.

    Those that its checkpoint brings a part of are its own.
    """
    if not any(hasattr(model, method) for method in SHARING_METHODS):
        return set()
    shared = set()
    for path, module in model.named_modules():
        names = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
        borrowed = path.rpartition(".")[2] in SHARED_NAMES
        if borrowed and isinstance(module, VocabParallelEmbedding):
            own = any(targets.get(n) and targets[n].was_written for n in names)
            shared.update(() if own else names)
    return shared


def is_never_run(model: torch.nn.Module, path: str) -> bool:
    """Whether a module is listed as never run, or is for a layer that there is not.

    The latter are deepstack mergers: Qwen3-VL's config has three of them by default,
    for vision layers that a small tower lacks.
    """
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    if name in NEVER_RUN.get(type(owner).__name__, ()):
        return True
    tower, found, rest = path.rpartition(".deepstack_merger_list.")
    if not found:
        return False
    vision = model.get_submodule(tower)
    layer = vision.deepstack_visual_indexes[int(rest.partition(".")[0])]
    return layer >= len(vision.blocks)


def is_initial_value(model: torch.nn.Module, name: str, left: torch.Tensor) -> bool:
    """Whether unwritten numbers look as a constructor defines them: all the same.

    Memory that nobody wrote may be zeros, too. So zeros count in vectors alone, where
    norms start from them, and not in a linear layer's. In the scale of a weight nothing
    counts, in that of an activation what is positive.
    """
    path, _, leaf = name.rpartition(".")
    if left.is_meta or not left.numel():
        return True
    is_linear = isinstance(model.get_submodule(path), LinearBase)
    values = (left.float() if left.dtype.itemsize == 1 else left).flatten()
    if not bool((values == values[0]).all()):
        return False
    if "scale" in leaf:
        return "input" in leaf and bool(values[0] > 0)
    return bool(values[0]) or (left.ndim < 2 and not is_linear)


def describe(name: str, rows: torch.Tensor, targets: dict[str, Any]) -> str:
    """A parameter, with the ranges of its rows that are short if some are filled."""
    target = targets[name]
    if not target.was_written or len(rows) == len(target.row_ct) == 1:
        return name
    breaks = (rows.diff() != 1).nonzero().flatten() + 1
    ranges = [(int(part[0]), int(part[-1])) for part in rows.tensor_split(breaks)]
    shown = ", ".join(f"{first}..{last}" for first, last in ranges[:8])
    more = f" and {len(ranges) - 8} more ranges" if len(ranges) > 8 else ""
    return f"{name} (rows {shown}{more} of {len(target.row_ct)})"


def unread_tensors(trace: LoadTrace) -> List[str]:
    """The tensors that nothing read, of modules that others were taken for."""
    taken = {o.name.rpartition(".")[0] for o in trace.origins if o.was_written}
    taken.discard("")
    return [
        origin.name
        for origin in trace.origins
        if not origin.was_read
        and origin.name.rpartition(".")[0] in taken
        and origin.name.rpartition(".")[2] not in MAY_BE_UNREAD
    ]


def misread_tensors(trace: LoadTrace) -> List[str]:
    """The tensors whose codes were taken for values, or whose values for codes."""
    targets = [target for found in trace.targets.values() for target in found]
    return [
        f"{origin.name} ({origin.dtype}) into {target.name} ({target.dtype})"
        for target in targets
        if not target.name.endswith(tuple(MAY_BE_UNFILLED))
        for origin in dict.fromkeys(target.misread)
    ]


def report(findings: Findings, model: str, audit: LoadAudit, was_first: bool) -> None:
    """Say what went wrong, in one block. Raises ValueError where it is refused."""
    parts = [
        f"  {words}: {'; '.join(names)}."
        for words, names in (
            ("unfilled parameters", findings.unfilled),
            ("unread tensors", findings.unread),
            ("codes taken for values, or values for codes", findings.misread),
        )
        if names
    ]
    if not parts:
        return
    role = "draft" if audit.is_draft else "target"
    block = "\n".join(
        [
            f"The {role}'s checkpoint does not fit {model}:",
            *parts,
            "  Tensors are missing or under other names, or the quantization_config in "
            "config.json describes modules that are stored otherwise: list dense ones "
            "under its `ignore`.",
            f"  {SETTING}={'|'.join(SETTINGS)} decides what follows from this.",
        ]
    )
    by_default = was_first and (
        bool(findings.head) or (audit.is_draft and audit.is_quantized)
    )
    if audit.setting == "refuse" or (audit.setting is None and by_default):
        raise ValueError(block)
    logger.warning(block)
