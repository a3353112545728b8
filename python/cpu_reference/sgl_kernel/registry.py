"""Registers our functions as ``torch.ops.sgl_kernel`` operators."""

from __future__ import annotations

from typing import Any, Callable

import torch

NAMESPACE = "sgl_kernel"
DISTRIBUTION = "sglang-cpu-reference"

# "DEF" claims the namespace: a real sglang-kernel beside ours fails at once.
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def operator(schema: str) -> Callable[[Callable[..., Any]], Any]:
    """Register a function under ``schema`` and put the operator in its place.

    The schema is where argument names, defaults and mutations are declared; an
    operator may not return a view of an argument.
    """
    name = schema.partition("(")[0]

    def register(function: Callable[..., Any]) -> Any:
        _LIBRARY.define(schema)
        _LIBRARY.impl(name, function, "CPU")
        return getattr(getattr(torch.ops, NAMESPACE), name)

    return register


def not_provided(what: str, detail: str) -> NotImplementedError:
    """Return the error for a name, or for a use of one, that we leave out."""
    return NotImplementedError(
        f"{NAMESPACE}.{what} is not provided by {DISTRIBUTION} ({detail})"
    )
