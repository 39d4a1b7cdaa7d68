"""The grid of a flow: what is stored, in floats and in the slices that GPUs read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clouds import points, squared_distances, unlabelled
from problems import dataset

from otdd_flash.flows import FlowSettings, flow, terms
from otdd_flash.flows.grid import Grid
from otdd_flash.operators import TritonOperator
from otdd_flash.settings import OTDDSettings
from otdd_flash_kernels.cpu import CpuCost


def stored_points(grid: Grid, cloud) -> torch.Tensor:
    """What the cloud says where its points are."""
    d = len(grid.low)
    return cloud.dense()[:, :d] * cloud.step + grid.offset


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("slices", [None, 1, 2, 3])
@pytest.mark.parametrize("kind", ["uint8", "fp32", "fp64"])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (7, 3), (33, 17)])
def test_clouds_say_where_points_are(cut, slices, kind, n, d):
    x, y = points(kind, n, d, 1), points(kind, n + 2, d, 2)
    grid = Grid.of(x, y, slices)
    if cut:
        # as on a GPU, where 0 slices do not exist
        asked = slices or (1 if kind == "uint8" else 2)
        span = float((grid.high - grid.low).max())
        step = 1.0 if grid.whole else span / (2 * (127, 32639, 8355711)[asked - 1])
        grid = replace(grid, slices=asked, step=step or 1.0, cut=True)
    # the moving points are floats
    moving = x.float() + 0.3 if kind == "uint8" else x
    moving = torch.minimum(moving, grid.high.to(moving))
    assert grid.covers(moving) and grid.covers(y)
    for given in (moving, y):
        cloud = grid.cloud(given)
        assert cloud.quantized == cut
        there = stored_points(grid, cloud)
        gap = (there - given.double()).square().sum(1)
        # half a step a coordinate, and what float32 rounds of values below 1000
        half = 0.5 * grid.step + 1e-4 * (kind != "fp64") if grid.slices else 1e-12
        assert float(gap.max()) <= d * half**2
        torch.testing.assert_close(cloud.residual, gap, rtol=0.1, atol=1e-7)
        norms = (cloud.dense()[:, :d]).square().sum(1)
        torch.testing.assert_close(cloud.bias, norms, rtol=1e-12, atol=1e-12)
    cloud = grid.cloud(moving)
    seen = grid.stored(moving, cloud)
    assert (seen.dtype == torch.uint8) == grid.whole
    where = stored_points(grid, cloud)
    # computed and kept in the dtype of the points: some roundings of the largest
    rounding = torch.finfo(moving.dtype).eps * float(where.abs().max())
    torch.testing.assert_close(seen.double(), where, rtol=0, atol=2 * rounding)
    if grid.whole:
        # the target's 8-bit integers are exact
        assert not grid.cloud(y).residual.any()


@pytest.mark.parametrize("slices", [1, 2])
def test_a_grid_is_left_and_widened(slices):
    x, y = points("uint8", 9, 4, 1), points("uint8", 8, 4, 2)
    grid = replace(Grid.of(x, y, slices), slices=slices, cut=True)
    if slices == 2:
        grid = replace(grid, step=255 / (2 * 32639))
    out = x.float()
    out[3, 2] = 400.0
    assert not grid.covers(out)
    wide = grid.widened(out)
    assert wide.covers(out) and wide.covers(y) and wide.covers(out + 0.05 * 145)
    assert not wide.whole and wide.slices == slices and wide.cut
    pair = unlabelled(wide.cloud(out), wide.cloud(y))
    cost = next(CpuCost(pair, store=False).blocks())[1]
    truth = squared_distances(out, y)
    # both ends of a difference move by half a step
    bound = 2 * truth.sqrt() * 2 * wide.step + 4 * 4 * wide.step**2
    assert bool(((cost - truth).abs() <= bound).all())


def test_points_without_range_lie_on_any_grid():
    x = torch.zeros(3, 2)
    grid = Grid.of(x, x, 1)
    assert grid.covers(x) and not grid.cloud(x).residual.any()
    assert torch.equal(grid.stored(x, grid.cloud(x)), x)


@pytest.mark.parametrize(
    ("kind", "slices", "mode"), [("uint8", 1, "attached"), ("float32", 2, "features")]
)
def test_kernels_and_cpu_flow_alike(kind, slices, mode, monkeypatch):
    """The kernels in the interpreter, fed as on a GPU, move points where the CPU does."""
    src, tgt = dataset(24, 5, 1, kind), dataset(20, 5, 2, kind)
    solver = OTDDSettings(tol=1e-4, device="cpu", slices=slices)
    settings = FlowSettings(mode=mode, steps=1, step_size=0.1, solver=solver)
    truth = list(flow(src, tgt, settings))
    made = Grid.of

    def cut(x, y, asked):
        grid = made(x, y, asked)
        span = float((grid.high - grid.low).max())
        step = 1.0 if slices == 1 else span / (2 * 32639)
        return replace(grid, slices=slices, step=step, cut=True)

    monkeypatch.setattr(terms.Grid, "of", staticmethod(cut))
    monkeypatch.setattr(terms, "make_operator", lambda pair, budget: TritonOperator(pair))
    found = list(flow(src, tgt, settings))
    assert "triton" in found[0].backend and "cpu" in truth[0].backend
    scale = float(tgt.points.double().std())
    for state, expected in zip(found, truth, strict=True):
        # float32 sums of costs, halves for weights of the plan: their errors average out
        assert state.value == pytest.approx(expected.value, rel=1e-3)
        assert state.converged
        torch.testing.assert_close(state.points, expected.points, rtol=0, atol=2e-3 * scale)
