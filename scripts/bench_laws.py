"""Time class laws and label cost and compare the methods; prints one JSON object.

For example ``bench_laws.py --data-root DATA --samples 60000 --no-compare`` on a CPU, and
``bench_laws.py --device cuda --many --classes 1000 --dimension 512`` on a GPU.
"""

from __future__ import annotations

import json
from typing import Any

import click
import torch
from torch import Tensor

from otdd_flash.bures import LabelCost, gaussian_w2, label_cost
from otdd_flash.datasets import load
from otdd_flash.factors import factorize
from otdd_flash.gaussians import ClassLaws, class_laws
from otdd_flash.otdd import warm_up
from otdd_flash.timing import Clock


def difference(one: Tensor, two: Tensor) -> dict[str, float]:
    """Return the largest absolute and relative difference."""
    gap = (one - two).abs()
    relative = gap / two.abs().where(two != 0, 1.0)
    return {"absolute": float(gap.max()), "relative": float(relative.max())}


def random_laws(
    classes: int,
    dimension: int,
    decay: float,  # feature k has standard deviation k^-decay before the samples turn it
    seed: int,
    device: torch.device,
    samples: int | None = None,  # of a class; None: 2 d, laws of full rank
) -> ClassLaws:
    """Return laws of random samples, generated in batches of 64 classes."""
    samples = samples or 2 * dimension
    g = torch.Generator(device).manual_seed(seed)
    scale = torch.arange(1, dimension + 1, device=device, dtype=torch.float64) ** -decay
    options: dict[str, Any] = {"generator": g, "device": device, "dtype": torch.float64}
    factors: list[Tensor] = []
    while len(factors) < classes:
        count = min(64, classes - len(factors))
        x = torch.randn(count, samples, dimension, **options) * scale / samples**0.5
        factors += list(x) if samples <= dimension else factorize(x.mT @ x)
    # no means: they would hide the covariances' part
    means = torch.zeros(classes, dimension, device=device, dtype=torch.float64)
    masses = torch.full((classes,), 1 / classes, device=device, dtype=torch.float64)
    return ClassLaws("gaussian", masses, means, None, tuple(factors))


def real(
    clock: Clock,
    data_root: str | None,
    samples: int,
    method: str,
    compare: bool,
    names: tuple[str, str] = ("mnist", "fashion-mnist"),
) -> dict[str, Any]:
    """Time the three blocks of two datasets, and another method for comparison."""
    data = clock("load", lambda: [load(n, data_root=data_root, max_samples=samples) for n in names])
    # the first calls of the libraries, on other shapes: reported, not part of the stages
    clock("warm up", lambda: warm_up(str(clock.device)))
    points = clock("copy points", lambda: [d.points.to(clock.device) for d in data])
    laws = clock(
        "class laws",
        lambda: [
            class_laws(x, d.labels, d.weights, device=clock.device)
            for x, d in zip(points, data, strict=True)
        ],
    )
    found: LabelCost = clock("label cost", lambda: label_cost(*laws, method=method))
    report: dict[str, Any] = {
        "samples": [len(d) for d in data],
        "ranks": [[f.shape[0] for f in law.factors or ()] for law in laws],
        "mean_label_cost": float(found.xy.mean()),
    }
    if compare:
        products = method == "polar" or (method == "auto" and clock.device.type == "cuda")
        other = "svd" if products else "polar"
        reference = clock(f"label cost ({other})", lambda: label_cost(*laws, method=other))
        report["difference"] = {
            key: difference(a, b) for key, a, b in zip(found._fields, found, reference, strict=True)
        }
    return report


def many(
    clock: Clock,
    classes: int,
    dimension: int,
    decay: float,
    method: str,
    check: int,
    samples: int | None = None,
) -> dict[str, Any]:
    """Time a block of classes x classes random laws; check a corner by singular values."""
    laws = clock(
        "random laws",
        lambda: [
            random_laws(classes, dimension, decay, seed, clock.device, samples) for seed in (0, 1)
        ],
    )
    clock("warm up", lambda: gaussian_w2(part(laws[0], 8), part(laws[1], 8), method=method))
    found = clock("label cost", lambda: gaussian_w2(*laws, method=method))
    corner = [part(law, check) for law in laws]
    reference = clock("check (svd)", lambda: gaussian_w2(*corner, method="svd"))
    return {
        "classes": classes,
        "dimension": dimension,
        "samples": samples or 2 * dimension,
        "decay": decay,
        "difference": difference(found[:check, :check], reference),
    }


def part(laws: ClassLaws, classes: int) -> ClassLaws:
    """Return the first laws."""
    factors = None if laws.factors is None else laws.factors[:classes]
    return ClassLaws(laws.kind, laws.masses[:classes], laws.means[:classes], None, factors)


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:1.")
@click.option("--data-root", default=None, help="Folder with the IDX files.")
@click.option("--samples", default=2000, show_default=True, help="Samples a side.")
@click.option("--method", type=click.Choice(["auto", "svd", "polar"]), default="auto")
@click.option("--many", "random", is_flag=True, help="Random laws instead of data.")
@click.option("--classes", default=1000, show_default=True, help="With --many.")
@click.option("--dimension", default=512, show_default=True, help="With --many.")
@click.option("--decay", default=0.0, show_default=True, help="With --many: spectrum k^-2 decay.")
@click.option("--check", default=4, show_default=True, help="With --many: laws a side checked.")
@click.option("--compare/--no-compare", default=True, help="Run the other method too (real data).")
def main(
    device: str,
    data_root: str | None,
    samples: int,
    method: str,
    random: bool,
    classes: int,
    dimension: int,
    decay: float,
    check: int,
    compare: bool,
) -> None:
    """Run one benchmark and print its JSON."""
    where = torch.device(device)
    clock = Clock(where)
    cuda = where.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(where)
    if random:
        report = many(clock, classes, dimension, decay, method, check)
    else:
        report = real(clock, data_root, samples, method, compare)
    report |= {
        "device": torch.cuda.get_device_name(where) if cuda else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "method": method,
        "seconds": clock.seconds,
        "peak_gpu_bytes": torch.cuda.max_memory_allocated(where) if cuda else None,
    }
    click.echo(json.dumps(report))


if __name__ == "__main__":
    main()
