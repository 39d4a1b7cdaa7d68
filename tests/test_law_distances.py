"""Label costs of moving laws: bounds hold what measuring gives, and pairs are measured in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.bures import coupled_cost
from otdd_flash.cost import Margin
from otdd_flash.flows import FlowSettings, flow, law_distances
from otdd_flash.flows.law_distances import LawDistances
from otdd_flash.gaussians import ClassLaws, class_laws
from otdd_flash.settings import OTDDSettings

CLASSES = 3


class Walk:
    """Samples of three classes that walk at random, and what measures their laws."""

    def __init__(self, n: int = 60, d: int = 5, seed: int = 0) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        labels = (torch.arange(n) * CLASSES) // n
        weights = torch.rand(n, generator=self.draw, dtype=torch.float64) + 0.1
        self.margin = Margin(labels, weights / weights.sum(), torch.arange(n))
        self.points = self.normal(n, d) + 3.0 * labels[:, None]
        self.target = class_laws(self.normal(40, d), torch.arange(40) % 4, torch.full((40,), 1.0))
        self.distances = LawDistances(self.target)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.draw, dtype=torch.float64)

    def laws(self) -> ClassLaws:
        return class_laws(self.points, self.margin.labels, self.margin.weights)

    def step(self, size: float) -> None:
        # a class shifts, scales and shakes
        each = torch.arange(CLASSES, dtype=torch.float64)[:, None] / CLASSES
        shift = self.normal(CLASSES, 1)[self.margin.labels] + each[self.margin.labels]
        moved = shift + self.points * self.normal(CLASSES, 1)[self.margin.labels]
        after = self.points + size * (moved + self.normal(*self.points.shape))
        self.distances.walked(self.points, after, self.margin)
        self.points = after

    def truth(self):
        return coupled_cost(self.laws(), self.target, accuracy=1e-7, floor=1e-8, keep_limit=0)


def masses(pairs, columns: int) -> torch.Tensor:
    out = torch.full((CLASSES, columns), 1e-9, dtype=torch.float64)
    for c, k in pairs:
        out[c, k] = 1.0 / len(pairs)
    return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("often", [1, 3])
def test_bounds_hold_what_measuring_gives(seed, often):
    walk = Walk(seed=seed)
    walk.distances.measure(walk.laws(), False)
    mass, inner = masses([(0, 0), (1, 3)], 4), masses([(0, 1)], 3)
    bounded = 0
    for _ in range(6):
        walk.distances.saw(mass, inner)
        for _ in range(often):
            walk.step(0.02)
        found, truth = walk.distances.measure(walk.laws(), False), walk.truth()
        kept = walk.distances.tensors()
        for name in ("xy", "xx"):
            value, exact = getattr(found, name), getattr(truth, name)
            width = kept[f"width_{name}"]
            slack = 1e-10 * exact.abs().max()
            assert bool((value <= exact + slack).all())
            assert bool((exact <= value + width + slack).all())
            measured = width == 0
            torch.testing.assert_close(value[measured], exact[measured], rtol=1e-12, atol=1e-12)
            bounded += int((~measured).sum())
        # those with mass are measured, in both directions inside a dataset
        assert not kept["width_xy"][0, 0] and not kept["width_xy"][1, 3]
        assert not kept["width_xx"][0, 1] and not kept["width_xx"][1, 0]
        assert not found.xx.diagonal().any() and not kept["width_xx"].diagonal().any()
    assert bounded > 20


def test_pairs_that_moved_far_are_measured_again():
    walk = Walk()
    walk.distances.measure(walk.laws(), False)
    walk.distances.saw(masses([(0, 0)], 4), None)
    walk.step(1e-4)
    walk.distances.measure(walk.laws(), False)
    assert bool((walk.distances.tensors()["width_xy"] > 0).any())
    walk.distances.saw(masses([(0, 0)], 4), None)
    walk.step(5.0)
    found = walk.distances.measure(walk.laws(), False)
    assert not walk.distances.tensors()["width_xy"].any()
    torch.testing.assert_close(found.xy, walk.truth().xy, rtol=1e-12, atol=0)


def test_rigid_shifts_leave_nothing_to_measure():
    walk = Walk()
    walk.distances.measure(walk.laws(), False)
    walk.distances.saw(masses([(0, 0)], 4), None)
    after = walk.points + 10.0
    walk.distances.walked(walk.points, after, walk.margin)
    walk.points = after
    found = walk.distances.measure(walk.laws(), False)
    width = walk.distances.tensors()["width_xy"]
    assert width.count_nonzero() == 11
    # what rounding may hide of a squared move of 500: 1e-6 of it
    assert bool((width < 4 * walk.distances.tensors()["root_xy"] * 0.03).all())
    torch.testing.assert_close(found.xy, walk.truth().xy, rtol=1e-3, atol=0)


def test_everything_is_measured_when_it_is_asked_for():
    walk = Walk()
    walk.distances.measure(walk.laws(), False)
    walk.distances.saw(masses([(0, 0)], 4), None)
    walk.step(0.01)
    found, truth = walk.distances.measure(walk.laws(), True), walk.truth()
    torch.testing.assert_close(found.xy, truth.xy, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.xx, truth.xx, rtol=1e-12, atol=0)
    assert walk.distances.saw(masses([(2, 2)], 4), masses([(0, 1)], 3)) == 0.0


def test_flows_say_what_bounded_costs_hide(monkeypatch):
    """The value of a step is that of a flow that measures all pairs, within its label error."""
    draw = torch.Generator().manual_seed(0)

    def data(shift: float, n: int, classes: int) -> otdd.LabelledDataset:
        labels = torch.arange(n) % classes
        x = torch.randn(n, 4, generator=draw, dtype=torch.float64)
        return otdd.LabelledDataset(
            x * (1.0 + labels[:, None] / 9) + labels[:, None] + shift, labels
        )

    src, tgt = data(0.0, 90, 6), data(2.0, 80, 5)
    solver = OTDDSettings(device="cpu", tol=1e-11, max_passes=20000, epsilon=0.5)
    settings = FlowSettings(mode="attached", steps=4, step_size=0.02, solver=solver)
    # more of the pairs than a flow would leave
    monkeypatch.setattr(law_distances, "NEGLIGIBLE", 0.02)
    found = list(flow(src, tgt, settings))
    bounded = [state for state in found if state.label_error > 0]
    assert len(bounded) == 3 and found[-1].label_error == 0.0
    # every step as the last one: its label costs are measured
    for state in bounded:
        *_, last = flow(src, tgt, replace(settings, steps=state.step))
        assert last.points.equal(state.points)
        assert 0 < abs(state.value - last.value) <= state.label_error
