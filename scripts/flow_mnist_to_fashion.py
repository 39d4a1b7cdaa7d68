"""Flow all of MNIST to Fashion-MNIST on a GPU, and draw digits on their way to garments.

For example ``flow_mnist_to_fashion.py --data DATA --out DIR``: 60,000 samples a side, `attached`.
Writes the trajectory, ``curve.csv``, ``curve.png``, ``filmstrip.png`` and ``flow.json`` into DIR;
with ``--samples 300 --steps 5 --device cpu`` it runs in small.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import click

from otdd_flash.datasets import load
from otdd_flash.flows import FlowSettings, pictures
from otdd_flash.flows.record import Record
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import PeakMemory, machine


@click.command(help=__doc__)
@click.option("--data", metavar="DIR", help="Folder with the IDX files.  [default: OTDD_DATA]")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--samples", type=int, help="Samples a side.  [default: all]")
@click.option("--steps", default=100, show_default=True)
@click.option("--step-size", default=0.02, show_default=True)
@click.option("--mode", default="attached", show_default=True)
@click.option("--device", default="cuda", show_default=True)
def main(
    data: str | None,
    out: Path,
    samples: int | None,
    steps: int,
    step_size: float,
    mode: str,
    device: str,
) -> None:
    """Run the flow and write what it did."""
    names = ("mnist", "fashion-mnist")
    src, tgt = (load(name, data_root=data, max_samples=samples) for name in names)
    solver = OTDDSettings(normalize="unit", tol=1e-2, device=device)
    settings = FlowSettings(mode=mode, steps=steps, step_size=step_size, solver=solver)
    record = Record(out, every=max(1, steps // 10), checkpoint_every=steps + 1)
    flow = record.begin(src, tgt, settings, resume=False, overwrite=True)
    peak = PeakMemory(flow.device)
    for state in flow:
        record.add(flow, state)
    kept = list(record.kept())
    cast = pictures.Cast.of(src, tgt, pictures.STRIP_PARTICLES)
    strip = pictures.film_strip(cast, kept, src.class_names)
    pictures.save_picture(strip, out / "filmstrip.png")
    record.write_curve()
    pictures.save_curve(record.curve, f"{src.name} to {tgt.name}, {mode}", out / "curve.png")
    seconds = [row[-1] for row in record.curve]
    values = [row[1] for row in record.curve]
    report = {
        **machine(flow.device),
        "samples": [len(src), len(tgt)],
        "mode": mode,
        "steps": steps,
        "step_size": step_size,
        "values": values,
        "fall": 1 - values[-1] / values[0],
        "first_step_seconds": seconds[0],
        "median_step_seconds": statistics.median(seconds[1:]),
        "peak_extra_bytes": peak.extra(),
        "marginal_error": max(row[4] for row in record.curve),
    }
    (out / "flow.json").write_text(json.dumps(report, indent=1))
    click.echo(
        f"S fell from {values[0]:.4g} to {values[-1]:.4g} ({report['fall']:.1%}) in {steps} steps "
        f"of {1e3 * report['median_step_seconds']:.0f} ms"
    )


if __name__ == "__main__":
    main()
