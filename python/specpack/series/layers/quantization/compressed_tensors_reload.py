"""Compressed-tensors layers are loaded again as they were loaded first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Iterator, Tuple

from specpack.seams import CONTINUE, Addition, Guard, Patch
from specpack.series import probes
from specpack.series.layers.quantization.compressed_tensors import MODULE

if TYPE_CHECKING:
    import torch

_METHOD = f"{MODULE}:CompressedTensorsLinearMethod"


def checkpoint_forms(layer: torch.nn.Module) -> dict[str, Tuple[Any, ...]]:
    """What each parameter of a layer is while a checkpoint is loaded into it."""
    return {
        name: (type(param), dict(vars(param)), param.shape, param.dtype, param.device)
        for name, param in layer.named_parameters(recurse=False)
    }


def kernel_tensors(
    layer: torch.nn.Module,
) -> Iterator[Tuple[Any, str, torch.Tensor]]:
    """Every tensor that a processed layer computes with, and what holds it."""
    import torch

    for name, param in layer.named_parameters(recurse=False):
        yield layer, name, param
    for owner in (layer, layer.scheme):
        for name, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                yield owner, name, value


def load_and_note(
    loader: Any, filled: set[str], name: str, *args: Any, **kwargs: Any
) -> Any:
    """Load into a parameter and note that something was."""
    filled.add(name)
    return loader(*args, **kwargs)


def checkpoint_parameter(
    form: Tuple[Any, ...], kernel: Any, name: str, filled: set[str]
) -> torch.nn.Parameter:
    """A parameter as the checkpoint stores it, over the kernel's memory where it fits.

    ``filled`` gets its name once something is loaded into it.
    """
    from functools import partial

    import torch
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        load_and_note,
    )

    cls, attributes, shape, dtype, device = form
    attributes = dict(attributes)
    size = shape.numel() * dtype.itemsize
    if kernel is not None and kernel.untyped_storage().nbytes() == size:
        data = torch.empty(0, dtype=dtype, device=kernel.device)
        data.set_(kernel.untyped_storage(), 0, shape)
    else:
        data = torch.empty(shape, dtype=dtype, device=device)
        # What the schemes mark a scale with that no shard has filled.
        if dtype == torch.float32:
            data.fill_(torch.finfo(dtype).min)
    for key in ("_weight_loader", "weight_loader"):
        if attributes.get(key) is not None:
            attributes[key] = partial(load_and_note, attributes[key], filled, name)
    param = torch.Tensor._make_subclass(cls, data, False)
    vars(param).update(attributes)
    return param


def sampled_bytes(param: torch.Tensor) -> torch.Tensor:
    """Some bytes of a parameter's memory, to see whether it was written to."""
    import torch

    storage = param.untyped_storage()
    data = torch.empty(0, dtype=torch.uint8, device=param.device).set_(storage)
    return data[:: max(1, len(data) // 4096)].clone()


def restore_layer(layer: torch.nn.Module) -> None:
    """Give a processed layer the parameters that a checkpoint can be loaded into."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        checkpoint_parameter,
        kernel_tensors,
        sampled_bytes,
    )

    layer.kernel_tensors = list(kernel_tensors(layer))
    layer.filled_parameters = set()
    layer.restored_bytes = {}
    for name, form in layer.checkpoint_forms.items():
        kernel = getattr(layer, name, None)
        cls, attributes, shape, dtype, _ = form
        kept = kernel is not None and vars(kernel).keys() == attributes.keys()
        if kept and (type(kernel), kernel.shape, kernel.dtype) == (cls, shape, dtype):
            continue
        param = checkpoint_parameter(form, kernel, name, layer.filled_parameters)
        layer.register_parameter(name, param)
        layer.restored_bytes[name] = sampled_bytes(param)


def reprocess_layer(layer: torch.nn.Module) -> None:
    """Process what was loaded into a restored layer, into the tensors it had.

    Captured graphs and a draft that shares the layer go on reading those. A layer
    that nothing was loaded into gets them back as they are: a draft's reload visits
    the head that it shares and brings nothing for it. Raises ValueError where only
    part of a layer was loaded.
    """
    import torch
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        sampled_bytes,
    )

    filled, sampled = layer.filled_parameters, layer.restored_bytes
    missing = sorted(sampled.keys() - filled)
    if filled and missing:
        raise ValueError(
            f"A weight update brings {', '.join(sorted(filled))} of a quantized "
            f"{type(layer).__name__} without its {', '.join(missing)}."
        )
    # Some updates write to the parameters past their loaders.
    loaded = filled or any(
        not torch.equal(sampled_bytes(getattr(layer, name)), before)
        for name, before in sampled.items()
    )
    if loaded:
        layer.scheme.process_weights_after_loading(layer)
    for owner, name, old in layer.kernel_tensors:
        new = getattr(owner, name, None)
        if loaded and new is not None and new is not old:
            if (new.shape, new.dtype) != (old.shape, old.dtype):
                continue
            old.data.copy_(new.data)
        setattr(owner, name, old)
    del layer.kernel_tensors, layer.filled_parameters, layer.restored_bytes


def restore_weights_before_loading(self: Any, layer: torch.nn.Module) -> None:
    """Undo a processed layer's layout so that a checkpoint fits it again."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        restore_layer,
    )

    processed = hasattr(layer, "checkpoint_forms")
    if processed and not hasattr(layer, "kernel_tensors"):
        restore_layer(layer)


def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> Any:
    """Process a layer once for each load.

    A head is visited by the loader of each model that shares it.
    """
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        checkpoint_forms,
        reprocess_layer,
    )

    if hasattr(layer, "checkpoint_forms"):
        if hasattr(layer, "kernel_tensors"):
            reprocess_layer(layer)
        return None
    layer.checkpoint_forms = checkpoint_forms(layer)
    return CONTINUE


def _probe() -> bool:
    import torch
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsLinearMethod,
    )

    def process(layer: torch.nn.Module) -> None:
        layer.weight = torch.nn.Parameter(layer.weight.data + 1, requires_grad=False)

    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.zero_()
    layer.scheme = SimpleNamespace(process_weights_after_loading=process)
    method = CompressedTensorsLinearMethod(None)
    method.process_weights_after_loading(layer)
    return probes.gives(None, method.process_weights_after_loading, layer) and (
        layer.weight.item() == 1
    )


PATCH = Patch(
    name="compressed-tensors-reload",
    symptom="`update_weights_from_disk` on a compressed-tensors target ends in shapes "
    "that do not fit: the layers keep their kernel's layout, which no checkpoint "
    "loads into, and a shared head is repacked once more by the draft's reload "
    "(FAULTS H10).",
    upstream="#35403",
    removal="when CompressedTensorsLinearMethod restores its layers before loading",
    probe=_probe,
    seams=(
        *(
            Addition(target=f"{MODULE}:{addition.__name__}", function=addition)
            for addition in (
                checkpoint_forms,
                kernel_tensors,
                load_and_note,
                checkpoint_parameter,
                sampled_bytes,
                restore_layer,
                reprocess_layer,
            )
        ),
        Addition(
            target=f"{_METHOD}.restore_weights_before_loading",
            function=restore_weights_before_loading,
        ),
        Guard(
            target=f"{_METHOD}.process_weights_after_loading",
            function=process_weights_after_loading,
            fingerprints={
                "0.5.23": "9649f5f3156061001ea82ffd47a44dcb"
                "d8397f2118a11ecffb5e8be8bacfee6f",
            },
        ),
    ),
    title="compressed-tensors: load a processed layer again",
    cost="A dictionary a layer at load; a weight update reuses the layers' memory.",
    tests=("unit/spec/test_lm_head_loading_reload.py",),
)
