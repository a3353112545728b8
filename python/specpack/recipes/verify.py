"""What a quantized checkpoint must hold, and whether it does."""

from __future__ import annotations

from specpack.checkpoint import Checkpoint, Tensor
from specpack.recipes.schemes import Group, Recipe, packed_parts

Plan = dict[str, Group]


def expected_tensors(source: Checkpoint, planned: Plan) -> dict[str, Tensor]:
    """Every tensor the result must hold, by name."""
    expected: list[Tensor] = []
    for name, tensor in source.tensors.items():
        group = planned.get(name)
        expected += packed_parts(tensor, group) if group else [tensor]
    return {tensor.name: tensor for tensor in expected}


def mismatches(
    source: Checkpoint, result: Checkpoint, planned: Plan, recipe: Recipe
) -> list[str]:
    """What in the result is not as the plan says; empty when all of it is."""
    expected, found = expected_tensors(source, planned), result.tensors
    problems = [f"{name} is missing" for name in expected.keys() - found.keys()]
    problems += [f"{name} is unexpected" for name in found.keys() - expected.keys()]
    for name in expected.keys() & found.keys():
        if found[name] != expected[name]:
            problems.append(f"{found[name]} should be {expected[name]}")
    return sorted(problems) + _config_mismatches(source, result, recipe)


def _config_mismatches(
    source: Checkpoint, result: Checkpoint, recipe: Recipe
) -> list[str]:
    config = dict(result.config)
    quantization = config.pop("quantization_config", {})
    groups = quantization.get("config_groups", {})
    problems = []
    if config != source.config:
        problems.append("config.json lost or changed keys of the source's")
    if list(groups) != list(recipe.groups):
        problems.append(f"config_groups are {list(groups)}, not {list(recipe.groups)}")
    return problems


def summary(source: Checkpoint, result: Checkpoint, planned: Plan) -> str:
    """A table: tensors per scheme, and their size before and after."""
    rows = []
    for group in sorted(set(planned.values()), key=lambda group: group.label):
        names = [name for name in planned if planned[name] == group]
        parts = [t for n in names for t in packed_parts(source.tensors[n], group)]
        before, after = _size(source, names), sum(part.nbytes for part in parts)
        rows.append((f"{group.scheme} {group.label}", len(names), before, after))
    kept = [name for name in source.tensors if name not in planned]
    rows.append(("as before", len(kept), _size(source, kept), _size(result, kept)))
    rows.append(("all", len(source.tensors), source.nbytes, result.nbytes))
    head = f"{'scheme':<16}{'tensors':>8}{'before':>12}{'after':>12}"
    return "\n".join([head, *(_row(*row) for row in rows)])


def _row(label: str, count: int, before: int, after: int) -> str:
    return f"{label:<16}{count:>8}{in_units(before):>12}{in_units(after):>12}"


def _size(checkpoint: Checkpoint, names: list[str]) -> int:
    return sum(checkpoint.tensors[name].nbytes for name in names)


def in_units(nbytes: int) -> str:
    """A size in MB or GB (10^6, 10^9 bytes)."""
    if nbytes < 10**9:
        return f"{nbytes / 10**6:.2f} MB"
    return f"{nbytes / 10**9:.2f} GB"
