"""Work on items in threads, in order, some items ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MOST_THREADS = 32
AHEAD = 4  # items in work for each thread

Item = TypeVar("Item")
Made = TypeVar("Made")


def in_threads(
    work: Callable[[Item], Made],
    items: Iterable[Item],
) -> Iterator[Made]:
    """Yield ``work(item)`` in the order of the items, which are taken in this thread."""
    count = min(MOST_THREADS, os.cpu_count() or 1)
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(count) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            # an error or Ctrl-C waits for what runs, not for what is queued
            pool.shutdown(wait=False, cancel_futures=True)
