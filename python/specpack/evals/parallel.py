"""Several requests at a time, without waiting for any when the command is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """The results as they come; the first exception of any ends the iteration.

    The threads are daemons: a process that ends leaves what they wait for.
    """
    todo, lock, done = list(items)[::-1], Lock(), SimpleQueue()
    expected = len(todo)

    def work() -> None:
        while True:
            with lock:
                if not todo:
                    return
                item = todo.pop()
            try:
                done.put((function(item), None))
            except Exception as error:
                done.put((None, error))

    for _ in range(min(threads, expected)):
        Thread(target=work, daemon=True).start()
    try:
        for _ in range(expected):
            result, error = done.get()
            if error is not None:
                raise error
            yield result
    finally:
        with lock:
            todo.clear()
