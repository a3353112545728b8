"""Heads on real servers: every packed layout, by the tensors on disk, loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from asking import (
    VOCAB,
    accept_length,
    complete_all,
    generate,
    logprobs,
    relative_error,
)
from stored_heads import (
    compressed,
    decompressed,
    head_of,
    int_weights,
    relabelled,
    relabelled_ids,
    with_head,
)
from transformers import AutoTokenizer

from specpack.evals.server import Server

LAYOUTS = ((4, 32), (4, None), (8, None))  # the packed target's own is (8, 128)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def dense_server(start, dense_target: Path) -> Iterator[Server]:
    with start(dense_target, "specpack", "none") as server:
        yield server


def update(server: Server, model: Path) -> None:
    """Load another checkpoint into a running server."""
    url = f"{server.url}/update_weights_from_disk"
    response = httpx.post(url, json={"model_path": str(model)}, timeout=300)
    assert response.json()["success"], response.text


def name_head(quantization: dict[str, Any], weights: dict[str, Any]) -> None:
    """Let the head's group say these ``weights``."""
    quantization["config_groups"]["group_0_lm_head"]["weights"] = weights


def forget(quantization: dict[str, Any]) -> None:
    """Drop the head's group, list the head as dense and the dense MTP as nothing."""
    del quantization["config_groups"]["group_0_lm_head"]
    quantization["ignore"].remove("re:.*mtp.*")
    quantization["ignore"].append("lm_head")


@pytest.mark.parametrize(("bits", "group"), LAYOUTS)
def test_packed_layouts(
    start, dense_server, dense_target, packed_target, folder, prompts, bits, group
):
    """Red when a layout's logits are not those of the values it stands for, or change
    when the same files are loaded again."""
    layout = f"int{bits}-{group or 'channel'}"
    head = compressed(head_of(dense_target)["weight"], bits, group)
    packed = with_head(
        packed_target,
        folder / layout,
        head,
        lambda quantization: name_head(quantization, int_weights(bits, group)),
    )
    values = decompressed(head, bits, group)
    update(dense_server, with_head(dense_target, folder / f"{layout}-dense", values))
    expected = logprobs(dense_server, prompts[3])
    with start(packed, "specpack", "none") as server:
        found = logprobs(server, prompts[3])
        update(server, packed)
        again = logprobs(server, prompts[3])
    assert relative_error(found, expected) <= 1e-2
    assert torch.equal(found, again)


def test_what_the_config_says_wrongly(
    start, packed_target, packed_nextn, folder, prompts
):
    """Red when a packed head in `ignore`, or a dense MTP module that is not, is left
    unfilled: the text is noise, or no draft is accepted."""
    head = head_of(packed_target)
    forgotten = with_head(packed_target, folder / "forgotten", head, forget)
    expected = complete_all(packed_nextn, prompts[:8], max_tokens=64)
    with start(forgotten, "specpack", "NEXTN") as server:
        found = complete_all(server, prompts[:8], max_tokens=64)
    assert [a.token_ids for a in found] == [a.token_ids for a in expected]
    assert accept_length(found) == accept_length(expected)


def test_dense_head_that_a_target_names(
    start, dense_server, dense_target, packed_target, folder, prompts
):
    """Red when a dense head is built packed and so left unfilled."""
    promised = with_head(packed_target, folder / "promised", head_of(dense_target))
    update(dense_server, dense_target)
    expected = logprobs(dense_server, prompts[3])
    with start(promised, "specpack", "none") as server:
        assert torch.equal(logprobs(server, prompts[3]), expected)


def test_reload_with_a_draft(packed_nextn, packed_target, folder, prompts):
    """Red when a reload repacks the head twice, or leaves the draft with the old one.

    The other files are the same model with its tokens renamed, head and embedding: a
    draft with any of the old would propose nothing that the target accepts.
    """
    other = relabelled(packed_target, folder / "relabelled")
    ids = AutoTokenizer.from_pretrained(packed_target)(prompts[3]).input_ids
    renamed = relabelled_ids(VOCAB)
    new_ids = renamed[ids].tolist()

    def answer(prompt: list[int]) -> tuple[list[int], float]:
        sampling = {"temperature": 0, "max_new_tokens": 48}
        found = generate(packed_nextn, None, request={"input_ids": prompt}, **sampling)
        return found["output_ids"], found["meta_info"]["spec_accept_length"]

    before, answered = logprobs(packed_nextn, ids), answer(ids)
    update(packed_nextn, packed_target)
    assert torch.equal(logprobs(packed_nextn, ids), before)
    assert answer(ids) == answered
    update(packed_nextn, other)
    tokens, length = answer(new_ids)
    assert (renamed[tokens].tolist(), length) == answered
    assert relative_error(logprobs(packed_nextn, new_ids)[:, renamed], before) <= 1e-2
    update(packed_nextn, packed_target)
    assert torch.equal(logprobs(packed_nextn, ids), before)
    assert answer(ids) == answered
