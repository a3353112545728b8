"""Quantizes one checkpoint: refuse early, run llm-compressor, verify, publish."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from specpack.checkpoint import Checkpoint, read_checkpoint
from specpack.recipes import verify
from specpack.recipes.environment import quantize_python
from specpack.recipes.output import publish, refuse_existing, unfinished
from specpack.recipes.progress import run_with_progress
from specpack.recipes.schemes import (
    HEAD_WEIGHT,
    QuantizeError,
    Recipe,
    already_quantized,
    draft_recipe,
    plan,
    target_recipe,
    unquantizable,
)

SCRIPT = Path(__file__).with_name("model_free.py")
WEIGHT_SUFFIXES = (
    *(".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt"),
    *(".h5", ".msgpack", ".gguf", ".onnx"),
)
# Room for tokenizer and index beside the tensors, in bytes.
SPARE = 64 * 2**20


def quantize_target(source: Path, destination: Path, head: str) -> str:
    """Writes the target quantized, its head `w8a16` or `bf16`; returns a summary.

    Raises:
        CheckpointError, QuantizeError: one line; `destination` then does not exist.
    """
    recipe = target_recipe(head)
    check = refuse_unpackable_head if head == "w8a16" else refuse_nothing
    return _quantize(source, destination, recipe, check)


def quantize_draft(source: Path, destination: Path, all_linears: bool) -> str:
    """Writes the DFlash draft quantized to W8A16; returns a summary.

    Raises:
        CheckpointError, QuantizeError: one line; `destination` then does not exist.
    """
    recipe = draft_recipe(all_linears)
    return _quantize(source, destination, recipe, refuse_other_than_dflash)


def refuse_nothing(checkpoint: Checkpoint) -> None:
    """A dense head, or none, is as good as any when the head stays as it is."""


def refuse_unpackable_head(checkpoint: Checkpoint) -> None:
    """Raises QuantizeError for a head that is tied, or missing."""
    text = checkpoint.text_config
    tied = checkpoint.config.get(
        "tie_word_embeddings", text.get("tie_word_embeddings", False)
    )
    if tied:
        raise QuantizeError(
            f"{checkpoint.path} ties its lm_head to the embedding "
            "(tie_word_embeddings: true), so there is no head to quantize: quantize "
            "only the body with --head bf16, or save the embedding as lm_head.weight "
            "too and set tie_word_embeddings to false"
        )
    if not any(re.fullmatch(HEAD_WEIGHT, name) for name in checkpoint.tensors):
        raise QuantizeError(
            f"{checkpoint.path} has no lm_head.weight: quantize only the body with "
            "--head bf16; if it is a draft, use `specpack quantize draft`"
        )


def refuse_other_than_dflash(checkpoint: Checkpoint) -> None:
    """Raises QuantizeError for what is not a DFlash draft."""
    if not {"fc.weight", "model.fc.weight", "encoder.fc.weight"} & set(
        checkpoint.tensors
    ):
        raise QuantizeError(
            f"{checkpoint.path} has no fc.weight, so it is no DFlash draft: for a "
            "target use `specpack quantize target`"
        )


def _quantize(
    source: Path,
    destination: Path,
    recipe: Recipe,
    check: Callable[[Checkpoint], None],
) -> str:
    source, destination = Path(source), Path(os.path.abspath(destination))
    checkpoint = read_checkpoint(source)
    refuse_existing(destination)
    if source.resolve() in destination.resolve().parents:
        raise QuantizeError(f"{destination} lies inside {source}: write it elsewhere")
    planned = _checked_plan(checkpoint, recipe, check)
    python = quantize_python()
    with unfinished(destination) as work:
        expected = verify.expected_tensors(checkpoint, planned)
        _refuse_full_disk(destination, sum(t.nbytes for t in expected.values()))
        _stage(checkpoint, work / "source")
        _run(python, recipe, work, destination)
        result = _verified(checkpoint, work, planned, recipe)
        publish(work / "result", destination)
    return verify.summary(checkpoint, result, planned)


def _checked_plan(
    checkpoint: Checkpoint, recipe: Recipe, check: Callable[[Checkpoint], None]
) -> verify.Plan:
    quantized = already_quantized(checkpoint)
    if quantized:
        raise QuantizeError(
            f"{checkpoint.path} is already quantized ({quantized}): start from the "
            "BF16 checkpoint"
        )
    check(checkpoint)
    experts = [name for name in checkpoint.tensors if ".experts." in name]
    if experts:
        raise QuantizeError(
            f"{checkpoint.path} is a mixture of experts ({experts[0]}), which no "
            "recipe here covers: quantize it with llm-compressor's own examples"
        )
    planned = plan(recipe, checkpoint.tensors)
    for name in planned:
        reason = unquantizable(checkpoint.tensors[name])
        if reason:
            raise QuantizeError(f"{checkpoint.path}: {name} {reason}")
    return planned


def _refuse_full_disk(destination: Path, nbytes: int) -> None:
    needed, free = nbytes + SPARE, shutil.disk_usage(destination.parent).free
    if free < needed:
        raise QuantizeError(
            f"no space left for {destination}: it needs "
            f"{verify.in_units(needed)}, {verify.in_units(free)} are free"
        )


def _stage(checkpoint: Checkpoint, stage: Path) -> None:
    """Links what the result is made from: the shards, an index, all other files.

    llm-compressor takes every file it finds, and only one weight file without index.
    """
    for name in (*checkpoint.files, *_other_files(checkpoint.path)):
        link = stage / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((checkpoint.path / name).resolve())
    weight_map = {name: tensor.file for name, tensor in checkpoint.tensors.items()}
    index = {"metadata": {"total_size": checkpoint.nbytes}, "weight_map": weight_map}
    (stage / "model.safetensors.index.json").write_text(json.dumps(index))


def _other_files(root: Path) -> list[str]:
    """Files that are neither weights nor hidden: tokenizer, processor, template, …"""
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return [
        str(path)
        for path in paths
        if not path.name.endswith(WEIGHT_SUFFIXES)
        and not any(part.startswith(".") for part in path.parts)
    ]


def _run(python: Path, recipe: Recipe, work: Path, destination: Path) -> None:
    job = {
        "source": str(work / "source"),
        "result": str(work / "result"),
        **recipe.to_job(),
    }
    status, tail = run_with_progress(
        [str(python), "-I", str(SCRIPT)],
        "llm-compressor",
        _shards_done,
        feed=json.dumps(job) + "\n",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )
    if status < 0:
        raise QuantizeError(
            f"llm-compressor was ended by signal {-status}, as when memory or space "
            f"runs out; {destination} was not written"
        )
    if "No space left" in tail[-1]:
        raise QuantizeError(
            f"no space left while writing; {destination} was not written: free "
            "some space or give a destination on another disk"
        )
    if status:
        raise QuantizeError(
            f"llm-compressor failed ({tail[-1]}); {destination} was not written"
        )


def _shards_done(line: str) -> str | None:
    """From its progress bars: `Quantizing:  50%|█  | 1/2 [00:03<00:03, 3.1s/it]`."""
    bar = re.match(r"(Validating|Quantizing):.*\| (\d+)/(\d+) \[", line)
    return f"{bar[1].lower()}, {bar[2]} of {bar[3]} shards done" if bar else None


def _verified(
    checkpoint: Checkpoint, work: Path, planned: verify.Plan, recipe: Recipe
) -> Checkpoint:
    """The result as read back from disk, with file modes as the source has them."""
    result = read_checkpoint(work / "result")
    problems = verify.mismatches(checkpoint, result, planned, recipe)
    for name in _other_files(checkpoint.path):
        if not (result.path / name).is_file():
            problems.append(f"{name} was not copied")
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise QuantizeError(
            f"llm-compressor's result is not what the recipe says "
            f"({'; '.join(problems[:3])}{more}); nothing was kept"
        )
    for name in result.files:
        shutil.copymode(checkpoint.path / name, result.path / name)
    return result
