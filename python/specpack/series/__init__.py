"""The patch series, in the order in which it is applied and exported.

Importable without SGLang and torch: patches import both inside function bodies.
"""

from __future__ import annotations

from specpack.seams import Patch
from specpack.series.layers import logits_processor, vocab_parallel_embedding
from specpack.series.layers.quantization import (
    compressed_tensors_mtp,
    compressed_tensors_reload,
)
from specpack.series.managers.scheduler_components import metrics_reporter
from specpack.series.model_loader import lm_head, loader
from specpack.series.models import dflash, dflash_loading, qwen3_5_text
from specpack.series.speculative import (
    dflash_utils,
    eagle_worker_v2,
    multi_layer_eagle_worker_v2,
    pp_draft_embedding,
    spec_utils,
)

SERIES: tuple[Patch, ...] = (
    spec_utils.PATCH,
    logits_processor.GATE,
    logits_processor.LOGITS,
    qwen3_5_text.LOADING,
    lm_head.STORED,
    lm_head.BUILDING,
    compressed_tensors_mtp.PATCH,
    compressed_tensors_reload.PATCH,
    vocab_parallel_embedding.PATCH,
    spec_utils.SHARING,
    pp_draft_embedding.PATCH,
    eagle_worker_v2.PATCH,
    multi_layer_eagle_worker_v2.PATCH,
    dflash.BUILDING,
    dflash.FUSED,
    dflash.LAGUNA,
    dflash_loading.MATCHING,
    dflash_loading.FC,
    loader.PATCH,
    dflash_utils.PATCH,
    metrics_reporter.PATCH,
)
