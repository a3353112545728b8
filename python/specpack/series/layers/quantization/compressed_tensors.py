"""A head's scheme by the tensors that the checkpoint holds for it.

Where the quantization config and those tensors agree, and where they are unknown,
SGLang's own resolution runs untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple

from specpack.seams import CONTINUE

if TYPE_CHECKING:
    import torch

MODULE = "sglang.srt.layers.quantization.compressed_tensors.compressed_tensors"


def find_stored_module(
    stored: dict[str, dict[str, Any]], path: Optional[str]
) -> dict[str, Tuple[str, Tuple[int, ...]]]:
    """The tensors that a checkpoint holds for the module at a dotted path.

    Names and paths may differ in what stands before the module, as checkpoints of
    multimodal models do. ``{}`` where there is none, or more than one that fits.
    """
    if not path or path in stored:
        return stored.get(path, {})
    fitting = [
        tensors
        for name, tensors in stored.items()
        if (name.endswith(f".{path}") or path.endswith(f".{name}"))
        and ("mtp" in name.split(".")) == ("mtp" in path.split("."))
    ]
    return fitting[0] if len(fitting) == 1 else {}


def is_stored_dense(tensors: dict[str, Tuple[str, Tuple[int, ...]]]) -> bool:
    """Whether a module's ``weight`` is floats, whatever an exporter left beside it."""
    dtype, _ = tensors.get("weight", ("", ()))
    return dtype in ("BF16", "F16", "F32")


def is_stored_quantized(tensors: dict[str, Tuple[str, Tuple[int, ...]]]) -> bool:
    """Whether a module's stored weight is codes; a bias alone is neither."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        is_stored_dense,
    )

    return "weight_packed" in tensors or (
        "weight" in tensors and not is_stored_dense(tensors)
    )


def named_lm_head_target(config: Any, path: Optional[str]) -> Optional[str]:
    """The target by which a config promises a quantized head, or None."""
    from sglang.srt.layers.quantization.compressed_tensors.utils import (
        check_equal_or_regex_match,
        should_ignore_layer,
    )

    if should_ignore_layer(path, config.ignore, config.packed_modules_mapping):
        return None
    for target in config.target_scheme_map:
        if check_equal_or_regex_match(path, [target]):
            return target
    return None


def scheme_tensors(
    weights: Any, weight_format: str, rows: int, columns: int
) -> dict[str, Tuple[str, Tuple[int, ...]]]:
    """The tensors, dtypes and shapes that a scheme stores a ``[rows, columns]`` in."""
    packed = "pack" in weight_format
    kind = "int" if weights.type == "int" else "float"
    dtype = {
        ("int", True): "I32",
        ("int", False): "I8",
        ("float", True): "U8",
        ("float", False): "F8_E4M3",
    }[kind, packed]
    width = {"I32": 32, "U8": 8}.get(dtype, weights.num_bits)
    stored = {
        "weight_packed" if packed else "weight": (
            dtype,
            (rows, -(-columns * weights.num_bits // width)),
        )
    }
    if weights.strategy == "tensor":
        scale = (1,)
    elif weights.strategy == "block":
        block_rows, block_columns = weights.block_structure
        scale = (-(-rows // block_rows), -(-columns // block_columns))
    else:
        scale = (rows, columns // (weights.group_size or columns))
    stored["weight_scale"] = ("", scale)
    if not weights.symmetric:
        stored["weight_zero_point"] = ("", ())
    if weights.actorder == "group":
        stored["weight_g_idx"] = ("", (columns,))
    if weights.strategy == "tensor_group":
        stored["weight_global_scale"] = ("", (1,))
    return stored


def without_ones(shape: Tuple[int, ...]) -> Tuple[int, ...]:
    """A shape without its trailing ones, in which exporters differ."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def scheme_fits(
    weights: Any,
    weight_format: str,
    columns: int,
    tensors: dict[str, Tuple[str, Tuple[int, ...]]],
) -> bool:
    """Whether a module's stored tensors are those of a scheme, and no other's."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        scheme_tensors,
        without_ones,
    )

    codes = tensors.get("weight_packed", tensors.get("weight"))
    if codes is None or not codes[1]:
        return False
    expected = scheme_tensors(weights, weight_format, codes[1][0], columns)
    # Exporters write these for schemes that have no use for them.
    optional = {"bias", "weight_shape", "input_scale", "input_global_scale"}
    if tensors.keys() - optional - {"output_scale"} != expected.keys():
        return False
    for name, (dtype, shape) in expected.items():
        stored_dtype, stored_shape = tensors[name]
        if dtype and stored_dtype != dtype:
            return False
        if shape and without_ones(stored_shape) != without_ones(shape):
            return False
    return True


def scheme_by_shapes(
    columns: int, tensors: dict[str, Tuple[str, Tuple[int, ...]]]
) -> Optional[dict[str, Any]]:
    """The weight-only integer scheme that packed tensors alone give away, or None."""
    from compressed_tensors.quantization import QuantizationArgs
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        scheme_fits,
    )

    dtype, codes = tensors.get("weight_packed", ("", ()))
    _, scale = tensors.get("weight_scale", ("", ()))
    if dtype != "I32" or len(codes) != 2 or len(scale) != 2 or not scale[1]:
        return None
    groups = scale[1]
    weights = QuantizationArgs(
        num_bits=max(1, 32 * codes[1] // columns),
        type="int",
        symmetric="weight_zero_point" not in tensors,
        strategy="channel" if groups == 1 else "group",
        group_size=None if groups == 1 else columns // groups,
    )
    if not scheme_fits(weights, "pack-quantized", columns, tensors):
        return None
    return {"weights": weights, "input_activations": None, "format": "pack-quantized"}


def describe_stored(tensors: dict[str, Tuple[str, Tuple[int, ...]]]) -> str:
    """A module's stored tensors, for messages."""
    return ", ".join(
        f"{name} {dtype} {list(shape)}" for name, (dtype, shape) in tensors.items()
    )


def describe_lm_head_config(config: Any, path: str) -> str:
    """The line of a config that decides over a head, for messages."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        named_lm_head_target,
    )
    from sglang.srt.layers.quantization.compressed_tensors.utils import (
        check_equal_or_regex_match,
    )

    for entry in config.ignore:
        if check_equal_or_regex_match(path, [entry]):
            return f"`ignore` lists it as {entry!r}"
    target = named_lm_head_target(config, path)
    if target is not None:
        weights = config.target_scheme_map[target]["weights"]
        kind = "int" if weights.type == "int" else "float"
        return f"the target {target!r} names it as {weights.num_bits}-bit {kind}"
    return f"no target names it, of {list(config.target_scheme_map)}"


def fitting_schemes(
    config: Any, columns: int, tensors: dict[str, Tuple[str, Tuple[int, ...]]]
) -> list[dict[str, Any]]:
    """The schemes that a head's tensors are stored in: of the config, else by shapes."""
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        scheme_by_shapes,
        scheme_fits,
    )

    fitting = []
    for scheme in config.target_scheme_map.values():
        weights = scheme.get("weights")
        weight_format = scheme.get("format") or config.quant_format or ""
        fits = weights is not None and scheme_fits(
            weights, weight_format, columns, tensors
        )
        if fits and scheme not in fitting:
            fitting.append(scheme)
    guessed = None if fitting else scheme_by_shapes(columns, tensors)
    return fitting if guessed is None else [guessed]


def stored_lm_head_scheme(
    config: Any,
    layer: torch.nn.Module,
    path: str,
    tensors: dict[str, Tuple[str, Tuple[int, ...]]],
) -> Any:
    """The scheme of a head that is stored quantized, and not as the config says.

    Raises ValueError where its tensors fit none or several.
    """
    import copy

    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        describe_lm_head_config,
        describe_stored,
        fitting_schemes,
        logger,
    )

    fitting = fitting_schemes(config, layer.embedding_dim, tensors)
    contradiction = (
        f"The checkpoint stores {path} quantized ({describe_stored(tensors)}), and in "
        f"its quantization_config {describe_lm_head_config(config, path)}"
    )
    blocks = bool(fitting) and fitting[0]["weights"].block_structure
    if len(fitting) != 1 or blocks:
        reason = f"{len(fitting)} of its schemes fit these tensors"
        if blocks:
            reason = "Block-quantized heads are not supported"
        raise ValueError(
            f"{contradiction}. {reason}. Name the head in the targets of the group "
            "that it was quantized with, or store it dense."
        )
    logger.warning(f"{contradiction}. It is built as it is stored.")
    resolved = copy.copy(config)
    resolved.ignore = []
    resolved.target_scheme_map = {path: fitting[0]}
    return resolved.get_linear_scheme(layer=layer, layer_name=path, matched_target=path)


def get_lm_head_scheme(
    self: Any, layer: torch.nn.Module, layer_name: Optional[str] = None
) -> Any:
    """Follow the tensors that the checkpoint holds where the config denies them.

    A target that names the head keeps its word unless one other scheme fits them.
    """
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        describe_lm_head_config,
        describe_stored,
        find_stored_module,
        fitting_schemes,
        is_stored_dense,
        is_stored_quantized,
        logger,
        named_lm_head_target,
        stored_lm_head_scheme,
    )

    tensors = find_stored_module(getattr(self, "stored_modules", {}), layer_name)
    if is_stored_quantized(tensors):
        target = named_lm_head_target(self, layer_name)
        fitting = fitting_schemes(self, layer.embedding_dim, tensors)
        if target is None or (
            len(fitting) == 1 and fitting[0] != self.target_scheme_map[target]
        ):
            return stored_lm_head_scheme(self, layer, layer_name, tensors)
    elif is_stored_dense(tensors):
        if named_lm_head_target(self, layer_name) is not None:
            logger.warning(
                f"The checkpoint stores {layer_name} dense "
                f"({describe_stored(tensors)}), and in its quantization_config "
                f"{describe_lm_head_config(self, layer_name)}. It is built dense."
            )
            return None
    return CONTINUE


ADDITIONS = (
    find_stored_module,
    is_stored_dense,
    is_stored_quantized,
    named_lm_head_target,
    scheme_tensors,
    without_ones,
    scheme_fits,
    scheme_by_shapes,
    describe_stored,
    describe_lm_head_config,
    fitting_schemes,
    stored_lm_head_scheme,
)
