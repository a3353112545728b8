"""Reads a checkpoint directory (config.json, safetensors headers) without torch."""

from specpack.checkpoint.reader import (
    Checkpoint,
    CheckpointError,
    Tensor,
    read_checkpoint,
)

__all__ = ["Checkpoint", "CheckpointError", "Tensor", "read_checkpoint"]
