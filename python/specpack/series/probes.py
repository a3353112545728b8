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
