"""Runs llm-compressor's model_free_ptq on one checkpoint, on the CPU.

A script for the quantize environment: it imports nothing of specpack. It reads one
line of JSON from standard input ({"source", "result", "groups", "ignore"}) and ends
when standard input closes, so it never outlives the command that started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any


def main() -> None:
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _quantize(job)
    except Exception as error:
        message = " ".join(str(error).split())
        sys.exit(f"{type(error).__name__}: {message}")


def _end_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def _quantize(job: dict[str, Any]) -> None:
    from compressed_tensors.quantization import (
        QuantizationConfig,
        preset_name_to_scheme,
    )
    from llmcompressor import model_free_ptq

    groups = {
        name: preset_name_to_scheme(group["scheme"], group["targets"])
        for name, group in job["groups"].items()
    }
    model_free_ptq(
        model_stub=job["source"],
        save_directory=job["result"],
        config=QuantizationConfig(config_groups=groups),
        ignore=job["ignore"],
        device="cpu",
    )


if __name__ == "__main__":
    main()
