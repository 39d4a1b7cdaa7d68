"""``otdd compute``: the distance between two datasets."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from otdd_flash.cli.announce import LONG_SECONDS, long_run
from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.options import (
    check_device,
    check_files,
    dataset_options,
    distance_options,
    machine_options,
    output_options,
    settings_of,
)
from otdd_flash.cli.progress import Bars, wanted

if TYPE_CHECKING:
    from otdd_flash.types import LabelledDataset, OTDDResult

EPILOG = """\b
Examples:
  otdd compute mnist-mini fashion-mnist-mini --normalize unit --plot otdd.png
  otdd compute mnist fashion-mnist --max-samples 5000 --epsilon 0.1 --normalize unit
  otdd compute mnist kmnist --split test --label-distance diagonal --json > otdd.json
  otdd compute mnist fashion-mnist --device cuda:0 --output otdd.npz
  otdd compute mnist fashion-mnist --convention microsoft --normalize mnist

\b
stdout holds only the result; progress, announcements and warnings go to stderr.
A solve that stops before its tolerance is reported on stderr and as converged: false,
its bounds hold all the same, and the exit code stays 0.
"""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="TGT")
@dataset_options
@distance_options
@machine_options
@output_options
@debug_option
def compute(**options: Any) -> None:
    """Compute the optimal transport dataset distance between SRC and TGT.

    SRC and TGT are names such as mnist, fashion-mnist, cifar10 or digits; mnist-mini and
    fashion-mnist-mini come with the package and need no download. The cost of moving a sample x
    of class c to a sample y of class k is ||x - y||^2 + W2[c, k], with W2 the squared
    Wasserstein distance between the two classes.
    """
    # what fails at once goes first: paths before torch is imported, settings before data is read
    check_files(options)
    settings = settings_of(options)
    check_device(settings.device)
    bars = Bars(wanted(options["quiet"]))
    say = _silent if options["quiet"] else _say
    src, tgt = _load(options, bars, say)

    from otdd_flash.otdd import estimate_seconds, steps

    if (seconds := estimate_seconds(src, tgt, settings)) > LONG_SECONDS:
        say(long_run(seconds, src, tgt, settings))
    result, warned = _run(steps(src, tgt, settings), bars)
    try:
        _write(result, src, tgt, options)
    finally:
        # a full disk must not cost the result
        _print(result, options["as_json"])
    for text in warned:
        _say(f"Warning: not converged: {text}")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _silent(line: str) -> None:
    pass


def _load(options: dict[str, Any], bars: Bars, say: Any) -> tuple[LabelledDataset, LabelledDataset]:
    """Load both datasets and announce what was sampled."""
    from concurrent.futures import ThreadPoolExecutor

    from otdd_flash.datasets import load
    from otdd_flash.ops import warm_up
    from otdd_flash.results import sampled
    from otdd_flash.types import Progress

    keywords = {key: options[key] for key in ("data_root", "split", "max_samples", "seed")}
    loaded = []
    # decompressing two datasets and starting a GPU take a second each: side by side
    with ThreadPoolExecutor(3) as threads:
        threads.submit(warm_up, options["device"])
        names = dict.fromkeys((options["source"], options["target"]))
        coming = {name: threads.submit(load, name, **keywords) for name in names}
        try:
            for k, side in enumerate(("source", "target")):
                bars.show(Progress("load", k, 2, options[side]))
                loaded.append(coming[options[side]].result())
            bars.show(Progress("load", 2, 2, ""))
        finally:
            bars.close()
    for dataset in loaded:
        if sampled(dataset.provenance):
            say(f"{dataset.name}: {sampled(dataset.provenance)}")
    return loaded[0], loaded[1]


def _run(steps: Any, bars: Bars) -> tuple[OTDDResult, list[str]]:
    """Drive the computation; return the result and its warnings, which are told after it."""
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


def _write(
    result: OTDDResult, src: LabelledDataset, tgt: LabelledDataset, options: dict[str, Any]
) -> None:
    if options["output"] is not None:
        from otdd_flash.results import save

        save(result, options["output"])
    if options["plot"] is not None:
        from otdd_flash.plots import plot_result

        plot_result(result, src, tgt, options["plot"])


def _print(result: OTDDResult, as_json: bool) -> None:
    from otdd_flash.results import summary, to_json

    if as_json:
        click.echo(json.dumps(to_json(result), allow_nan=False))
    else:
        click.echo(summary(result))
    sys.stdout.flush()
