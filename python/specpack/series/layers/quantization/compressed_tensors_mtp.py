"""An MTP module's layers by the tensors that the checkpoint holds for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Optional

from specpack.seams import CONTINUE, Addition, Guard, Patch
from specpack.series import probes
from specpack.series.layers.quantization.compressed_tensors import MODULE

if TYPE_CHECKING:
    import torch


def is_stored_dense_mtp(config: Any, path: Optional[str]) -> bool:
    """Whether a layer of an MTP module is dense on disk, with all its shards."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        is_stored_dense,
    )

    parent, _, name = (path or "").rpartition(".")
    if "mtp" not in parent.split("."):
        return False
    stored = getattr(config, "stored_modules", {})
    shards = config.packed_modules_mapping.get(name, [name])
    return all(is_stored_dense(stored.get(f"{parent}.{s}", {})) for s in shards)


def get_scheme_dict(
    self: Any,
    layer: torch.nn.Module,
    layer_name: Optional[str] = None,
    matched_target: Optional[str] = None,
) -> Any:
    """Build an MTP layer dense that is stored so.

    Exporters copy these modules as they are, and a class target claims them.
    """
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        is_stored_dense_mtp,
        logger,
    )
    from sglang.srt.layers.quantization.compressed_tensors.utils import (
        should_ignore_layer,
    )

    if is_stored_dense_mtp(self, layer_name) and not should_ignore_layer(
        layer_name, self.ignore, self.packed_modules_mapping
    ):
        logger.warning(
            f"The checkpoint stores {layer_name} dense, and the quantization_config "
            "does not ignore it. It is built dense."
        )
        return None
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    config = CompressedTensorsConfig({}, [], "pack-quantized", {}, [], {})
    config.target_scheme_map = {"mtp.fc": {}}
    config.stored_modules = {"mtp.fc": {"weight": ("BF16", (1, 1))}}
    return probes.gives(None, config.get_scheme_dict, SimpleNamespace(), "mtp.fc")


PATCH = Patch(
    name="mtp-by-stored-tensors",
    symptom="An MTP module that is dense on disk and that nobody put on the `ignore` "
    "list is claimed by a class target, built quantized and never filled: accept "
    "length 1 (FAULTS D11).",
    upstream="#38574",
    removal="when get_scheme_dict looks at the checkpoint's tensors",
    probe=_probe,
    seams=(
        Addition(target=f"{MODULE}:is_stored_dense_mtp", function=is_stored_dense_mtp),
        Guard(
            target=f"{MODULE}:CompressedTensorsConfig.get_scheme_dict",
            function=get_scheme_dict,
            fingerprints={
                "0.5.23": "4bd39213bc3c6466ca5d0258d3020b56"
                "43cfa87ea37ec468950b57bf921a3273",
            },
        ),
    ),
    requires=("lm-head-by-stored-tensors",),
    title="compressed-tensors: build MTP layers by the tensors on disk",
    cost="A look-up a layer at load.",
    tests=("unit/spec/test_lm_head_loading_mtp.py", "unit/spec/lm_heads_on_disk.py"),
)
