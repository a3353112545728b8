"""Heads are built by what the checkpoint holds for them, under their real paths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Optional, Tuple

from specpack.seams import Addition, Around, Guard, Patch
from specpack.series import probes
from specpack.series.layers.quantization import compressed_tensors

if TYPE_CHECKING:
    import torch

_LOADER = "sglang.srt.model_loader.loader"
_WEIGHT_UTILS = "sglang.srt.model_loader.weight_utils"
INITIALIZE_MODEL = {
    "target": f"{_LOADER}:_initialize_model",
    "fingerprints": {
        "0.5.23": "6a83a919584184adc9207c25fe10a75bfb11e6860a6cc50d5a7cd22753017982",
    },
    "importers": (
        "sglang.srt.model_loader.expert_pack_loader",
        "sglang.srt.weight_cache.ipc_loader",
    ),
}
"""The function that builds a model, for each patch that attaches to it."""
_CONFIG = f"{compressed_tensors.MODULE}:CompressedTensorsConfig"


def read_stored_modules(
    folder: str,
) -> dict[str, dict[str, Tuple[str, Tuple[int, ...]]]]:
    """What a checkpoint's safetensors hold outside its numbered layers, and for MTP.

    By module path, then by tensor name: dtype and shape, from the headers of the
    files that the index names for them, or of all. No tensor is read.
    """
    import glob
    import json
    import os
    import re

    from safetensors import safe_open

    numbered = re.compile(r"^(?!.*\bmtp\b).*\.\d+\.")
    index = os.path.join(folder, "model.safetensors.index.json")
    files = glob.glob(os.path.join(folder, "*.safetensors"))
    if os.path.isfile(index):
        with open(index) as file:
            weight_map = json.load(file)["weight_map"]
        named = {weight_map[name] for name in weight_map if not numbered.match(name)}
        files = [path for path in files if os.path.basename(path) in named]
    stored = {}
    for path in sorted(files):
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():
                if numbered.match(name):
                    continue
                module, _, tensor = name.rpartition(".")
                header = tensors.get_slice(name)
                form = (header.get_dtype(), tuple(header.get_shape()))
                stored.setdefault(module, {})[tensor] = form
    return stored


def after_get_quantization_config(
    result: Any, model_config: Any, load_config: Any
) -> Any:
    """Let the config know the tensors that it describes.

    Exporters' lists of targets and of what they ignore are unreliable. The files are
    those that the loader gets next.
    """
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader.loader import DefaultModelLoader
    from sglang.srt.model_loader.weight_utils import (
        download_weights_from_hf,
        read_stored_modules,
    )

    by_files = load_config.load_format in (
        LoadFormat.AUTO,
        LoadFormat.SAFETENSORS,
        LoadFormat.FASTSAFETENSORS,
        LoadFormat.INSTANTTENSOR,
    )
    if by_files and result is not None and result.get_name() == "compressed_tensors":
        model_path = DefaultModelLoader(load_config)._maybe_download_from_modelscope(
            model_config.model_path, model_config.revision
        )
        folder = download_weights_from_hf(
            model_path,
            load_config.download_dir,
            ["*.safetensors", "*.bin", "*.pt"],
            model_config.revision,
            ignore_patterns=load_config.ignore_patterns,
        )
        result.stored_modules = read_stored_modules(folder)
    return result


def product_in_dtype(
    product: Any,
    dtype: torch.dtype,
    layer: torch.nn.Module,
    x: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """A scheme's product with activations of another dtype."""
    return product(layer, x.to(dtype), bias)


def rebuild_lm_head(head: torch.nn.Module, path: str, quant_config: Any) -> None:
    """Build a head in its place again, with a config and its path.

    In the model's dtype: a model that wants its dense head in FP32 hands it FP32
    activations, which quantized products do not take, so they are cast.
    """
    from functools import partial

    import torch
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
    from sglang.srt.model_loader.loader import product_in_dtype

    dtype = torch.get_default_dtype()
    wants_other_dtype = head.weight.dtype != dtype
    ParallelLMHead.__init__(
        head,
        head.num_embeddings,
        head.embedding_dim,
        bias=head.bias is not None,
        org_num_embeddings=head.org_vocab_size,
        padding_size=head.padding_size,
        quant_config=quant_config,
        prefix=path,
        enable_tp=head.enable_tp,
        use_attn_tp_group=head.use_attn_tp_group,
        use_presharded_weights=head.use_presharded_weights,
    )
    if head.scheme is not None and wants_other_dtype:
        product = head.scheme.apply_weights
        head.scheme.apply_weights = partial(product_in_dtype, product, dtype)


def rebuild_stored_lm_heads(model: torch.nn.Module, quant_config: Any) -> None:
    """Quantize the heads that a model built dense and the checkpoint stores quantized.

    Some models build their head without a prefix, which no target can name, or
    without the config. Raises ValueError for a head that cannot be built again.
    """
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        describe_stored,
        find_stored_module,
        is_stored_quantized,
    )
    from sglang.srt.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )
    from sglang.srt.model_loader.loader import rebuild_lm_head

    embeddings = [
        module.weight
        for module in model.modules()
        if type(module) is VocabParallelEmbedding and hasattr(module, "weight")
    ]
    for path, head in list(model.named_modules()):
        if not isinstance(head, ParallelLMHead) or head.scheme is not None:
            continue
        tensors = find_stored_module(quant_config.stored_modules, path)
        tied = any(weight is head.weight for weight in embeddings)
        if tied or not is_stored_quantized(tensors):
            continue
        if type(head) is ParallelLMHead:
            rebuild_lm_head(head, path, quant_config)
        if head.scheme is None:
            raise ValueError(
                f"The checkpoint stores {path} quantized ({describe_stored(tensors)}), "
                f"and {type(model).__name__} builds it dense, as a "
                f"{type(head).__name__}. Store the head dense."
            )


def after_initialize_model(
    result: torch.nn.Module,
    model_config: Any,
    load_config: Any,
    quant_config: Optional[Any] = None,
) -> torch.nn.Module:
    """Hold the built heads against what the checkpoint stores for them."""
    from sglang.srt.model_loader.loader import rebuild_stored_lm_heads

    if getattr(quant_config, "stored_modules", None):
        rebuild_stored_lm_heads(result, quant_config)
    return result


def _config_with_stored_head(**tensors: Any) -> Any:
    """A config that promises a head in a way SGLang refuses, stored as told."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    config = CompressedTensorsConfig({}, [], "pack-quantized", {}, [], {})
    weights = SimpleNamespace(block_structure=[1, 1], type="float", num_bits=8)
    config.target_scheme_map = {"lm_head": {"weights": weights}}
    config.stored_modules = {"lm_head": tensors}
    return config


def _probe_scheme() -> bool:
    head = SimpleNamespace(embedding_dim=8)
    config = _config_with_stored_head(weight=("BF16", (8, 8)))
    return probes.gives(None, config.get_lm_head_scheme, head, "lm_head")


def _probe_building() -> bool:
    from sglang.srt.model_loader import loader

    return hasattr(loader, "rebuild_stored_lm_heads")


STORED = Patch(
    name="lm-head-by-stored-tensors",
    symptom="A head that is packed on disk while the config has only class targets, or "
    "lists it in `ignore`, is built dense and never filled; one that is dense on disk "
    "while a target names it is built packed and never filled (FAULTS H6).",
    upstream="#35358",
    removal="when get_lm_head_scheme looks at the checkpoint's tensors",
    probe=_probe_scheme,
    seams=(
        Addition(
            target=f"{_WEIGHT_UTILS}:read_stored_modules", function=read_stored_modules
        ),
        Around(
            target=f"{_LOADER}:_get_quantization_config",
            after=after_get_quantization_config,
            fingerprints={
                "0.5.23": "c88a7056a0cc692cb4b6aeffd875ced5"
                "d0619445a91e1ebb6435e5bbc9895bf8",
            },
        ),
        *(
            Addition(
                target=f"{compressed_tensors.MODULE}:{addition.__name__}",
                function=addition,
            )
            for addition in compressed_tensors.ADDITIONS
        ),
        Guard(
            target=f"{_CONFIG}.get_lm_head_scheme",
            function=compressed_tensors.get_lm_head_scheme,
            fingerprints={
                "0.5.23": "ed5a711f51571c095f2e5fd88959cc89"
                "15a9031c1b0731766558b1751ba9d82a",
            },
        ),
    ),
    title="compressed-tensors: build the lm_head by the tensors on disk",
    cost="Reads a few safetensors headers at load, for compressed-tensors only.",
    tests=("unit/spec/test_lm_head_loading.py", "unit/spec/lm_heads_on_disk.py"),
)

BUILDING = Patch(
    name="lm-head-by-module-path",
    symptom="A quantized head of a model that builds it without a prefix or without "
    "the quantization config is built dense, whatever the targets say (FAULTS H8).",
    upstream="#37979",
    removal="when every model builds its head with the config and its prefix",
    probe=_probe_building,
    seams=(
        *(
            Addition(target=f"{_LOADER}:{addition.__name__}", function=addition)
            for addition in (
                product_in_dtype,
                rebuild_lm_head,
                rebuild_stored_lm_heads,
            )
        ),
        Around(after=after_initialize_model, **INITIALIZE_MODEL),
    ),
    requires=("lm-head-by-stored-tensors",),
    title="Build quantized heads under their module path",
    cost="A walk over the modules at load, for compressed-tensors only.",
    tests=("unit/spec/test_lm_head_loading_built.py", "unit/spec/lm_heads_on_disk.py"),
)
