"""Time class laws and label cost and compare the methods; prints one JSON object.

For example ``bench_laws.py --data-root DATA --samples 60000 --no-compare`` on a CPU, and
``bench_laws.py --device cuda --many --classes 1000 --dimension 512`` on a GPU, which ends after
``--time-limit`` seconds whatever is left, with a figure that says so.
"""

from __future__ import annotations

import json
import math
from typing import Any

import click
import torch
from torch import Tensor

from otdd_flash.ahead import warm_up
from otdd_flash.datasets import load
from otdd_flash.laws.bures import LabelCost, gaussian_w2, label_cost, usual_accuracy
from otdd_flash.laws.factor_pairs import BAND_ACCURACY
from otdd_flash.laws.factors import factorize
from otdd_flash.laws.gaussians import ClassLaws, class_laws
from otdd_flash.laws.nuclear import LARGEST
from otdd_flash.timing import Clock, seconds_of

# what float64 products and copies reach on one H200
FLOPS, BYTES = 5e13, 4.2e12
# source classes whose distances are timed together
SLAB = 100


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


def operations(
    rank: int,
    dimension: int,
    accuracy: float,  # relative, of nuclear norms
) -> dict[str, float]:
    """Return what one pair of laws of equal rank costs, by bands and by polar factors.

    Bands: F G^T, its Gram matrix (five eighths of a product) and, for panels of 16 columns, three
    passes over what is left of it, in which two products ride. Polar: steps of a Gram matrix, an
    inverse (two thirds) and a product, which raise a floor of accuracy / 2 by 27 each to 0.1 and
    then flatten in three.
    """
    product, pair = 2.0 * rank**3, 2.0 * rank**2 * dimension
    steps = math.ceil(math.log(0.2 / accuracy) / math.log(27.0)) + 3
    return {
        "bands_flops": pair + 0.625 * product + 2.0 * rank**3,
        "bands_bytes": 3 * 8 * rank**3 / (3 * 16),
        "polar_flops": pair + steps * 2.3 * product,
        "polar_steps": steps,
    }


def predicted(counts: dict[str, float], bands: bool) -> float:
    """Return the seconds of a pair at the rates of one H200 in float64: FLOPS and BYTES."""
    if bands:
        return counts["bands_flops"] / FLOPS + counts["bands_bytes"] / BYTES
    return counts["polar_flops"] / FLOPS


def timed_block(
    clock: Clock,
    source: ClassLaws,
    target: ClassLaws,
    time_limit: float,  # seconds after which no slab begins
    **options: Any,  # of `gaussian_w2`
) -> tuple[Tensor, float]:  # (rows done, Vy), their share
    """Compute distances by slabs of rows, as many as the time allows."""
    rows: list[Tensor] = []
    done, spent = 0, 0.0
    while done < source.classes and spent < time_limit:
        slab = part(source, SLAB, done)
        block, seconds = seconds_of(
            lambda slab=slab: gaussian_w2(slab, target, **options), clock.device
        )
        rows.append(block)
        done, spent = done + slab.classes, spent + seconds
    clock.seconds["label cost"] = spent
    return torch.cat(rows), done / source.classes


def many(
    clock: Clock,
    classes: int,
    dimension: int,
    decay: float,
    method: str,
    check: int,
    samples: int | None = None,
    accuracy: float | None = None,
    memory_limit: int | None = None,
    time_limit: float = 100.0,
) -> dict[str, Any]:
    """Time a block of classes x classes random laws; check a corner by singular values."""
    laws = clock(
        "random laws",
        lambda: [
            random_laws(classes, dimension, decay, seed, clock.device, samples) for seed in (0, 1)
        ],
    )
    if accuracy is None:
        accuracy = usual_accuracy(*laws)
    options: dict[str, Any] = {
        "method": method,
        "accuracy": accuracy,
        "memory_limit": memory_limit,
    }
    # as many pairs as let bands come first
    clock("warm up", lambda: gaussian_w2(part(laws[0], 40), part(laws[1], 40), **options))
    found, share = timed_block(clock, *laws, time_limit, **options)
    corner = [part(law, check) for law in laws]
    reference = clock("check (svd)", lambda: gaussian_w2(*corner, method="svd"))
    rank = max(len(factor) for law in laws for factor in law.factors or ())
    counts = operations(rank, dimension, accuracy)
    bands = accuracy >= BAND_ACCURACY and rank <= LARGEST
    pairs = found.numel()
    return {
        "classes": classes,
        "dimension": dimension,
        "samples": samples or 2 * dimension,
        "rank": rank,
        "decay": decay,
        "accuracy": accuracy,
        "done": share,
        # measured where done is 1
        "seconds_extrapolated": clock.seconds["label cost"] / share,
        "seconds_predicted": predicted(counts, bands) * classes**2,
        "microseconds_a_pair": 1e6 * clock.seconds["label cost"] / pairs,
        "operations_a_pair": counts,
        "difference": difference(found[:check, :check], reference),
    }


def part(laws: ClassLaws, classes: int, first: int = 0) -> ClassLaws:
    """Return some of the laws."""
    chosen = slice(first, first + classes)
    factors = None if laws.factors is None else laws.factors[chosen]
    return ClassLaws(laws.kind, laws.masses[chosen], laws.means[chosen], None, factors)


@click.command(help=__doc__)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:1.")
@click.option("--data-root", default=None, help="Folder with the IDX files.")
@click.option("--samples", default=2000, show_default=True, help="Samples a side.")
@click.option("--method", type=click.Choice(["auto", "svd", "polar"]), default="auto")
@click.option("--many", "random", is_flag=True, help="Random laws instead of data.")
@click.option("--classes", default=1000, show_default=True, help="With --many.")
@click.option("--dimension", default=512, show_default=True, help="With --many.")
@click.option("--decay", default=0.0, show_default=True, help="With --many: spectrum k^-2 decay.")
@click.option("--law-samples", type=int, help="With --many: samples a class, else 2 d.")
@click.option("--accuracy", type=float, help="With --many: of nuclear norms, else the usual one.")
@click.option("--memory-limit", type=int, help="With --many: bytes of temporaries.")
@click.option("--time-limit", default=100.0, show_default=True, help="With --many: seconds.")
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
    law_samples: int | None,
    accuracy: float | None,
    memory_limit: int | None,
    time_limit: float,
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
        report = many(
            clock,
            classes,
            dimension,
            decay,
            method,
            check,
            law_samples,
            accuracy,
            memory_limit,
            time_limit,
        )
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
