"""Target heads as SGLang builds them: dense, packed, with codes, under each method."""

import contextlib
from unittest import mock

import torch
from sglang.srt.layers.quantization.awq import AWQMarlinConfig
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.gguf import GGUFConfig
from sglang.srt.layers.quantization.gptq import GPTQMarlinConfig
from sglang.srt.layers.quantization.modelopt_quant import (
    ModelOptFp4Config,
    ModelOptFp4LinearMethod,
    ModelOptFp8Config,
    ModelOptFp8LinearMethod,
)
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

HIDDEN = 256
VOCAB = 200  # not a multiple of the padding, 64
_QUANT = "sglang.srt.layers.quantization"
# They ask for this machine's CUDA capability, and the last for attributes of a
# linear layer.
_MARLIN_CHECKS = (
    f"{_QUANT}.gptq.schemes.gptq_marlin.verify_marlin_supported",
    f"{_QUANT}.awq.awq.verify_marlin_supported",
    f"{_QUANT}.awq.awq.check_marlin_supports_layer",
)


def undecorated(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def make_head(quant_config=None, vocab=VOCAB, dtype=torch.bfloat16):
    if quant_config is not None:
        quant_config.packed_modules_mapping = {}
    return ParallelLMHead(
        vocab,
        HIDDEN,
        quant_config=quant_config,
        prefix="lm_head",
        params_dtype=dtype,
    )


def compressed_tensors_head(num_bits=8, **weights):
    group = {
        "targets": ["re:.*lm_head"],
        "weights": {
            "num_bits": num_bits,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": 128,
            **weights,
        },
    }
    config = CompressedTensorsConfig.from_config(
        {
            "format": "pack-quantized",
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": group},
            "ignore": [],
        }
    )
    # The scheme asks for the CUDA capability of this machine.
    with mock.patch.object(config, "_check_scheme_supported", return_value=True):
        return make_head(config)


def qweight_head(config_class, **config):
    fields = {"bits": 4, "group_size": 128, "lm_head": True, **config}
    with contextlib.ExitStack() as stack:
        for target in _MARLIN_CHECKS:
            stack.enter_context(mock.patch(target))
        return make_head(
            config_class.from_config(fields), vocab=256, dtype=torch.float16
        )


def packed_heads():
    return {
        "compressed-tensors W8A16": compressed_tensors_head(),
        "compressed-tensors W4A16": compressed_tensors_head(num_bits=4),
        "compressed-tensors W8A16 per channel": compressed_tensors_head(
            strategy="channel", group_size=None
        ),
        "GPTQ": qweight_head(
            GPTQMarlinConfig, desc_act=False, sym=True, quant_method="gptq"
        ),
        "AWQ": qweight_head(AWQMarlinConfig, zero_point=True, quant_method="awq"),
        "GGUF": make_head(GGUFConfig(), vocab=256, dtype=torch.float16),
    }


def modelopt_head(kind):
    if kind == "FP8":
        return make_head(
            ModelOptFp8Config.from_config(
                {"quant_algo": "FP8", "exclude_modules": [], "quant_method": "modelopt"}
            )
        )
    algo = {"W4A4": "NVFP4", "W4A16": "W4A16_NVFP4"}[kind]
    return make_head(
        ModelOptFp4Config.from_config(
            {
                "quant_algo": algo,
                "kv_cache_quant_algo": None,
                "group_size": 16,
                "ignore": [],
                "quant_method": "modelopt",
            }
        )
    )


def as_marlin(head):
    """The attributes and dtype that repacking for FP4 Marlin leaves on a head."""
    weight = torch.zeros(16, 16, dtype=torch.int32)
    head.weight = torch.nn.Parameter(weight, requires_grad=False)
    head.weight_global_scale = head.workspace = torch.zeros(1)
    head.input_size_per_partition = HIDDEN
    head.output_size_per_partition = VOCAB
    return head


def as_cutlass(head):
    """The attributes that loading for the W4A4 kernels leaves on a head."""
    head.weight_scale_interleaved = head.alpha = head.input_scale_inv = torch.ones(1)
    head.input_size_per_partition = HIDDEN
    head.output_size_per_partition = VOCAB
    return head


def stale_w4a16():
    """The method that the W4A4 class is when it serves weight-only."""
    method = object.__new__(ModelOptFp4LinearMethod)
    method.quant_mode = "w4a16"
    return method


FLOATS = (torch.float16, torch.bfloat16, torch.float32)
CODES = (torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int32)


class UnknownPlainMethod:
    """What another package might apply a dense weight with."""

    def apply(self, layer, x, bias=None):
        raise AssertionError("a dense weight went through its method")


class UnknownLinearMethod(UnquantizedLinearMethod):
    pass


class UnknownQuantMethod:
    """A quant method that SGLang does not know."""

    def apply(self, layer, x, bias=None):
        return x.float() @ (layer.weight.float() * layer.weight_scale).T


class UnknownFp8Method(ModelOptFp8LinearMethod):
    def __init__(self):
        pass


def under(method, head=None):
    head = head or make_head()
    head.quant_method = method
    return head


def scaled_head():
    """A float weight that its method scales."""
    head = under(UnknownQuantMethod())
    head.weight_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    return head


def codes_head(dtype):
    """Codes in ``.weight`` and the scales and method that they need."""
    head = scaled_head()
    codes = torch.zeros(VOCAB, HIDDEN).to(dtype)
    head.weight = torch.nn.Parameter(codes, requires_grad=False)
    return head
