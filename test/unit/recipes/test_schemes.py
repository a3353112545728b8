from __future__ import annotations

from pathlib import Path

import pytest

from specpack.checkpoint import Tensor, read_checkpoint
from specpack.recipes.schemes import (
    draft_recipe,
    packed_parts,
    plan,
    target_recipe,
    unquantizable,
)

BODY = {
    f"model.language_model.layers.{name}.weight"
    for name in (
        "0.linear_attn.in_proj_qkv",
        *(f"1.self_attn.{letter}_proj" for letter in "qkvo"),
        *(f"1.mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
}
DRAFT_LINEARS = {
    "fc.weight",
    "layers.0.self_attn.o_proj.weight",
    *(f"layers.0.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
}


def labels(recipe, root: Path) -> dict[str, str]:
    planned = plan(recipe, read_checkpoint(root).tensors)
    return {name: f"{group.scheme} {group.label}" for name, group in planned.items()}


def test_target_packs_the_head_in_8_bits_and_the_body_in_4(target: Path) -> None:
    expected = {name: "W4A16 body" for name in BODY}
    expected["lm_head.weight"] = "W8A16 lm_head"
    assert labels(target_recipe("w8a16"), target) == expected


def test_the_twin_has_the_same_body_and_a_dense_head(target: Path) -> None:
    expected = {name: "W4A16 body" for name in BODY}
    assert labels(target_recipe("bf16"), target) == expected


def test_draft_keeps_qkv_selector_convolutions_and_norms(draft: Path) -> None:
    assert labels(draft_recipe(False), draft).keys() == DRAFT_LINEARS


def test_all_linears_adds_q_k_and_v(draft: Path) -> None:
    qkv = {f"layers.0.self_attn.{letter}_proj.weight" for letter in "qkv"}
    assert labels(draft_recipe(True), draft).keys() == DRAFT_LINEARS | qkv


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "language_model.lm_head.weight", "fc.weight"]
)
def test_a_draft_with_its_own_head_keeps_it_dense(name: str) -> None:
    assert list(plan(draft_recipe(True), [name])) == ["fc.weight"] * (name[0] == "f")


@pytest.mark.parametrize("recipe", [target_recipe("w8a16"), draft_recipe(False)])
def test_groups_keep_their_order_when_written_alphabetically(recipe) -> None:
    assert list(recipe.groups) == sorted(recipe.groups)


def test_packed_shapes() -> None:
    group = target_recipe("w8a16").groups["group_0_lm_head"]
    parts = packed_parts(Tensor("lm_head.weight", "BF16", (200, 256), "f"), group)
    assert [(part.name, part.dtype, part.shape) for part in parts] == [
        ("lm_head.weight_packed", "I32", (200, 64)),
        ("lm_head.weight_scale", "BF16", (200, 2)),
        ("lm_head.weight_shape", "I64", (2,)),
    ]


@pytest.mark.parametrize(
    "dtype, shape, words",
    [
        ("BF16", (8, 200), "200 input features, which 128"),
        ("BF16", (8, 1, 128), "shape [8, 1, 128]"),
        ("F8_E4M3", (8, 128), "is F8_E4M3"),
    ],
)
def test_what_cannot_be_packed_says_why(dtype: str, shape: tuple, words: str) -> None:
    assert words in unquantizable(Tensor("w", dtype, shape, "f"))
