"""What the report calls a target's head and a draft."""

from __future__ import annotations

from pathlib import Path

from specpack.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from specpack.evals.settings import Run

DTYPES = {"F8_E4M3": "FP8", "U8": "packed uint8", "F32": "FP32", "F16": "FP16"}


def head_label(run: Run) -> str:
    """The target's ``lm_head`` by the tensors on disk; "?" where none can be read."""
    if run.target_head or run.url:
        return run.target_head or "?"
    try:
        return head_of(read_checkpoint(run.target))
    except CheckpointError:
        return "?"  # a name on the Hub, or a format without safetensors


def head_of(checkpoint: Checkpoint) -> str:
    found = {
        name.rpartition("lm_head.")[2]: tensor
        for name, tensor in checkpoint.tensors.items()
        if "lm_head." in f".{name}" and not name.startswith("mtp.")
    }
    if packed := found.get("weight_packed"):
        hidden = checkpoint.text_config.get("hidden_size")
        bits = packed.shape[1] * 32 // hidden if packed.dtype == "I32" and hidden else 0
        return f"W{bits}A16 packed" if bits else f"packed {packed.dtype}"
    if "qweight" in found:
        return "packed qweight"
    if weight := found.get("weight"):
        return DTYPES.get(weight.dtype, weight.dtype)
    return "tied" if checkpoint.text_config.get("tie_word_embeddings") else "?"


def draft_label(run: Run) -> str:
    if run.draft_label or run.algorithm == "none":
        return run.draft_label or "–"
    if run.draft:
        return Path(run.draft).name
    return "mtp" if run.algorithm == "NEXTN" else "?"
