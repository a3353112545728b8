"""Attention over the paged cache against a plain float64 loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from sgl_kernel import attention, decode_attention_cpu, extend_attention_cpu
from torch import Tensor

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 8, 8
SCALE = DIM**-0.5
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Cache:
    """Requests whose positions are scattered over a pool, and attention on them."""

    lengths: list[int]
    dtype: torch.dtype = torch.float32
    size: int = 60
    keys: Tensor = field(init=False)
    values: Tensor = field(init=False)
    table: Tensor = field(init=False)
    rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.keys = normal(self.size, KV_HEADS, DIM, seed=1, dtype=self.dtype)
        self.values = normal(self.size, KV_HEADS, VALUE_DIM, seed=2, dtype=self.dtype)
        free = torch.randperm(
            self.size, generator=torch.Generator().manual_seed(3)
        ).tolist()
        self.rows = torch.arange(len(self.lengths)).flip(0) + 1
        self.table = torch.zeros(len(self.lengths) + 1, 32, dtype=torch.int32)
        for row, length in zip(self.rows.tolist(), self.lengths):
            slots = [free.pop() for _ in range(length)]
            self.table[row, :length] = torch.tensor(slots)

    def slots(self, request: int) -> Tensor:
        return self.table[self.rows[request], : self.lengths[request]].long()

    def attend(
        self,
        request: int,
        query: Tensor,
        seen: list[int],
        cap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend from one query ``[heads, dim]`` to the positions ``seen``."""
        slots, outs = self.slots(request)[seen], []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            keys = self.keys[slots, shared].double()
            scores = keys @ query[head].double() * SCALE
            if cap:
                scores = cap * (scores / cap).tanh()
            weights = scores.exp()
            total = weights.sum()
            if sinks is not None:
                total = total + sinks[head].double().exp()
            values = self.values[slots, shared].double()
            outs.append((weights / total) @ values)
        return torch.stack(outs)


def extend(
    cache: Cache, queries: Tensor, new: list[int], given: bool = True, **options
) -> Tensor:
    """Run the operator; ``given`` passes the new keys and blanks them in the pool."""
    starts = torch.tensor([0, *new]).cumsum(0)[:-1].int()
    keys, values, k, v = cache.keys.clone(), cache.values.clone(), None, None
    if given:
        slots = [cache.slots(r)[len(cache.slots(r)) - n :] for r, n in enumerate(new)]
        k, v = (pool[torch.cat(slots)].flatten(1) for pool in (keys, values))
        keys[torch.cat(slots)] = values[torch.cat(slots)] = float("nan")
    out = torch.empty_like(queries)
    extend_attention_cpu(
        queries,
        k,
        v,
        out,
        keys,
        values,
        1.0,
        1.0,
        cache.table,
        cache.rows,
        torch.tensor(cache.lengths),
        torch.tensor(new, dtype=torch.int32),
        starts,
        max(new),
        SCALE,
        options.pop("cap", 0.0),
        options.pop("is_cross_attn", False),
        options.pop("window", 0),
        None,
        options.pop("sinks", None),
        options.pop("tree", None),
        options.pop("causal", True),
    )
    return out


def check_extend(cache: Cache, new: list[int], seen_by, **options) -> None:
    """Compare with the loop; ``seen_by(request, place, prefix)`` lists positions."""
    queries = normal(sum(new), HEADS, DIM, seed=4, dtype=cache.dtype)
    scoring = {n: options[n] for n in ("cap", "sinks") if n in options}
    out, token = extend(cache, queries, new, **options), 0
    for request, count in enumerate(new):
        prefix = cache.lengths[request] - count
        for place in range(count):
            seen = seen_by(request, place, prefix)
            expected = cache.attend(request, queries[token], seen, **scoring)
            tolerance = TOLERANCE[cache.dtype]
            torch.testing.assert_close(
                out[token].double(), expected, atol=tolerance, rtol=tolerance
            )
            token += 1


def causal(request: int, place: int, prefix: int) -> list[int]:
    return list(range(prefix + place + 1))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(
    "lengths, new", [([9, 5, 12], [4, 5, 1]), ([9, 6], [3, 3]), ([4, 7], [0, 2])]
)
def test_extend_with_ragged_prefixes(
    dtype: torch.dtype, given: bool, lengths: list[int], new: list[int]
) -> None:
    check_extend(Cache(lengths, dtype), new, causal, given=given)


def test_extend_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SCORES_PER_BLOCK", 100)
    check_extend(Cache([20, 9]), [12, 7], causal)


@pytest.mark.parametrize("new", [[4, 4], [5, 2]])
def test_extend_with_a_sliding_window(new: list[int]) -> None:
    check_extend(
        Cache([11, 5]),
        new,
        lambda request, place, prefix: causal(request, place, prefix)[-3:],
        window=3,
    )


def test_extend_without_causality() -> None:
    cache = Cache([8, 5])
    check_extend(
        cache,
        [8, 5],
        lambda request, place, prefix: list(range(cache.lengths[request])),
        causal=False,
    )


def test_extend_with_cap_and_sinks() -> None:
    sinks = normal(HEADS, seed=9)
    check_extend(Cache([9, 4]), [3, 2], causal, cap=0.7, sinks=sinks)


@pytest.mark.parametrize("new", [[4, 4], [4, 2]])
def test_extend_with_a_tree_mask(new: list[int]) -> None:
    parents = [[-1, 0, 0, 2], [-1, 0, 1, 1]]
    ancestors: list[list[list[int]]] = []
    for request, count in enumerate(new):
        paths: list[list[int]] = []
        for node in range(count):
            parent = parents[request][node]
            paths.append(([] if parent < 0 else paths[parent]) + [node])
        ancestors.append(paths)
    tree = [
        torch.tensor([[j in path for j in range(count)] for path in paths])
        for paths, count in zip(ancestors, new)
    ]
    check_extend(
        Cache([9, 6]),
        new,
        lambda request, place, prefix: list(range(prefix))
        + [prefix + node for node in ancestors[request][place]],
        tree=torch.cat([x.flatten() for x in tree]),
    )


def test_uses_left_out_are_refused() -> None:
    cache, queries = Cache([3]), normal(2, HEADS, DIM, seed=4)
    with pytest.raises(NotImplementedError, match="cross attention"):
        extend(cache, queries, [2], is_cross_attn=True)
    with pytest.raises(NotImplementedError, match="sliding window"):
        extend(cache, queries, [2], window=2, tree=torch.ones(4, dtype=torch.bool))


def decode(cache: Cache, queries: Tensor, store: bool = False, **options) -> Tensor:
    keys, values, k, v, loc = cache.keys.clone(), cache.values.clone(), None, None, None
    if store:
        loc = torch.stack([cache.slots(r)[-1] for r in range(len(cache.lengths))])
        # As strided as the parts of one projection.
        k = torch.cat([keys[loc].flatten(1)] * 2, 1)[:, : KV_HEADS * DIM]
        v = values[loc]
        keys[loc] = values[loc] = float("nan")
    out = torch.empty_like(queries)
    decode_attention_cpu(
        queries,
        keys,
        values,
        options.get("scale", 1.0),
        options.get("scale", 1.0),
        out,
        k,
        v,
        loc,
        torch.zeros(len(queries), HEADS, 8, VALUE_DIM + 1),
        cache.table,
        cache.rows,
        torch.tensor(cache.lengths),
        SCALE,
        options.get("cap", 0.0),
        False,
        options.get("window", 0),
        None,
        options.get("sinks"),
    )
    if store:
        assert torch.equal(keys, cache.keys) and torch.equal(values, cache.values)
    return out


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("window", [0, 3])
def test_decode(dtype: torch.dtype, store: bool, window: int) -> None:
    cache = Cache([9, 1, 14], dtype)
    # A view into a wider tensor, as q is of the projection's output.
    queries = normal(3, 2 * HEADS, DIM, seed=4, dtype=dtype)[:, :HEADS]
    out = decode(cache, queries, store, window=window)
    for request, length in enumerate(cache.lengths):
        seen = list(range(length))[-window:]
        expected = cache.attend(request, queries[request], seen)
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(
            out[request].double(), expected, atol=tolerance, rtol=tolerance
        )


def test_decode_with_cap_and_sinks() -> None:
    cache, sinks = Cache([9, 4]), normal(HEADS, seed=9)
    queries = normal(2, HEADS, DIM, seed=4)
    out = decode(cache, queries, cap=0.7, sinks=sinks)
    for request, length in enumerate(cache.lengths):
        seen = list(range(length))
        expected = cache.attend(request, queries[request], seen, 0.7, sinks)
        torch.testing.assert_close(out[request].double(), expected, atol=1e-5, rtol=0)


def test_decode_reads_no_slot_past_a_request() -> None:
    """A longer neighbour pads the batch; stale numbers must not leak in."""
    cache = Cache([2, 14])
    queries = normal(2, HEADS, DIM, seed=4)
    expected = decode(cache, queries)
    cache.table[cache.rows[0], 2:] = 7
    used = torch.cat([cache.slots(0), cache.slots(1)])
    unused = torch.ones(cache.size, dtype=torch.bool)
    unused[used] = False
    cache.table[cache.rows[0], 2:] = int(unused.nonzero()[0])
    cache.keys[unused] = cache.values[unused] = float("nan")
    assert torch.equal(decode(cache, queries), expected)


def test_decode_scales_an_8_bit_cache() -> None:
    cache = Cache([6, 3])
    queries = normal(2, HEADS, DIM, seed=4)
    float8 = torch.float8_e4m3fn
    cache.keys, cache.values = cache.keys.to(float8), cache.values.to(float8)
    out = decode(cache, queries, scale=0.5)
    cache.keys, cache.values = cache.keys.float() * 0.5, cache.values.float() * 0.5
    for request, length in enumerate(cache.lengths):
        expected = cache.attend(request, queries[request], list(range(length)))
        torch.testing.assert_close(out[request].double(), expected, atol=1e-5, rtol=0)


def test_decode_agrees_with_extending_by_one() -> None:
    cache = Cache([9, 5], torch.bfloat16)
    queries = normal(2, HEADS, DIM, seed=4, dtype=torch.bfloat16)
    assert torch.equal(decode(cache, queries), extend(cache, queries, [1, 1]))
