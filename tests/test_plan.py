"""The streamed plan against its dense float64 formula."""

from __future__ import annotations

import pytest
import torch

import otdd_flash as otdd

SETTINGS = {"epsilon": "5%", "tol": 1e-10, "max_passes": 5000, "device": "cpu"}


def datasets(n: int = 23, m: int = 31, d: int = 4):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(n, d, generator=draw, dtype=torch.float64)
    y = torch.randn(m, d, generator=draw, dtype=torch.float64) + 1
    a = torch.rand(n, generator=draw, dtype=torch.float64)
    a[4] = 0.0
    lx = torch.randint(0, 3, (n,), generator=draw)
    ly = torch.randint(0, 4, (m,), generator=draw)
    return (
        otdd.LabelledDataset(x, lx, weights=a / a.sum(), name="x"),
        otdd.LabelledDataset(y, ly, name="y"),
    )


def dense(result: otdd.OTDDResult, src: otdd.LabelledDataset, tgt: otdd.LabelledDataset):
    cost = torch.cdist(src.points, tgt.points).square()
    cost = cost + result.label_cost[src.labels][:, tgt.labels]
    score = (result.f[:, None] + result.g[None] - cost) / result.epsilon
    return torch.nan_to_num(score.exp() * src.weights[:, None] * tgt.weights[None], nan=0.0)


def test_everything_agrees_with_the_dense_plan():
    src, tgt = datasets()
    result = otdd.distance(src, tgt, **SETTINGS)
    plan, truth = result.plan, dense(result, src, tgt)
    assert truth.sum() == pytest.approx(1.0, abs=1e-9)
    torch.testing.assert_close(plan.to_dense(), truth, rtol=1e-9, atol=1e-13)
    torch.testing.assert_close(plan.row_mass(), truth.sum(1), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(plan.column_mass(), truth.sum(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(plan @ tgt.points, truth @ tgt.points, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        plan.matmul(tgt.points[:, 0]), truth @ tgt.points[:, 0], rtol=1e-9, atol=1e-12
    )
    rows = truth / truth.sum(1, keepdim=True)
    rows[4] = 0.0
    torch.testing.assert_close(
        plan.barycentric_map(tgt.points), rows @ tgt.points, rtol=1e-9, atol=1e-12
    )
    columns = truth / truth.sum(0)
    torch.testing.assert_close(
        plan.column_means(src.points), columns.mT @ src.points, rtol=1e-9, atol=1e-12
    )
    mass = torch.zeros(3, 4, dtype=torch.float64)
    for i in range(len(src)):
        mass[src.labels[i]] += torch.zeros(4, dtype=torch.float64).index_add_(
            0, tgt.labels, truth[i]
        )
    torch.testing.assert_close(plan.class_mass(), mass, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.class_mass, mass, rtol=1e-9, atol=1e-12)


def test_top_matches_are_the_largest_masses():
    src, tgt = datasets()
    result = otdd.distance(src, tgt, **SETTINGS)
    index, mass = result.plan.top_matches(3)
    best, place = dense(result, src, tgt).topk(3, dim=1)
    used = src.weights > 0
    assert torch.equal(index[used], place[used])
    torch.testing.assert_close(mass[used], best[used], rtol=1e-9, atol=1e-14)
    assert index[4].tolist() == [-1, -1, -1] and mass[4].sum() == 0


def test_a_dataset_is_matched_with_itself():
    src, _ = datasets()
    weighted = otdd.LabelledDataset(src.points, src.labels, name="again", weights=src.weights)
    result = otdd.distance(src, weighted, **{**SETTINGS, "epsilon": "0.1%"})
    index, _ = result.plan.top_matches(1)
    used = (src.weights > 0).nonzero()[:, 0]
    assert torch.equal(index[used, 0], used)


def test_a_saved_result_has_no_plan(tmp_path):
    src, tgt = datasets()
    otdd.save(otdd.distance(src, tgt, **SETTINGS), tmp_path / "r.npz")
    assert otdd.load_result(tmp_path / "r.npz").plan is None


def test_bad_questions_are_refused():
    src, tgt = datasets()
    plan = otdd.distance(src, tgt, **SETTINGS).plan
    with pytest.raises(otdd.DataError, match=r"expected \(31, k\)"):
        plan.matmul(src.points)
    with pytest.raises(otdd.DataError, match="k is 32; expected 1 to 31"):
        plan.top_matches(32)
    big = type(plan)(plan.pair, plan.solution, plan.eps, plan.x, plan.y, (1 << 20, 1 << 20))
    with pytest.raises(otdd.BudgetError, match="dense plan"):
        big.to_dense()
