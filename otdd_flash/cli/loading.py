"""What commands do alike: tell things on stderr, load datasets, gather warnings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, TypeVar

import click

from otdd_flash.cli.progress import Bars, wanted
from otdd_flash.cli.sources import load_settings

if TYPE_CHECKING:
    from otdd_flash.types import LabelledDataset, Progress

Result = TypeVar("Result")


def say(line: str) -> None:
    """Tell a person something, on stderr."""
    click.echo(line, err=True)


def silent(line: str) -> None:
    """Tell nobody."""


def on_stderr(options: dict[str, Any]) -> tuple[Bars, Callable[[str], None]]:
    """Return what shows progress and what tells things; both are mute with ``--quiet``."""
    quiet = options["quiet"]
    return Bars(wanted(quiet)), silent if quiet else say


def load_pair(
    options: dict[str, Any], bars: Bars, say: Callable[[str], None]
) -> tuple[LabelledDataset, LabelledDataset]:
    """Load both datasets and announce what was done to them."""
    source, target = load_all((options["source"], options["target"]), options, bars, say)
    return source, target


def load_all(
    specs: Sequence[str],
    options: dict[str, Any],
    bars: Bars,
    say: Callable[[str], None],
) -> list[LabelledDataset]:
    """Load datasets into one space, and announce what was chosen, converted and sampled."""
    settings = load_settings(options)

    from concurrent.futures import ThreadPoolExecutor, wait

    from otdd_flash.ahead import warm_up
    from otdd_flash.datasets import load_steps
    from otdd_flash.datasets.loading import THREADS
    from otdd_flash.results import preparation

    # starting a GPU takes a second: beside the reading, where threads can do both
    with ThreadPoolExecutor(1) as thread, redirect_stdout(sys.stderr):
        # what an encoder or a download prints is no part of the result
        warm = thread.submit(warm_up, options["device"])
        if THREADS == 1:
            wait([warm])
        loaded = bars.drive(load_steps(specs, settings))
    for dataset in {id(dataset): dataset for dataset in loaded}.values():
        for note in preparation(dataset.provenance):
            say(f"{dataset.name}: {note}")
    return loaded


def drive(steps: Generator[Progress, None, Result], bars: Bars) -> tuple[Result, list[str]]:
    """Drive a computation; return its result and its warnings, which are told after it."""
    import warnings

    from otdd_flash.errors import ConvergenceWarning

    texts: dict[str, None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("always", ConvergenceWarning)
        show = warnings.showwarning

        def keep(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, ConvergenceWarning):
                texts[str(message)] = None
            else:
                show(message, category, *where, **more)

        warnings.showwarning = keep
        return bars.drive(steps), list(texts)
