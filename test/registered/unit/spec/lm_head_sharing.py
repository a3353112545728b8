"""Targets, drafts and heads for the tests of sharing: real classes, few tensors."""

import contextlib
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle
from sglang.srt.speculative.eagle_worker_v2 import EagleDraftWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

VOCAB, HIDDEN = 200, 32
# Codes under ``weight_packed``, or under ``weight`` in a dtype.
KINDS = ("weight_packed", "float8_e4m3fn", "int8", "uint8", "int32", "scaled bfloat16")


class ScalingMethod:
    """Multiplies with codes and their scales, as no product with a tensor would."""

    def apply(self, layer, x, bias=None):
        codes = next(t for n, t in layer.named_parameters() if n != "weight_scale")
        return x.float() @ (codes.float() * layer.weight_scale).T


def quantized_head(kind):
    """A target's head of one of ``KINDS``."""
    head = torch.nn.Module()
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 5, (VOCAB, HIDDEN), generator=generator)
    packed = kind == "weight_packed"
    dtype = torch.int32 if packed else getattr(torch, kind.split()[-1])
    codes = torch.nn.Parameter(codes.to(dtype), requires_grad=False)
    head.register_parameter(kind if packed else "weight", codes)
    scale = torch.arange(1.0, VOCAB + 1).unsqueeze(1)
    head.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
    head.quant_method = ScalingMethod()
    return head


def own_packed_head():
    """The packed head of a draft that has one, as loading leaves it."""
    head = ParallelLMHead(VOCAB, HIDDEN)
    del head.weight
    codes = torch.zeros(VOCAB, HIDDEN // 4, dtype=torch.int32)
    head.weight_packed = torch.nn.Parameter(codes, requires_grad=False)
    head.quant_method = ScalingMethod()
    return head


def make_model(model_class, lm_head, tied=False):
    """A real model class with the modules that sharing touches."""
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    model.config = SimpleNamespace(tie_word_embeddings=tied)
    model.model = torch.nn.Module()
    model.model.embed_tokens = VocabParallelEmbedding(VOCAB, HIDDEN)
    model.lm_head = model.model.embed_tokens if tied else lm_head
    return model


def make_target(lm_head):
    """A target whose accessor reads ``lm_head.weight``, as that of most classes."""
    return make_model(LlamaForCausalLM, lm_head)


def make_draft(draft_class=LlamaForCausalLMEagle, lm_head=None, tied=False):
    """A draft with a dense head, unless one is given."""
    return make_model(draft_class, lm_head or ParallelLMHead(VOCAB, HIDDEN), tied)


def runner(model, path="target"):
    """The part of a model runner that sharing reads."""
    config = SimpleNamespace(model_path=path, revision=None)
    return SimpleNamespace(model=model, model_config=config, load_config=None)


def init_lm_head(
    target,
    draft,
    algorithm="EAGLE",
    hot_token_id=None,
    path="target",
    collect=False,
):
    """Share through the real worker; ``path`` is the draft's checkpoint.

    Without ``collect`` it skips the garbage collection, which takes a second in a
    process that has imported SGLang's models.
    """
    worker = EagleDraftWorker.__new__(EagleDraftWorker)
    worker.target_worker = SimpleNamespace(model_runner=runner(target))
    worker.draft_runner = runner(draft, path)
    worker.speculative_algorithm = SpeculativeAlgorithm.from_string(algorithm)
    worker.hot_token_id = hot_token_id
    with contextlib.nullcontext() if collect else mock.patch("gc.collect"):
        worker.init_lm_head()
