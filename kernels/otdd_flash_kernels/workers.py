"""Independent pieces of linear algebra on all cores of a CPU, one thread each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

Item = TypeVar("Item")
Value = TypeVar("Value")

# temporaries are held once a worker
MOST = 16


def spread(
    work: Callable[[Item], Value],
    items: Iterable[Item],
) -> list[Value]:  # in the order of the items
    """Return ``[work(item) for item in items]``, with as many workers as torch has threads.

    One decomposition on many threads meets at thousands of barriers; where a core is shared with
    another program each of them waits for a time slice. Pieces on one thread each meet once.
    The caller's number of threads is left as it is.
    """
    items = list(items)
    threads = torch.get_num_threads()
    workers = min(threads, MOST, len(items))
    if workers < 2:
        return [work(item) for item in items]
    try:
        with ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, 1)) as pool:
            return list(pool.map(work, items))
    finally:
        # threads that start later take the number that was set last, whoever set it
        torch.set_num_threads(threads)
