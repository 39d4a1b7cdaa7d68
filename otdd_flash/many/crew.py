"""Work that several devices share: each takes the next piece when it is done with one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event

import torch

from otdd_flash.types import Progress
from otdd_flash_kernels.launch import current

# a name for people, and the work, which gets the place of the device that does it
Piece = tuple[str, Callable[[int], Generator[Progress, None, None]]]


def crew_steps(
    stage: str, pieces: Sequence[Piece], devices: Sequence[torch.device]
) -> Generator[Progress, None, None]:
    """Do all pieces, one thread a device; on one device one after the other, without a thread.

    Raises:
        What a piece raises; the others stop at their next report.
    """
    done, total = 0, len(pieces)
    walk = _alone(pieces) if len(devices) == 1 else _together(pieces, devices)
    for name, state in walk:
        if state is None:
            done += 1
        note = f"{name}: {state.stage} {state.note}".strip() if state is not None else ""
        yield Progress(stage, done, total, note)


# the piece that reports, and its state; None: it is done
Report = tuple[str, Progress | None]


def _alone(pieces: Sequence[Piece]) -> Generator[Report, None, None]:
    for name, work in pieces:
        for state in work(0):
            yield name, state
        yield name, None


def _together(
    pieces: Sequence[Piece], devices: Sequence[torch.device]
) -> Generator[Report, None, None]:
    waiting: SimpleQueue[Piece] = SimpleQueue()
    for piece in pieces:
        waiting.put(piece)
    told: SimpleQueue[Report | None] = SimpleQueue()
    stop = Event()

    def labour(place: int) -> None:
        ended = False
        try:
            with current(devices[place]):
                while not stop.is_set() and (piece := _next(waiting)) is not None:
                    name, work = piece
                    for state in work(place):
                        told.put((name, state))
                        if stop.is_set():
                            break
                    else:
                        told.put((name, None))
            ended = True
        finally:
            # a failure ends the work of all
            if not ended:
                stop.set()
            told.put(None)

    with ThreadPoolExecutor(len(devices)) as pool:
        hired = [pool.submit(labour, place) for place in range(len(devices))]
        at_work = len(hired)
        try:
            while at_work:
                report = told.get()
                if report is None:
                    at_work -= 1
                else:
                    yield report
        finally:
            # whoever reads no further wants no more work
            stop.set()
    for one in hired:
        one.result()


def _next(waiting: SimpleQueue[Piece]) -> Piece | None:
    try:
        return waiting.get_nowait()
    except Empty:
        return None
