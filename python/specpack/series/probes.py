"""What the probes share: the smallest packed head, and how a call's outcome is read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class MarkerMethod:
    """A quant method that answers with what it was given."""

    def apply(self, layer: Any, x: Any, bias: Any = None) -> tuple[Any, Any, Any]:
        return layer, x, bias


def packed_head() -> Any:
    """A head module with packed codes and no `.weight`."""
    import torch

    head = torch.nn.Module()
    codes = torch.zeros(2, 1, dtype=torch.int32)
    head.weight_packed = torch.nn.Parameter(codes, requires_grad=False)
    head.quant_method = MarkerMethod()
    return head


def model_with(lm_head: Any) -> Any:
    """A model on a single pipeline stage: an embedding, a head and their group."""
    return SimpleNamespace(
        model=SimpleNamespace(embed_tokens=SimpleNamespace(weight="embedding")),
        lm_head=lm_head,
        pp_group=SimpleNamespace(is_first_rank=True, is_last_rank=True),
        config=SimpleNamespace(tie_word_embeddings=False),
    )


def llama_with(lm_head: Any) -> Any:
    """A real model class, whose accessors read and set tensors, around a head."""
    import torch
    from sglang.srt.models.llama import LlamaForCausalLM

    model = LlamaForCausalLM.__new__(LlamaForCausalLM)
    torch.nn.Module.__init__(model)
    model.model = torch.nn.Module()
    model.model.embed_tokens = torch.nn.Embedding(2, 2)
    model.lm_head = lm_head
    model.config = SimpleNamespace(tie_word_embeddings=False)
    return model


def eagle_runners() -> tuple[Any, Any]:
    """The runners of a target with FP8 codes for a head, and of a dense draft."""
    import torch

    target, draft = (llama_with(torch.nn.Linear(2, 2, bias=False)) for _ in range(2))
    codes = target.lm_head.weight.data.to(torch.float8_e4m3fn)
    target.lm_head.weight = torch.nn.Parameter(codes, requires_grad=False)
    config = SimpleNamespace(model_path="", revision=None)
    return tuple(
        SimpleNamespace(model=model, model_config=config, load_config=None)
        for model in (target, draft)
    )


def gives(expected: Any, function: Callable[..., Any], *args: Any, **kw: Any) -> bool:
    """Whether a call returns `expected`; raising counts as no."""
    try:
        return function(*args, **kw) == expected
    except Exception:
        return False


def names_the_head(function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call is refused with an error that speaks of the `lm_head`."""
    try:
        function(*args)
    except AttributeError:
        return False
    except Exception as error:
        return "lm_head" in str(error)
    return False


def raises(kind: type[Exception], function: Callable[..., Any], *args: Any) -> bool:
    """Whether a call raises this kind of error and no other."""
    try:
        function(*args)
    except kind:
        return True
    except Exception:
        return False
    return False


def dflash_config(**fields: Any) -> Any:
    """The config of the smallest DFlash draft."""
    from transformers import PretrainedConfig

    return PretrainedConfig(
        hidden_size=2,
        num_hidden_layers=1,
        block_size=2,
        dflash_config={"target_layer_ids": [0], "mask_token_id": 0},
        **fields,
    )


def dflash_draft() -> Any:
    """A DFlash draft of one dense `fc` and one layer that is a linear."""
    import torch
    from sglang.srt.models.dflash import DFlashDraftModel

    draft = DFlashDraftModel.__new__(DFlashDraftModel)
    torch.nn.Module.__init__(draft)
    draft.fc = torch.nn.Linear(2, 2, bias=False)
    draft.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False)])
    draft.config = dflash_config()
    draft.num_context_features = 1
    draft.projector_type = "dflash"
    draft.is_nemotron_35_draft = draft.describes_quantization = False
    return draft
