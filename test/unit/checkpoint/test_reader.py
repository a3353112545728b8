from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from specpack.checkpoint import CheckpointError, read_checkpoint


@pytest.fixture
def single(tmp_path: Path) -> Path:
    tensors = {
        "lm_head.weight": np.zeros((6, 4), np.float16),
        "a.weight_packed": np.zeros((6, 1), np.int32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"text_config": {"hidden_size": 4}}')
    return tmp_path


@pytest.fixture
def sharded(single: Path) -> Path:
    (single / "model.safetensors").rename(single / "one.safetensors")
    save_file({"b": np.zeros((2,), np.float32)}, single / "two.safetensors")
    weight_map = {
        "lm_head.weight": "one.safetensors",
        "a.weight_packed": "one.safetensors",
        "b": "two.safetensors",
    }
    write_index(single, weight_map)
    return single


def write_index(root: Path, weight_map: object) -> None:
    index = {"weight_map": weight_map}
    (root / "model.safetensors.index.json").write_text(json.dumps(index))


def fault_of(root: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def header_only(dtype: str, shape: list[int], nbytes: int) -> bytes:
    entry = {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}
    header = json.dumps({"w": entry}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * nbytes


def test_single_file_gives_names_dtypes_shapes_and_files(single: Path) -> None:
    checkpoint = read_checkpoint(single)
    head = checkpoint.tensors["lm_head.weight"]
    assert (head.dtype, head.shape, head.nbytes) == ("F16", (6, 4), 48)
    assert checkpoint.tensors["a.weight_packed"].dtype == "I32"
    assert checkpoint.files == ["model.safetensors"]
    assert checkpoint.text_config == {"hidden_size": 4}


def test_sharded_places_each_tensor_in_its_shard(sharded: Path) -> None:
    checkpoint = read_checkpoint(sharded)
    assert checkpoint.tensors["b"].file == "two.safetensors"
    assert checkpoint.files == ["one.safetensors", "two.safetensors"]


def test_files_without_an_index_are_all_read(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    assert "b" in read_checkpoint(sharded).tensors


@pytest.mark.parametrize(
    "dtype, shape, nbytes",
    [("F8_E4M3", [3, 2], 6), ("BF16", [3], 6), ("F4", [2, 3], 3), ("BOOL", [5], 5)],
)
def test_dtypes_numpy_lacks_have_their_size(
    tmp_path: Path, dtype: str, shape: list[int], nbytes: int
) -> None:
    (tmp_path / "config.json").write_text("{}")
    content = header_only(dtype, shape, nbytes)
    (tmp_path / "model.safetensors").write_bytes(content)
    tensor = read_checkpoint(tmp_path).tensors["w"]
    assert (tensor.dtype, tensor.nbytes) == (dtype, nbytes)


def test_a_missing_directory_and_a_file_are_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in fault_of(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert "file is not a directory" in fault_of(tmp_path / "file")


def test_no_config_is_named(single: Path) -> None:
    (single / "config.json").unlink()
    assert "has no config.json" in fault_of(single)


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "[1]", "\xff"])
def test_a_config_that_is_no_json_object(single: Path, text: str) -> None:
    (single / "config.json").write_bytes(text.encode("latin-1"))
    assert "config.json" in fault_of(single)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 99_000_000) + b"{}",
        header_only("F32", [4], 16)[:-1],
        header_only("F32", [4], 12),
    ],
    ids=["empty", "lfs", "hostile", "too long", "truncated", "wrong size"],
)
def test_an_unreadable_shard_is_named_with_the_fix(
    sharded: Path, content: bytes
) -> None:
    (sharded / "two.safetensors").write_bytes(content)
    fault = fault_of(sharded)
    assert "two.safetensors is not a readable" in fault and "again" in fault


def test_no_safetensors(single: Path) -> None:
    (single / "model.safetensors").unlink()
    assert "has no safetensors file" in fault_of(single)


def test_an_index_naming_a_missing_shard(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    assert "1 shard(s) that are not there (two.safetensors)" in fault_of(sharded)


def test_an_index_naming_a_missing_tensor(sharded: Path) -> None:
    write_index(sharded, {"c": "one.safetensors", "b": "two.safetensors"})
    assert "not in their shard (c in one.safetensors)" in fault_of(sharded)


@pytest.mark.parametrize(
    "weight_map", [None, {}, {"b": 1}, {"b": "../x.safetensors"}, {"b": "/x"}]
)
def test_a_malformed_index(sharded: Path, weight_map: object) -> None:
    write_index(sharded, weight_map)
    assert "model.safetensors.index.json" in fault_of(sharded)


def test_a_tensor_in_two_files(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").unlink()
    save_file({"b": np.zeros((2,), np.float32)}, sharded / "copy.safetensors")
    fault = fault_of(sharded)
    assert "'b' twice, in copy.safetensors and in two.safetensors" in fault
