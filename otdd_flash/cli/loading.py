"""What commands do alike: tell things on stderr, load datasets, gather warnings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from otdd_flash.cli.progress import Bars

if TYPE_CHECKING:
    from otdd_flash.types import LabelledDataset, Progress

Result = TypeVar("Result")


def say(line: str) -> None:
    """Tell a person something, on stderr."""
    click.echo(line, err=True)


def silent(line: str) -> None:
    """Tell nobody."""


def load_pair(
    options: dict[str, Any], bars: Bars, say: Callable[[str], None]
) -> tuple[LabelledDataset, LabelledDataset]:
    """Load both datasets and announce what was sampled."""
    source, target = load_all((options["source"], options["target"]), options, bars, say)
    return source, target


def load_all(
    names: Sequence[str],
    options: dict[str, Any],
    bars: Bars,
    say: Callable[[str], None],
) -> list[LabelledDataset]:
    """Load datasets, each name once, and announce what was sampled."""
    from concurrent.futures import ThreadPoolExecutor

    from otdd_flash.datasets import load
    from otdd_flash.otdd import warm_up
    from otdd_flash.results import sampled
    from otdd_flash.types import Progress

    keywords = {key: options[key] for key in ("data_root", "split", "max_samples", "seed")}
    loaded = []
    # decompressing two datasets and starting a GPU take a second each: side by side
    with ThreadPoolExecutor(3) as threads:
        threads.submit(warm_up, options["device"])
        coming = {name: threads.submit(load, name, **keywords) for name in dict.fromkeys(names)}
        try:
            for k, name in enumerate(names):
                bars.show(Progress("load", k, len(names), name))
                loaded.append(coming[name].result())
            bars.show(Progress("load", len(names), len(names), ""))
        finally:
            bars.close()
    for dataset in {id(dataset): dataset for dataset in loaded}.values():
        if sampled(dataset.provenance):
            say(f"{dataset.name}: {sampled(dataset.provenance)}")
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
