"""Operators that leave constant columns out, against the dense float64 formulas."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from clouds import (
    SPARSE,
    Plain,
    error,
    magnitude,
    pair_of,
    points,
    potential,
    sparse_pair,
    sparse_points,
    unlabelled,
)
from softmin_backends import (
    DEVICE,
    OTHER_CHIPS,
    TEMPERATURES,
    TRITON,
    K,
    Operators,
    assert_accurate,
    check_all,
)

from otdd_flash_kernels import reference

pytestmark = pytest.mark.usefixtures("poisoned")


# kinds of rows and columns; the sparser side says what is left out
MIXED = [("black", kind) for kind in SPARSE] + [
    (kind, "black") for kind in SPARSE if kind != "black"
]
MIXED += [("white", "per column"), ("per column", "per column"), ("blank", "blank")]


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("by_extents", [True, False])
@pytest.mark.parametrize("kinds", MIXED, ids=str)
def test_sparse_clouds(kinds, by_extents, backend):
    # sorted by extent or not; both roles of both kinds, since all operators run transposed too
    x, y = (sparse_points(kind, n, 100, n) for kind, n in zip(kinds, (67, 77), strict=True))
    pair = sparse_pair(x, y, by_extents=by_extents)
    check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), 0.05)


@pytest.mark.parametrize("backend", OTHER_CHIPS)
def test_sparse_clouds_as_other_chips_run_them(backend):
    x, y = sparse_points("white", 67, 100, 67), sparse_points("per column", 77, 100, 77)
    pair = sparse_pair(x, y)
    check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), 0.05)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kind", ["black", "white", "per column"])
def test_a_sparse_cloud_with_itself(kind, backend):
    x = sparse_points(kind, 70, 100, 13)
    pair = sparse_pair(x, x, classes=(3, 3))
    assert pair.rows is pair.columns
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    check_all(operators, pair, cost, 0.05)
    pair = unlabelled(pair.rows, pair.columns)
    got = Operators(backend, pair).hardmin(torch.zeros(70, dtype=torch.float64))
    assert float(got.abs().max()) <= K * 2.0**-24 * float(reference.cost_matrix(pair).max())


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("relative_eps", TEMPERATURES)
@pytest.mark.parametrize("roles", ["rows", "columns"])
def test_sparse_clouds_at_small_and_large_temperatures(roles, relative_eps, backend):
    x, y = sparse_points("black", 40, 100, 14), sparse_points("dense", 37, 100, 15)
    pair = sparse_pair(*((x, y) if roles == "rows" else (y, x)))
    check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), relative_eps)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kinds", [("black", "white"), ("dense", "black")], ids=str)
def test_every_sparse_column_its_own_class(kinds, backend):
    # one segment for each column, each with steps of its own: the softmin is the cost itself
    x, y = (sparse_points(kind, n, 100, n) for kind, n in zip(kinds, (33, 35), strict=True))
    pair = sparse_pair(x, y, classes=(2, 35), column_labels=torch.arange(35))
    cost = reference.cost_matrix(pair)
    got = Operators(backend, pair).class_softmin(torch.zeros(35, dtype=torch.float64), 1.0)
    assert error(got, cost) <= K * max(error(Plain(pair).cost, cost), 2.0**-24 * float(cost.max()))


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kinds", [("black", "black"), ("dense", "black"), ("fp32", "fp32")])
@pytest.mark.parametrize("spared", [slice(0, 0), slice(0, 1), slice(64, 96), slice(159, 163)])
def test_many_segments_that_may_hold_no_weight(spared, kinds, backend, monkeypatch):
    # few rows: the columns are cut into as many segments as tiles, most of weight zero
    from otdd_flash_kernels import triton_cost

    monkeypatch.setattr(triton_cost, "wanted_programs", lambda device: 1000)
    if kinds[0] == "fp32":
        pair = pair_of(points("fp32", 20, 5, 16), points("fp32", 163, 5, 17), classes=(1, 4))
    else:
        x, y = (sparse_points(k, n, 100, n) for k, n in zip(kinds, (20, 163), strict=True))
        pair = sparse_pair(x, y, classes=(1, 4))
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    if DEVICE == "cpu":
        # five or six: a column that needs many steps makes a piece of its own
        assert len(operators.forward._whole[1]) > 5
    eps = 0.05 * float(cost.mean())
    check_all(operators, pair, cost, 0.05)
    h = torch.full((163,), -torch.inf, dtype=torch.float64)
    h[spared] = potential(163, float(cost.mean()) / 4, eps, zeros=False)[spared]
    size = magnitude(cost, h.nan_to_num(neginf=0.0), eps)
    plain = Plain(pair)
    soft, mean = operators.softmin_mean(h, eps)
    assert error(soft, operators.softmin(h, eps)) <= 2.0**-24 * size
    if spared == slice(0, 0):
        assert (soft == torch.inf).all() and mean.isnan().all()
    else:
        truth = reference.softmin_mean(pair, h, eps)[1]
        assert_accurate(operators, mean, truth, plain.softmin_mean(h, eps)[1], size)
    for got, truth, usual in [
        (soft, reference.softmin(pair, h, eps), plain.softmin(h, eps)),
        (operators.hardmin(h), reference.hardmin(pair, h), plain.hardmin(h)),
        (
            operators.class_softmin(h, eps),
            reference.class_softmin(pair, h, eps),
            plain.class_softmin(h, eps),
        ),
    ]:
        assert_accurate(operators, got, truth, usual, size)


@cache
def images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 150 embedded samples (150, 784) uint8 and their classes, sorted by class."""
    from otdd_flash.datasets import load

    dataset = load(name)
    labels, order = dataset.labels[:150].sort(stable=True)
    return dataset.points[:150][order], labels


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(
    "names",
    [
        ("mnist-mini", "fashion-mnist-mini"),
        ("fashion-mnist-mini", "mnist-mini"),
        ("mnist-mini", "mnist-mini"),
    ],
    ids=str,
)
def test_real_images(names, backend):
    (x, lx), (y, ly) = (images(name) for name in names)
    pair = sparse_pair(x, y, classes=(10, 10), row_labels=lx, column_labels=ly)
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    true = (x.double()[:, None] - y.double()[None]).square().sum(-1)
    squared = reference.cost_matrix(replace(pair, label_cost=0 * pair.label_cost))
    assert torch.equal(squared.flatten().sort().values, true.flatten().sort().values)
    # something is left out, even by tiles as wide as a class
    forward = operators.forward
    assert min(int(forward._tiles[:, 3].min()), int(forward._by_class[0][:, 2].min())) < -(
        -pair.rows.data.shape[-1] // forward.launch.tile_depth
    )
    check_all(operators, pair, cost, 0.02)
