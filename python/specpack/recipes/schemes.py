"""What each recipe quantizes: tables, and the plan they give for a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specpack.checkpoint import Checkpoint, Tensor

GROUP_SIZE = 128
FLOAT_DTYPES = ("BF16", "F16", "F32")
EVERY_LINEAR = "Linear"
QUANTIZED_SUFFIXES = (
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_inv",
    ".qweight",
)


class QuantizeError(RuntimeError):
    """A checkpoint that is not quantized; the message is one line: fault and fix."""


@dataclass(frozen=True)
class Group:
    """One entry of config_groups; `scheme` is a compressed-tensors preset."""

    scheme: str
    bits: int
    targets: tuple[str, ...]
    label: str


@dataclass(frozen=True)
class Recipe:
    """Groups by name, first match first, and the modules left as they are.

    llm-compressor writes groups in alphabetical order and readers take the first
    that matches, so the names must sort into the order meant.
    """

    groups: dict[str, Group]
    ignore: tuple[str, ...]

    def to_job(self) -> dict[str, Any]:
        """The recipe as JSON values, for the script inside the other environment."""
        return {
            "groups": {
                name: {"scheme": group.scheme, "targets": list(group.targets)}
                for name, group in self.groups.items()
            },
            "ignore": list(self.ignore),
        }


HEAD = r"re:.*lm_head$"
HEAD_WEIGHT = r"(?!.*mtp)(.*\.)?lm_head\.weight"
_BODY = Group("W4A16", 4, (EVERY_LINEAR,), "body")
_TARGET_IGNORE = (
    r"re:.*visual.*",
    r"re:.*mtp.*",
    r"re:.*in_proj_(a|b)$",
    r"re:.*conv1d.*",
    r"re:.*norm.*",
    r"re:.*embed_tokens.*",
)
_DRAFT_IGNORE = (
    r"re:.*candidate_selector.*",
    r"re:.*kernel_projection.*",
    r"re:.*norm.*",
    r"re:.*embed_tokens.*",
    HEAD,
)
_DRAFT_QKV = r"re:.*self_attn\.(q|k|v)_proj$"


def target_recipe(head: str) -> Recipe:
    """W4A16 body, with a packed W8A16 head (`w8a16`) or the dense one (`bf16`)."""
    if head == "bf16":
        return Recipe({"group_1_body": _BODY}, (*_TARGET_IGNORE, HEAD))
    packed = Group("W8A16", 8, (HEAD,), "lm_head")
    return Recipe({"group_0_lm_head": packed, "group_1_body": _BODY}, _TARGET_IGNORE)


def draft_recipe(all_linears: bool) -> Recipe:
    """W8A16 linears; q/k/v stay dense unless `all_linears`, for fused context KV."""
    ignore = _DRAFT_IGNORE if all_linears else (_DRAFT_QKV, *_DRAFT_IGNORE)
    linears = Group("W8A16", 8, (EVERY_LINEAR,), "linears")
    return Recipe({"group_0_linears": linears}, ignore)


def plan(recipe: Recipe, names: Iterable[str]) -> dict[str, Group]:
    """The group of each weight the recipe quantizes, by tensor name."""
    found = {name: _group_of(recipe, name) for name in names}
    return {name: group for name, group in found.items() if group is not None}


def _group_of(recipe: Recipe, name: str) -> Group | None:
    module, _, parameter = name.rpartition(".")
    if parameter != "weight" or _matches(module, recipe.ignore):
        return None
    for group in recipe.groups.values():
        if EVERY_LINEAR in group.targets or _matches(module, group.targets):
            return group
    return None


def _matches(module: str, patterns: Iterable[str]) -> bool:
    return any(re.match(pattern[len("re:") :], module) for pattern in patterns)


def packed_parts(tensor: Tensor, group: Group) -> list[Tensor]:
    """The tensors a weight [N, K] is packed into."""
    rows, columns = tensor.shape
    packed = (rows, columns * group.bits // 32)
    scale = (rows, columns // GROUP_SIZE)
    return [
        Tensor(f"{tensor.name}_packed", "I32", packed, tensor.file),
        Tensor(f"{tensor.name}_scale", tensor.dtype, scale, tensor.file),
        Tensor(f"{tensor.name}_shape", "I64", (2,), tensor.file),
    ]


def unquantizable(tensor: Tensor) -> str | None:
    """Why the weight cannot be packed in groups, None where it can."""
    if tensor.dtype not in FLOAT_DTYPES:
        return f"is {tensor.dtype}, not one of {', '.join(FLOAT_DTYPES)}"
    if len(tensor.shape) != 2:
        return f"has shape {list(tensor.shape)}, not the two dimensions of a linear"
    if tensor.shape[1] % GROUP_SIZE:
        return (
            f"has {tensor.shape[1]} input features, which {GROUP_SIZE}, the group "
            f"size, does not divide ({tensor.shape[1] % GROUP_SIZE} are left over)"
        )
    return None


def already_quantized(checkpoint: Checkpoint) -> str | None:
    """Where the checkpoint says that it is quantized, None where it does not."""
    for key in ("quantization_config", "compression_config"):
        if checkpoint.config.get(key) or checkpoint.text_config.get(key):
            return f"config.json has a {key}"
    if (checkpoint.path / "hf_quant_config.json").exists():
        return "it has a hf_quant_config.json"
    names = (n for n in checkpoint.tensors if n.endswith(QUANTIZED_SUFFIXES))
    return next((f"it holds {name}" for name in names), None)
