"""A made-up result for tests of formatting, plots and files, and what files must keep."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

import otdd_flash as otdd
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import DatasetSummary, LabelledDataset, OTDDResult, Transport

CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGITS = tuple("0123456789")


def fake_result(vx: int = 10, vy: int = 10, **changes) -> OTDDResult:
    generator = torch.Generator().manual_seed(0)
    mass = torch.rand(vx, vy, generator=generator, dtype=torch.float64) ** 12 + 1e-9
    rows = DIGITS if vx == 10 else tuple(f"class number {k}" for k in range(vx))
    columns = CLOTHES if vy == 10 else tuple(f"another class {k}" for k in range(vy))
    n, m = 4 * vx, 3 * vy
    values = {
        "source": DatasetSummary("mnist", n, 784, vx, rows, {"split": "train"}),
        "target": DatasetSummary("fashion-mnist", m, 784, vy, columns, {"split": "train"}),
        "distance": 15.25,
        "squared": 232.5625,
        "squared_bounds": (231.0, 233.5),
        "transport": Transport(250.1, 251.3, 250.9),
        "epsilon": 1.301,
        "mean_cost": 130.1,
        "marginal_error": 8.3e-4,
        "converged": True,
        "passes": 41,
        "self_passes": (12, 13),
        "label_cost": torch.rand(vx, vy, generator=generator, dtype=torch.float64) * 90 + 10,
        "class_mass": mass / mass.sum(),
        "f": torch.randn(n, generator=generator, dtype=torch.float64),
        "g": torch.randn(m, generator=generator, dtype=torch.float64),
        "quantization_error": 0.0,
        "seconds": {"class laws": 1.25, "solve": 10.5, "total": 12.0},
        "peak_memory_bytes": 1_234_567_890,
        "device": "cpu",
        "settings": OTDDSettings(),
        "versions": {"otdd-flash": "0.1.0", "torch": torch.__version__},
        "notes": (),
    }
    return OTDDResult(**{**values, **changes})


def fake_images(vx: int = 10, shape: tuple[int, ...] = (28, 28), per_class: int = 4, seed: int = 0):
    """Blurry blobs, another place for each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(vx).repeat(per_class)
    points = torch.randint(0, 40, (len(labels), *shape), generator=generator, dtype=torch.uint8)
    for row, label in enumerate(labels.tolist()):
        at = 2 + label % 10 * 2
        points[row, ..., at : at + 6, at : at + 9] = 220
    return LabelledDataset(points, labels, name="images", sample_shape=shape)


def reread(found: Any, path: Path) -> Any:
    """Return what a file keeps of a result, after comparing every field."""
    otdd.save(found, path)
    back = otdd.load_result(path)
    assert type(back) is type(found)
    for field in dataclasses.fields(found):
        old, new = getattr(found, field.name), getattr(back, field.name)
        same = torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new
        assert same and type(old) is type(new), field.name
    return back
