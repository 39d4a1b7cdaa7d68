"""Small clouds and pairs for the kernel tests, and how their errors are counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import Cloud, centre, quantize
from otdd_flash_kernels.sparsity import order_columns

KINDS = ("uint8", "fp16", "fp32", "integers", "pixels", "fp64", "int64")


def points(kind: str, n: int, d: int, seed: int) -> Tensor:  # (n, d)
    """Return random points of one of ``KINDS``."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "fp16":
        return torch.randn((n, d), generator=generator).half()
    if kind == "fp32":
        return torch.randn((n, d), generator=generator)
    if kind == "fp64":
        return torch.randn((n, d), generator=generator, dtype=torch.float64)
    if kind == "int64":
        return torch.randint(-3000, 3000, (n, d), generator=generator)
    bytes_ = torch.randint(0, 256, (n, d), generator=generator)
    if kind == "uint8":
        return bytes_.to(torch.uint8)
    return bytes_.float() if kind == "integers" else bytes_.float() / 255


SPARSE = ("black", "white", "per column", "one value in the middle", "dense", "blank")


def sparse_points(kind: str, n: int, d: int, seed: int) -> Tensor:  # (n, d) uint8
    """Return images: most pixels hold a background, rows reach differently far, one row is blank.

    Which columns are used often is the same for all seeds, as for digits in a frame.
    """
    generator = torch.Generator().manual_seed(seed)
    inked = torch.randint(1, 256, (n, d), generator=generator)
    if kind == "dense":
        return inked.to(torch.uint8)
    frame = torch.Generator().manual_seed(d)
    rank = torch.randperm(d, generator=frame)  # columns from often to seldom used
    reach = torch.randint(0, d, (n, 1), generator=generator) * 2 // 3
    drawn = (rank < reach) & (torch.rand((n, d), generator=generator) < 0.7)
    drawn[n // 2] = False
    if kind == "blank":
        drawn[:] = False
        drawn[0] = True  # columns that are constant would be folded
    image = torch.where(drawn, inked, 0)
    if kind == "white":
        image = 255 - image
    if kind == "per column":
        image = (image + torch.randint(0, 256, (d,), generator=frame)).clamp(max=255)
    if kind == "one value in the middle":
        image = torch.where(drawn, inked, 128)
    return image.to(torch.uint8)


def by_extent(cloud: Cloud, labels: Tensor) -> Cloud:
    """Return the cloud with the rows of each class sorted by their extent."""
    assert cloud.extent is not None
    return cloud.take(torch.argsort(labels * (cloud.data.shape[-1] + 1) + cloud.extent))


def sparse_pair(
    x: Tensor,  # (n, d) uint8
    y: Tensor,  # (m, d), may be x itself
    *,
    classes: tuple[int, int] = (3, 4),
    by_extents: bool = True,
    row_labels: Tensor | None = None,  # sorted; None: random
    column_labels: Tensor | None = None,
) -> CostPair:
    """Return a pair as :func:`pair_of`, columns ordered by use and rows by extent if asked."""
    pair = pair_of(x, y, classes=classes)
    rows, columns = order_columns(*quantize(x, y))
    row_labels = pair.row_labels if row_labels is None else row_labels
    column_labels = pair.column_labels if column_labels is None else column_labels
    if y is x:
        column_labels = row_labels
    if by_extents and rows.extent is not None:
        same = columns is rows
        rows = by_extent(rows, row_labels)
        columns = rows if same else by_extent(columns, column_labels)
    return replace(
        pair, rows=rows, columns=columns, row_labels=row_labels, column_labels=column_labels
    )


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (n, m) float64
    """Return the squared distances of the given points, by differences."""
    return (x.double()[:, None] - y.double()[None]).square().sum(-1)


def pair_of(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    *,
    classes: tuple[int, int] = (3, 4),
    slices: int | None = None,
    floats: bool = False,  # centred floats instead of slices
    device: str = "cpu",
) -> CostPair:
    """Return a pair with random sorted labels and a label cost as large as the squared distance."""
    rows, columns = centre(x, y) if floats else quantize(x, y, slices=slices)
    generator = torch.Generator().manual_seed(x.shape[0] * 1000 + y.shape[0])
    size = rows.step**2 * float((rows.bias.mean() + columns.bias.mean()).clamp(min=1.0))

    def labels(n: int, v: int) -> Tensor:
        # as many classes as points: one point in each
        drawn = torch.arange(n) if v == n else torch.randint(0, v, (n,), generator=generator)
        return drawn.sort().values

    pair = CostPair(
        rows,
        columns,
        rows.step**2,
        size * torch.rand(classes, generator=generator, dtype=torch.float64),
        labels(x.shape[0], classes[0]),
        labels(y.shape[0], classes[1]),
    )
    return to_device(pair, device)


def to_device(pair: CostPair, device: str) -> CostPair:
    """Return the same pair on a device."""

    def cloud(part):
        return replace(
            part,
            data=part.data.to(device),
            bias=part.bias.to(device),
            residual=part.residual.to(device),
            background=None if part.background is None else part.background.to(device),
            extent=None if part.extent is None else part.extent.to(device),
        )

    return replace(
        pair,
        rows=cloud(pair.rows),
        columns=cloud(pair.columns),
        label_cost=pair.label_cost.to(device),
        row_labels=pair.row_labels.to(device),
        column_labels=pair.column_labels.to(device),
    )


def potential(n: int, size: float, eps: float, *, zeros: bool = True) -> Tensor:  # (n,) float64
    """Return a random potential plus eps log weight, a fifth of the weights zero."""
    generator = torch.Generator().manual_seed(n)
    h = size * torch.randn(n, generator=generator, dtype=torch.float64) - eps * math.log(n)
    if zeros and n > 1:
        h[::5] = -torch.inf
    return h


class Plain:
    """The formulas of ``reference`` in plain torch float32 throughout."""

    def __init__(self, pair: CostPair) -> None:
        q, p = pair.rows.dense(torch.float32), pair.columns.dense(torch.float32)
        cross = q @ p.mT
        squared = pair.rows.bias.float()[:, None] + pair.columns.bias.float() - 2 * cross
        labels = pair.label_cost.float()[pair.row_labels][:, pair.column_labels]
        self.pair = pair
        self.cost = pair.scale * squared + labels  # (n, m) float32

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """(n,) float32."""
        return -eps * torch.logsumexp((h.float() - self.cost) / eps, dim=1)

    def softmin_mean(self, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(n,) float32 softmin and mean score."""
        score = (h.float() - self.cost).clamp(min=torch.finfo(torch.float32).min)
        weights = torch.softmax(score / eps, dim=1)
        return self.softmin(h, eps), (weights * score).sum(1)

    def hardmin(self, g: Tensor) -> Tensor:
        """(n,) float32."""
        return (self.cost - g.float()).amin(1)

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """(n, Vy) float32."""
        score = (h.float() - self.cost) / eps
        seams = self.pair.column_seams
        parts = [score[:, a:b].logsumexp(1) for a, b in zip(seams, seams[1:], strict=False)]
        return -eps * torch.stack(parts, 1)


# how chips of other capabilities read or multiply points, by the name of a backend
FORCED: dict = {
    "triton, float16": (10, {"multiply": "float16"}),
    "triton, pointers": (8, {"host_descriptors": False}),
}


@contextmanager
def forced(backend: str) -> Iterator[None]:
    """Choose launches as another chip would: its own on a GPU, the interpreter's made like it."""
    if backend not in FORCED:
        yield
        return
    import triton

    from otdd_flash_kernels import launch

    major, change = FORCED[backend]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "INTERPRETER", replace(launch.INTERPRETER, **change))
        patch.setattr(launch, "get_device_capability", lambda device: (major, 0))
        if torch.cuda.is_available():
            # where the hardware copies tensors, kernels write their own descriptors to memory
            triton.set_allocator(
                lambda size, alignment, stream: torch.zeros(size, dtype=torch.int8, device="cuda")
            )
        yield


def magnitude(cost: Tensor, h: Tensor, eps: float) -> float:
    """Return the size of the largest number that any evaluation has to round."""
    return float(cost.abs().max() + h[h.isfinite()].abs().max() + eps)


def error(got: Tensor, truth: Tensor) -> float:
    """Return the largest difference; infinities and NaN must sit in the same places."""
    got, truth = got.double().cpu(), truth.double().cpu()
    assert got.shape == truth.shape
    assert torch.equal(got.isnan(), truth.isnan())
    assert torch.equal(got[got.isinf()], truth[truth.isinf()])
    assert torch.equal(got.isinf(), truth.isinf())
    finite = truth.isfinite()
    return float((got - truth)[finite].abs().max()) if finite.any() else 0.0


def unlabelled(
    rows: Cloud,
    columns: Cloud,
    factor: float = 1.0,  # cost of one squared unit of the points
) -> CostPair:
    """Return the pair whose cost has no label term."""
    device = rows.data.device
    return CostPair(
        rows,
        columns,
        factor * rows.step**2,
        torch.zeros((1, 1), dtype=torch.float64, device=device),
        torch.zeros(rows.n, dtype=torch.int64, device=device),
        torch.zeros(columns.n, dtype=torch.int64, device=device),
    )
