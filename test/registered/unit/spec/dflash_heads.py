"""Target heads for DFlash tests, with an exact product in place of their kernels.

The product has integer values, so that two orders of summation agree to the bit. Its
padded rows would win every top-k, and it hands its logits back as a strided view.
"""

from unittest import mock

import torch
from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
    CompressedTensorsConfig,
)
from sglang.srt.layers.quantization.modelopt_quant import (
    ModelOptFp4Config,
    ModelOptFp8Config,
)
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead

HIDDEN, VOCAB, TOP_K = 256, 200, 4  # VOCAB is not a multiple of 64
W8A16 = {
    "format": "pack-quantized",
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "targets": ["re:.*lm_head"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 128,
            },
        }
    },
    "ignore": [],
}
FP4 = {
    "kv_cache_quant_algo": None,
    "group_size": 16,
    "ignore": [],
    "quant_method": "modelopt",
}


def values():
    """One row a token, and its top-k without ties."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-8, 9, (VOCAB, HIDDEN), generator=generator).float()


def hidden(rows=6):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-8, 9, (rows, HIDDEN), generator=generator).float()


class ExactProduct:
    """In place of a quant method: this shard's rows, and padding above them all."""

    def __init__(self, lm_head):
        shard = lm_head.shard_indices
        rows = slice(shard.org_vocab_start_index, shard.org_vocab_end_index)
        self.padding = lm_head.num_embeddings_per_partition - (rows.stop - rows.start)
        self.matrix = values()[rows]

    def apply(self, layer, x, bias=None):
        logits = x.float() @ self.matrix.T
        highest = torch.full((len(x), self.padding + 1), 1e6)
        return torch.cat([logits, highest], dim=-1)[:, :-1]


def make_head(kind):
    """A head as its loader leaves it, as far as the gate looks, and the product."""
    configs = {
        "packed": lambda: CompressedTensorsConfig.from_config(W8A16),
        "W4A4": lambda: ModelOptFp4Config.from_config({**FP4, "quant_algo": "NVFP4"}),
        "W4A16": lambda: ModelOptFp4Config.from_config(
            {**FP4, "quant_algo": "W4A16_NVFP4"}
        ),
        "FP8": lambda: ModelOptFp8Config.from_config(
            {"quant_algo": "FP8", "exclude_modules": [], "quant_method": "modelopt"}
        ),
        "dense": lambda: None,
    }
    config = configs[kind]()
    if config is not None:
        config.packed_modules_mapping = {}
    # The scheme asks for the CUDA capability of this machine.
    supported = "_check_scheme_supported"
    with mock.patch.object(CompressedTensorsConfig, supported, return_value=True):
        head = ParallelLMHead(
            VOCAB,
            HIDDEN,
            quant_config=config,
            prefix="lm_head",
            params_dtype=torch.float,
        )
    product = ExactProduct(head)
    if kind == "dense":
        head.weight.data.fill_(7)
        head.weight.data[: len(product.matrix)] = product.matrix
        return head
    if kind == "W4A4":
        head.weight_scale_interleaved = head.alpha = torch.ones(1)
        head.input_scale_inv = torch.ones(1)
    elif kind == "W4A16":
        head.weight = torch.nn.Parameter(torch.zeros(16, 16).int(), requires_grad=False)
        head.weight_global_scale = head.workspace = torch.zeros(1)
    head.input_size_per_partition, head.output_size_per_partition = HIDDEN, VOCAB
    head.quant_method.apply = product.apply
    return head
