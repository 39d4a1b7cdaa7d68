"""How many flipped labels of MNIST the values of samples find, beside a random order.

A tenth of the labels of n training samples is replaced by another class, drawn at random. The
target is the test set, whose labels are right. Reported is the share of the flips among the worst
20 % by each part of the value, the mean and the extremes over seeds; a random order finds 20 %.

    python scripts/value_flips.py --samples 2000 --samples 20000 --seeds 3
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch

import otdd_flash as otdd
from otdd_flash.ops import resolve_device
from otdd_flash.timing import machine, seconds_of

PARTS = ("label", "value", "features", "class_part")
FLIPPED, WORST = 0.1, 0.2


def flipped(
    dataset: otdd.LabelledDataset, seed: int
) -> tuple[otdd.LabelledDataset, torch.Tensor]:  # and (n,) bool, which labels are wrong
    """Return a dataset with wrong labels for a share of its samples."""
    generator = torch.Generator().manual_seed(seed)
    n, classes = len(dataset), dataset.classes
    rows = torch.randperm(n, generator=generator)[: int(FLIPPED * n)]
    labels = dataset.labels.clone()
    labels[rows] += torch.randint(1, classes, (len(rows),), generator=generator)
    wrong = torch.zeros(n, dtype=torch.bool)
    wrong[rows] = True
    return otdd.LabelledDataset(dataset.points, labels % classes, name="flipped"), wrong


def found(score: torch.Tensor, wrong: torch.Tensor) -> float:
    """Return the share of the wrong labels among the worst samples."""
    worst = score.argsort(descending=True)[: int(WORST * len(score))]
    return float(wrong[worst].double().mean()) * WORST / FLIPPED


def measure(n: int, seeds: int, device: str, data_root: str | None) -> dict[str, Any]:
    """Return what the parts of the value find among n samples."""
    target = otdd.load("mnist", split="test", max_samples=n, data_root=data_root)
    source = otdd.load("mnist", max_samples=n, data_root=data_root)
    settings = otdd.OTDDSettings(normalize="unit", device=device)
    shares: dict[str, list[float]] = {part: [] for part in (*PARTS, "random order")}
    seconds, converged = [], True
    for seed in range(seeds):
        data, wrong = flipped(source, seed)
        values, spent = seconds_of(
            lambda data=data: otdd.value(data, target, settings), resolve_device(device)
        )
        seconds.append(spent)
        converged &= values.converged
        for part in PARTS:
            shares[part].append(found(getattr(values, part), wrong))
        order = torch.rand(n, generator=torch.Generator().manual_seed(1000 + seed))
        shares["random order"].append(found(order, wrong))
    return {
        "samples": n,
        "target": len(target),
        "seeds": seeds,
        "seconds": round(sum(seconds) / seeds, 2),
        "converged": converged,
        "found": {
            part: {
                "mean": round(sum(each) / seeds, 4),
                "least": round(min(each), 4),
                "most": round(max(each), 4),
            }
            for part, each in shares.items()
        },
    }


@click.command(help=__doc__)
@click.option("--samples", multiple=True, default=(2000, 20_000), show_default=True, help="A side.")
@click.option("--seeds", default=3, show_default=True, help="Draws of the flips.")
@click.option("--device", default="auto", show_default=True)
@click.option("--data-root", metavar="DIR", help="Folder with the IDX files.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file to write.")
def main(
    samples: tuple[int, ...], seeds: int, device: str, data_root: str | None, output: Path | None
) -> None:
    """Measure, print the report and write it."""
    report = {
        "what": f"share of {FLIPPED:.0%} flipped labels among the worst {WORST:.0%}",
        **machine(resolve_device(device)),
        "runs": [measure(n, seeds, device, data_root) for n in samples],
    }
    click.echo(json.dumps(report, indent=1))
    if output:
        output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
