"""A matrix of ten datasets, and what intervals cost beside a distance.

Ten sets of 5,000 samples each: MNIST and Fashion-MNIST, parts of their classes, and turned images.
The matrix is computed twice, so that the second time counts no compilation. Then one distance of
60,000 samples a side, without and with 50 resamples. Where there are several GPUs, they share the
matrix once more. A CPU gets fewer samples by the options.

    python scripts/bench_matrix.py --data-root DATA --output scripts/results/bench_matrix_h200.json
    python scripts/bench_matrix.py --samples 1000 --large 5000 --device cpu --output FILE.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch
from scipy.ndimage import rotate

import otdd_flash as otdd
from otdd_flash.ops import resolve_device
from otdd_flash.timing import machine, seconds_of

TOPS = ("T-shirt/top", "Pullover", "Dress", "Coat", "Shirt")
SHOES = ("Sandal", "Sneaker", "Ankle boot")


def part(data: otdd.LabelledDataset, classes: tuple[str, ...], name: str) -> otdd.LabelledDataset:
    """Return the samples of some classes."""
    ids = torch.tensor([data.class_names.index(c) for c in classes])
    rows = torch.isin(data.labels, ids)
    images = data.points[rows].reshape(-1, *data.sample_shape)
    return otdd.LabelledDataset(images, data.labels[rows], class_names=data.class_names, name=name)


def turned(data: otdd.LabelledDataset, angle: float, name: str) -> otdd.LabelledDataset:
    """Return images turned by an angle in degrees, against the clock."""
    images = data.points.reshape(-1, *data.sample_shape).numpy()
    images = rotate(images, angle, axes=(2, 1), reshape=False, order=1)
    return otdd.LabelledDataset(
        torch.from_numpy(images), data.labels, class_names=data.class_names, name=name
    )


def ten_sets(
    digits: otdd.LabelledDataset, garments: otdd.LabelledDataset, samples: int
) -> list[otdd.LabelledDataset]:
    """Return ten datasets of at most so many samples."""
    few = [otdd.load(data, max_samples=samples) for data in (digits, garments)]
    made = [
        digits,
        part(digits, tuple("01234"), "digits 0-4"),
        part(digits, tuple("56789"), "digits 5-9"),
        *(turned(few[0], angle, f"digits turned {angle}") for angle in (20, 60, 90)),
        garments,
        part(garments, TOPS, "tops"),
        part(garments, SHOES, "shoes"),
        turned(few[1], 90, "garments turned 90"),
    ]
    return [otdd.load(data, max_samples=samples) for data in made]


def matrix_section(
    sets: list[otdd.LabelledDataset],
    settings: otdd.OTDDSettings,
    devices: str | None = None,  # "all" for all GPUs
) -> dict[str, Any]:
    """Time the matrix, first and again."""
    device = resolve_device(settings.device)

    def matrix() -> otdd.MatrixResult:
        return otdd.matrix(sets, settings, devices=devices)

    _, first = seconds_of(matrix, device)
    found, seconds = seconds_of(matrix, device)
    return {
        "device": found.device,
        "datasets": list(found.names),
        "samples": [side.n for side in found.datasets],
        "first_seconds": round(first, 3),
        "seconds": round(seconds, 3),
        "stages": {name: round(value, 3) for name, value in found.seconds.items()},
        "converged": bool(found.converged.all()),
        "mean_cost": float(found.mean_cost.sum() / (len(sets) * (len(sets) - 1))),
    }


def bootstrap_section(
    src: otdd.LabelledDataset, tgt: otdd.LabelledDataset, settings: otdd.OTDDSettings
) -> dict[str, Any]:
    """Time one distance, and the same with 50 resamples."""
    asked, device = otdd.Confidence(bootstrap=50), resolve_device(settings.device)

    def distance(confidence: otdd.Confidence | None) -> tuple[otdd.OTDDResult, float]:
        return seconds_of(
            lambda: otdd.distance(src, tgt, settings=settings, confidence=confidence), device
        )

    distance(None)
    _, plain = distance(None)
    found, whole = distance(asked)
    interval = found.interval
    solve = sum(found.seconds[s] for s in ("self source", "self target", "solve", "certificate"))
    return {
        "samples": [len(src), len(tgt)],
        "distance_seconds": round(plain, 3),
        "solve_seconds": round(solve, 3),
        "with_50_resamples_seconds": round(whole, 3),
        "bootstrap_seconds": round(found.seconds["bootstrap"], 3),
        "bootstrap_per_solve": round(found.seconds["bootstrap"] / solve, 2),
        "squared": found.squared,
        "half_width": interval.half_width,
        "converged": found.converged,
    }


@click.command(help=__doc__)
@click.option("--samples", default=5000, show_default=True, help="Of each of the ten datasets.")
@click.option("--large", default=60_000, show_default=True, help="A side, for the resamples.")
@click.option("--device", default="auto", show_default=True)
@click.option("--data-root", metavar="DIR", help="Folder with the IDX files.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file to write.")
def main(samples: int, large: int, device: str, data_root: str | None, output: Path | None) -> None:
    """Measure, print the report and write it."""
    digits, garments = (otdd.load(name, data_root=data_root) for name in ("mnist", "fashion-mnist"))
    settings = otdd.OTDDSettings(normalize="unit", device=device)
    src, tgt = (otdd.load(data, max_samples=large) for data in (digits, garments))
    sets = ten_sets(digits, garments, samples)
    report = {
        "what": "a matrix of ten datasets; 50 resamples beside one distance",
        **machine(resolve_device(device)),
        "matrix": matrix_section(sets, settings),
        "bootstrap": bootstrap_section(src, tgt, settings),
    }
    if torch.cuda.device_count() > 1 and device == "auto":
        report["matrix on all GPUs"] = matrix_section(sets, settings, devices="all")
    click.echo(json.dumps(report, indent=1))
    if output:
        output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
