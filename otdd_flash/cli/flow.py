"""``otdd flow``: a dataset that moves towards another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from otdd_flash.cli.announce import LONG_SECONDS, duration
from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.flow_options import flow_options, run_options
from otdd_flash.cli.loading import drive, load_pair, on_stderr, say
from otdd_flash.cli.options import (
    check_device,
    check_files,
    distance_group,
    machine_options,
    settings_of,
)
from otdd_flash.cli.progress import Bars
from otdd_flash.cli.sources import dataset_options

if TYPE_CHECKING:
    from otdd_flash.flows import Flow, FlowSettings, FlowState
    from otdd_flash.flows.record import Record

EPILOG = """\b
Examples:
  otdd flow mnist-mini fashion-mnist-mini --out run --report run/flow.html --animate run/flow.gif
  otdd flow mnist fashion-mnist --max-samples 5000 --normalize unit --out garments
  otdd flow mnist fashion-mnist --max-samples 5000 --normalize unit --out garments --resume
  otdd flow mnist kmnist --mode augmented --relabel-every 10 --out kana

Datasets are names, files, folders and more: see `otdd datasets --help`.

\b
DIR gets settings.json, the kept steps as trajectory-*.safetensors, curve.csv and
curve.png, pictures of the same samples at each kept step, and the flowed dataset as
flowed.npz, as IDX files (idx) and as a folder of Hugging Face datasets
(hugging-face). An interrupted run goes on with the same command and --resume.
"""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="TGT")
@flow_options
@run_options
@dataset_options
@distance_group(1e-2, None)
@machine_options
@debug_option
def flow(**options: Any) -> None:
    """Move SRC towards TGT down the gradient of their dataset distance.

    Every step moves all samples of SRC so that the squared distance S falls, at one eps. With
    --mode attached the laws of their classes follow them, and the classes of SRC turn into classes
    of TGT.
    """
    # what fails at once goes first
    check_files(options)
    if options["resume"] and options["overwrite"]:
        raise click.UsageError("--resume and --overwrite exclude one another")
    settings = _settings(options)
    check_device(settings.divergence.device)

    from otdd_flash.flows.record import Record, check_folder

    check_folder(options["out"], resume=options["resume"], overwrite=options["overwrite"])
    bars, tell = on_stderr(options)
    src, tgt = load_pair(options, bars, tell)
    record = Record(options["out"], options["every"], options["checkpoint_every"])
    walk = record.begin(
        src, tgt, settings, resume=options["resume"], overwrite=options["overwrite"]
    )
    last = _walk(walk, record, bars, tell)

    from otdd_flash.flows.finish import finish_steps

    summary, warned = drive(finish_steps(walk, last, record, options["animate"]), bars)
    try:
        if options["report"] is not None:
            from otdd_flash.report import flow_page

            flow_page(record, summary, src, tgt).write(options["report"])
    finally:
        # a full disk must not cost the result
        click.echo(json.dumps(summary, allow_nan=False) if options["as_json"] else table(summary))
        sys.stdout.flush()
    if summary["unconverged_steps"]:
        say(
            f"Warning: {summary['unconverged_steps']:,} of {len(record.curve):,} steps stopped "
            "before the tolerance of the marginals: raise --max-passes, --epsilon or --tol"
        )
    if summary["value"][1] > summary["value"][0]:
        say(
            f"Warning: S rose from {summary['value'][0]:.6g} to {summary['value'][1]:.6g}: lower "
            f"--step-size ({settings.step_size:g})"
            + (", or widen --box" if isinstance(settings.box, tuple) else "")
        )
    for text in warned:
        say(f"Warning: the final distance is not converged: {text}")


def _settings(options: dict[str, Any]) -> FlowSettings:
    from dataclasses import replace

    from otdd_flash.flows import FlowSettings

    law = options["label_distance"]
    if law is None:
        law = "diagonal" if options["mode"] == "augmented" else "gaussian"
    solver = settings_of({**options, "label_distance": law})
    names = (
        "mode steps step_size optimizer momentum box self_every laws_every relabel relabel_every"
    )
    kept = {name: options[name] for name in names.split()}
    return FlowSettings(**kept, solver=replace(solver, slices=options["slices"]))


def _walk(walk: Flow, record: Record, bars: Bars, tell: Callable[[str], None]) -> FlowState:
    """Run the flow to its end, writing on the way; return the last state."""
    from otdd_flash.types import Progress

    steps, first, state = walk.settings.steps, walk.step, None
    if first:
        tell(f"resumed at step {first:,} of {steps:,}")
    bars.show(Progress("flow", first, steps or None))
    try:
        for state in walk:
            record.add(walk, state)
            note = f"S {state.value:.5g}, marginal error {state.marginal_error:.0e}"
            bars.show(Progress("flow", state.step, steps or None, note))
            # the first step solves from nothing, the second is like the others
            left = (steps - state.step) * state.seconds["total"]
            if state.step == first + 1 and left > LONG_SECONDS:
                tell(
                    f"about {duration(left)} more expected at {state.seconds['total']:.2g} s a step"
                )
    except KeyboardInterrupt:
        bars.close()
        if record.curve:
            tell(f"stopped after step {record.curve[-1][0]:.0f}: go on with --resume")
        raise
    finally:
        bars.close()
    assert state is not None
    return state


def table(summary: dict[str, Any]) -> str:
    """Return what came of a flow, for people."""
    from otdd_flash.results import clipped
    from otdd_flash.tables import NAME, grid

    first, last = summary["value"]
    low, high = summary["final"]["squared_bounds"]
    n, m = summary["samples"]
    verb = "rose" if last > first else "fell"
    moved = summary["moved"]
    rounding = f"; the cost sees points rounded, by {moved:.2g} (rms)" if moved else ""
    rows = [
        ("flow", f"{summary['source']} ({n:,}) to {summary['target']} ({m:,})"),
        ("mode", f"{summary['mode']}, {summary['steps']:,} steps, {summary['seconds']:.1f} s"),
        ("squared", f"S {verb} from {first:.6g} to {last:.6g} ({abs(summary['fall']):.1%})"),
        (
            "flowed set",
            f"distance {summary['final']['distance']:.6g} to the target, squared "
            f"{summary['final']['squared']:.6g} between {low:.6g} and {high:.6g}",
        ),
        ("epsilon", f"{summary['epsilon']:.5g}, the same at every step"),
        ("where", summary["backend"] + rounding),
    ]
    if summary["weighted"]:
        rows.append(
            ("weights", "of the flowed set are in flowed.npz; idx and hugging-face hold none")
        )
    lines = [f"{name:<12}{text}" for name, text in rows]
    body = [
        (
            clipped(entry["source"], NAME),
            clipped(entry["by_mass"], NAME),
            f"{entry['share']:.1%}",
            clipped(entry.get("by_law", "-"), NAME),
        )
        for entry in summary["classes"]
    ]
    return "\n".join([*lines, "", grid(("class", "went to", "share", "closest law"), body)])
