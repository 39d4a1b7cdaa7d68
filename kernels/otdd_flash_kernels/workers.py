"""Independent pieces of linear algebra on all cores of a CPU, one thread each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Value = TypeVar("Value")

# temporaries are held once a worker
MOST = 16
# of each worker: whether its caller still wants what it makes
_HERE = threading.local()


class StoppedError(Exception):
    """Ends the work of a worker whose caller was interrupted, or whose neighbour failed."""


def go_on() -> None:
    """Raise in a worker whose result is not wanted any more; long work calls it now and then."""
    stop = getattr(_HERE, "stop", None)
    if stop is not None and stop.is_set():
        raise StoppedError


def spread(
    work: Callable[[Item], Value],
    items: Iterable[Item],
) -> list[Value]:  # in the order of the items
    """Return ``[work(item) for item in items]``, with as many workers as torch has threads.

    One decomposition on many threads meets at thousands of barriers; where a core is shared with
    another program each of them waits for a time slice. Pieces on one thread each meet once.
    The caller's number of threads is left as it is. An interrupt waits for workers no longer than
    to their next :func:`go_on`.
    """
    items = list(items)
    threads = torch.get_num_threads()
    workers = min(threads, MOST, len(items))
    if workers < 2:
        return [work(item) for item in items]
    stop = threading.Event()

    def begin() -> None:
        torch.set_num_threads(1)
        _HERE.stop = stop

    try:
        with ThreadPoolExecutor(workers, initializer=begin) as pool:
            try:
                return list(pool.map(work, items))
            except BaseException:
                stop.set()
                raise
    finally:
        # threads that start later take the number that was set last, whoever set it
        torch.set_num_threads(threads)
