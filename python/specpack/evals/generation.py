"""Greedy completions of one server, one request at a time, and what they measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specpack.evals.server import Server, ServerError


@dataclass(frozen=True)
class Completion:
    """One answer; the counters are 0 on a server without speculation."""

    token_ids: tuple[int, ...]
    text: str
    num_correct_drafts: int
    spec_verify_ct: int


def complete(server: Server, prompt: str, max_tokens: int) -> Completion:
    answer = server.generate(prompt, temperature=0, max_new_tokens=max_tokens)
    meta = answer["meta_info"]
    return Completion(
        token_ids=tuple(answer["output_ids"]),
        text=answer["text"],
        num_correct_drafts=meta.get("spec_num_correct_drafts", 0),
        spec_verify_ct=meta.get("spec_verify_ct", 0),
    )


def complete_all(
    server: Server,
    prompts: Sequence[str],
    max_tokens: int,
    tick: Callable[[], None] = lambda: None,
) -> list[Completion]:
    """Complete the prompts in order; ``tick`` is called after each."""
    completions = []
    for prompt in prompts:
        completions.append(complete(server, prompt, max_tokens))
        tick()
    return completions


def accept_length(completions: Sequence[Completion]) -> float:
    """Tokens a verify step yields, bonus token included, pooled over all requests.

    Raises:
        ServerError: no verify step was counted: the server does not speculate.
    """
    steps = sum(c.spec_verify_ct for c in completions)
    if steps == 0:
        raise ServerError("the server counted no verify step: nothing was speculated")
    return 1 + sum(c.num_correct_drafts for c in completions) / steps


def agreement(left: Sequence[Completion], right: Sequence[Completion]) -> int:
    """How many completions have the same token ids on both sides."""
    pairs = zip(left, right, strict=True)
    return sum(a.token_ids == b.token_ids for a, b in pairs)
