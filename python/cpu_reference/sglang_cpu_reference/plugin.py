"""The entry point SGLang loads as the plugin ``cpu-reference``."""

from __future__ import annotations

import os


def register() -> None:
    """Apply the CPU series; does nothing unless ``SGLANG_USE_CPU_ENGINE=1``."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    # For the processes started from here: inductor would compile C++ in the first
    # request (20 to 100 s on two cores), where there is a compiler at all.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

    from sglang_cpu_reference.series import SERIES
    from specpack.seams import apply

    apply(SERIES, plugin="cpu-reference")
