"""Sees which checkpoint tensor is written into which parameter while a model loads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
import threading
from typing import Any, Callable, FrozenSet, Iterable, Iterator, List, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

# What leaves a tensor's numbers as they were stored, but for their dtype.
_COPIES = ("_to_copy", "clone", "cat", "stack", "index", "constant_pad_nd", "copy_")


@dataclasses.dataclass(eq=False)
class Origin:
    """A tensor of the checkpoint, and what became of it."""

    name: str
    dtype: torch.dtype
    was_read: bool = False
    was_written: bool = False


@dataclasses.dataclass(frozen=True)
class Provenance:
    """The checkpoint tensors that a tensor was made from, unless `stored` computed."""

    origins: FrozenSet[Origin]
    stored: bool = True


@dataclasses.dataclass(eq=False)
class Target:
    """A parameter, how much of each of its rows was written, and from what.

    A row is an index of the first dimension. `writes` holds each region once, as
    (offset, sizes, strides) in elements. Parameters that are not contiguous count as
    one row that any write fills.
    """

    name: str
    dtype: torch.dtype
    start: int
    stop: int
    row_numel: int
    row_ct: torch.Tensor
    dims: int
    writes: dict = dataclasses.field(default_factory=dict)
    misread: List[Origin] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, name: str, parameter: torch.Tensor) -> Target:
        rows = 1
        if parameter.is_contiguous() and parameter.ndim and parameter.numel():
            rows = parameter.shape[0]
        return cls(
            name=name,
            dtype=parameter.dtype,
            start=parameter.data_ptr(),
            stop=parameter.data_ptr() + parameter.nbytes,
            row_numel=parameter.numel() // rows,
            row_ct=torch.zeros(rows, dtype=torch.int64, device="cpu"),
            dims=parameter.ndim if parameter.is_contiguous() else 0,
        )

    def write(self, view: torch.Tensor, origins: FrozenSet[Origin]) -> None:
        """Count the elements of a view on this parameter as written, once."""
        offset = (view.data_ptr() - self.start) // self.dtype.itemsize
        region = (offset, tuple(view.shape), view.stride())
        known = region in self.writes
        self.writes[region] = origins or self.writes.get(region, origins)
        if known or not view.numel():
            return
        if not self.dims or view.dtype.itemsize != self.dtype.itemsize:
            self.row_ct.fill_(self.row_numel)
            return
        rows, row_numel = rows_of(view.shape, view.stride(), self.row_numel)
        shape, strides = zip(*rows) if rows else ((), ())
        first = offset // self.row_numel
        self.row_ct.as_strided(shape, strides, first).add_(row_numel)

    @property
    def short_rows(self) -> torch.Tensor:
        """The rows that got less than they hold.

        A parameter of experts may be padded: its rows are full when they got what the
        fullest of them did.
        """
        full = self.row_numel
        if self.dims > 2 and self.row_ct.any():
            full = int(self.row_ct.max())
        return (self.row_ct < full).nonzero().flatten()

    @property
    def was_written(self) -> bool:
        return bool(self.writes)


def rows_of(
    shape: Iterable[int], strides: Iterable[int], row_numel: int
) -> Tuple[List[Tuple[int, int]], int]:
    """A region's sizes and strides over rows, and its elements in each of them."""
    rows, inner = [], []
    for size, stride in zip(shape, strides):
        if size > 1 and stride >= row_numel and stride % row_numel == 0:
            rows.append((size, stride // row_numel))
        else:
            inner.append(size)
    numel = math.prod(inner)
    if numel > row_numel:
        rows.append((numel // row_numel, 1))
    return rows, min(numel, row_numel)


class LoadTrace(TorchDispatchMode):
    """Follows checkpoint tensors, through what is made from them, into parameters.

    Only the thread that enters it is watched, and the work on parameters that this
    thread hands to a pool.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.origins: List[Origin] = []
        self.targets: dict[int, List[Target]] = {}
        self._known: dict[int, List[Tuple[int, int, Provenance]]] = {}
        # An address is not used again while somebody holds a weak reference to it.
        self._references: dict[int, StorageWeakRef] = {}
        self._limit = 4096
        self._thread = threading.local()
        self._lock = threading.RLock()
        for name, parameter in model.named_parameters():
            storage = storage_of(parameter)
            if storage is not None:
                target = Target.of(name, parameter)
                self.targets.setdefault(storage._cdata, []).append(target)
                self._references[storage._cdata] = StorageWeakRef(storage)

    def target_of(self, parameter: torch.Tensor) -> Optional[Target]:
        """The record of a parameter, or None if it was made during the load."""
        storage = storage_of(parameter)
        found = self.targets.get(storage._cdata, ()) if storage is not None else ()
        return next((t for t in found if t.start == parameter.data_ptr()), None)

    def follow(
        self, weights: Iterable[Tuple[str, torch.Tensor]]
    ) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield a checkpoint's tensors as they come and know them from then on."""
        for name, tensor in weights:
            self._thread.scalar = None
            if isinstance(tensor, torch.Tensor):
                with self._lock:
                    self._forget()
                    origin = Origin(name, tensor.dtype)
                    self.origins.append(origin)
                    self._know(tensor, Provenance(frozenset([origin])))
            yield name, tensor

    @contextlib.contextmanager
    def in_pools(self) -> Iterator[None]:
        """Watch also what is submitted to a thread pool together with a parameter."""
        pools = concurrent.futures.ThreadPoolExecutor
        submit = pools.submit

        def watched(function: Callable, /, *args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        def submit_watched(
            pool: Any, function: Callable, /, *args: Any, **kwargs: Any
        ) -> Any:
            values = (*args, *kwargs.values())
            if any(isinstance(value, torch.nn.Parameter) for value in values):
                function = functools.partial(watched, function)
            return submit(pool, function, *args, **kwargs)

        pools.submit = submit_watched
        try:
            yield
        finally:
            pools.submit = submit

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        written_names, is_view = effects_of(func)
        with self._lock:
            read, written = split(func, args, kwargs, written_names)
            source = self._provenance(read, stored=func._opname in _COPIES)
            source = self._through_scalars(func._opname, source)
            for tensor in written:
                self._write(tensor, source)
            if source is not None and not written and not is_view:
                for tensor in tensors_in((result,)):
                    self._know(tensor, source)
        return result

    def _through_scalars(
        self, operator: str, source: Optional[Provenance]
    ) -> Optional[Provenance]:
        """A scalar is read into Python and filled in from there."""
        scalar = getattr(self._thread, "scalar", None)
        if operator == "fill_" and source is None:
            source, scalar = scalar, None
        self._thread.scalar = source if operator == "_local_scalar_dense" else scalar
        return source

    def _provenance(
        self, read: List[torch.Tensor], stored: bool
    ) -> Optional[Provenance]:
        found = [known for tensor in read for known in self._lookup(tensor)]
        origins = frozenset().union(*(known.origins for known in found))
        for origin in origins:
            origin.was_read = True
        if not origins:
            return None
        return Provenance(origins, stored and all(known.stored for known in found))

    def _lookup(self, tensor: torch.Tensor) -> List[Provenance]:
        storage = storage_of(tensor)
        if storage is None or storage._cdata not in self._known:
            return []
        start, stop = memory_of(tensor)
        known = self._known[storage._cdata]
        return [p for first, last, p in known if first < stop and start < last]

    def _know(self, tensor: torch.Tensor, provenance: Provenance) -> None:
        storage = storage_of(tensor)
        if storage is None or not tensor.numel():
            return
        start, stop = memory_of(tensor)
        if storage._cdata not in self._references:
            self._references[storage._cdata] = StorageWeakRef(storage)
        known = self._known.get(storage._cdata, ())
        kept = [k for k in known if k[0] < start or stop < k[1]]
        self._known[storage._cdata] = [*kept, (start, stop, provenance)]

    def _write(self, tensor: torch.Tensor, source: Optional[Provenance]) -> None:
        storage = storage_of(tensor)
        if storage is None:
            return
        at = tensor.data_ptr()
        targets = self.targets.get(storage._cdata, ())
        hit = [target for target in targets if target.start <= at < target.stop]
        origins = source.origins if source else frozenset()
        for target in hit:
            target.write(tensor, origins)
            for origin in origins:
                origin.was_written = True
            if source and source.stored and len(origins) == 1:
                target.misread += [o for o in origins if is_misread(o, target)]
        if source is not None and not hit:
            self._know(tensor, source)

    def _forget(self) -> None:
        """Drop what is known of storages that are gone, when it has doubled."""
        if len(self._known) < self._limit:
            return
        for key in [key for key in self._known if self._references[key].expired()]:
            del self._known[key], self._references[key]
        self._limit = max(4096, 2 * len(self._known))


def storage_of(tensor: torch.Tensor) -> Optional[torch.UntypedStorage]:
    """A tensor's storage, or None where it has no memory of its own."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    if tensor.is_meta or not strided or torch.nn.parameter.is_lazy(tensor):
        return None
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def memory_of(tensor: torch.Tensor) -> Tuple[int, int]:
    """The first address of a tensor's memory and the one behind its last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    return start, (
        start + (last + 1) * tensor.element_size() if tensor.numel() else start
    )


@functools.lru_cache(maxsize=None)
def effects_of(func: Any) -> Tuple[FrozenSet[str], bool]:
    """The names of the arguments that an operator writes, and whether it only views."""
    arguments, returns = func._schema.arguments, func._schema.returns
    writes = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
    views = any(a.alias_info and not a.alias_info.is_write for a in returns)
    return frozenset(writes), views and not writes


def split(
    func: Any, args: Tuple, kwargs: dict, written_names: FrozenSet[str]
) -> Tuple[List[torch.Tensor], List[torch.Tensor]]:
    """The tensors that a call reads, and those that it writes."""
    if not written_names:
        return list(tensors_in((*args, *kwargs.values()))), []
    names = [argument.name for argument in func._schema.arguments]
    values = [*zip(names, args), *kwargs.items()]
    read = [value for name, value in values if name not in written_names]
    written = [value for name, value in values if name in written_names]
    return list(tensors_in(read)), list(tensors_in(written))


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among values and in lists of them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def is_misread(origin: Origin, target: Target) -> bool:
    """Whether codes went into a parameter of values as they were, or the reverse.

    Scales are values in FP8, too, and exponents alone (E8M0) are of no kind.
    """
    kinds = {number_kind(origin.dtype), number_kind(target.dtype)}
    is_scale = "scale" in target.name.rpartition(".")[2]
    return (
        None not in kinds and len(kinds) == 2 and not (is_scale and "int" not in kinds)
    )


def number_kind(dtype: torch.dtype) -> Optional[str]:
    """Whether numbers of a dtype are values, FP8 codes or integer codes, or None."""
    if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        return "values"
    if dtype.is_floating_point:
        return None if "e8m0" in str(dtype) else "fp8"
    return None if dtype is torch.bool or dtype.is_complex else "int"
