from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

CONFIG_NAME = "config.json"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message is one line: file, fault, fix."""


@dataclass(frozen=True)
class Tensor:
    """One tensor's header.

    `dtype` is safetensors' own name for it (BF16, I32, F8_E4M3, …) and `file` is
    relative to the checkpoint directory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes, rounded up for dtypes smaller than a byte."""
        bits = re.search(r"\d+", self.dtype)
        return -(-math.prod(self.shape) * (int(bits[0]) if bits else 8) // 8)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory: its parsed config.json and every tensor by name."""

    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def text_config(self) -> dict[str, Any]:
        """The language model's part of the config: itself for a text-only model."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def files(self) -> list[str]:
        """The weight files, sorted, relative to `path`."""
        return sorted({tensor.file for tensor in self.tensors.values()})

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads the directory `path`: config.json and all safetensors headers.

    Shards are those the index names, else every *.safetensors file. No tensor data
    is read.

    Raises:
        CheckpointError: on anything missing, malformed, truncated or ambiguous.
    """
    root = Path(path)
    if not root.is_dir():
        fault = "is not a directory" if root.exists() else "does not exist"
        raise CheckpointError(f"{root} {fault}: give a local checkpoint directory")
    config = _read_json(root / CONFIG_NAME)
    weight_map = _read_weight_map(root / INDEX_NAME)
    if weight_map is None:
        files = _unindexed_files(root)
    else:
        files = sorted(set(weight_map.values()))
    tensors = _read_tensors(root, files)
    _check_index(root, weight_map or {}, tensors)
    return Checkpoint(root, config, tensors)


def _read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} has no {path.name}: give the directory that holds the "
            "model's config.json and safetensors files"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error}): repair it or download it again"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object: download it again")
    return value


def _read_weight_map(path: Path) -> dict[str, str] | None:
    """Tensor name to shard from the index, None where there is no index."""
    if not path.exists():
        return None
    weight_map = _read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map: download it again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{path} places {name!r} in {file!r}, which is no file name: "
                "download the index again"
            )
    missing = sorted({f for f in weight_map.values() if not (path.parent / f).exists()})
    if missing:
        raise CheckpointError(
            f"{path} names {len(missing)} shard(s) that are not there "
            f"({_some(missing)}): download them again"
        )
    return weight_map


def _unindexed_files(root: Path) -> list[str]:
    """Every safetensors file, without Mistral's second copy of the same weights."""
    files = sorted(path.name for path in root.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"{root} has no safetensors file: convert the weights to safetensors first"
        )
    if SINGLE_NAME in files:
        files = [file for file in files if file != "consolidated.safetensors"]
    return files


def _read_tensors(root: Path, files: list[str]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        for tensor in _read_header(root, file):
            other = tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise CheckpointError(
                    f"{root} holds {tensor.name!r} twice, in {other.file} and in "
                    f"{file}: remove the file that does not belong"
                )
    return tensors


def _read_header(root: Path, file: str) -> list[Tensor]:
    try:
        with safe_open(root / file, framework="np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return [
                Tensor(name, part.get_dtype(), tuple(part.get_shape()), file)
                for name, part in slices.items()
            ]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{root / file} is not a readable safetensors file ({error}): it may be "
            "cut short or a Git LFS pointer; download it again"
        ) from None


def _check_index(
    root: Path, weight_map: dict[str, str], tensors: dict[str, Tensor]
) -> None:
    missing = [
        name
        for name, file in weight_map.items()
        if name not in tensors or tensors[name].file != file
    ]
    if missing:
        file = weight_map[missing[0]]
        raise CheckpointError(
            f"{root / INDEX_NAME} names {len(missing)} tensor(s) that are not in "
            f"their shard ({_some(missing)} in {file}): download both again"
        )


def _some(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
