"""Label costs of moving laws: bounds hold what measuring gives, and pairs are measured in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.cost import Margin
from otdd_flash.flows import FlowSettings, flow, law_distances
from otdd_flash.flows.law_distances import LawDistances
from otdd_flash.laws.bures import coupled_cost
from otdd_flash.laws.gaussians import ClassLaws, class_laws
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
    """Mass of some pairs, of the first column in rows without, and next to nothing elsewhere."""
    out = torch.full((CLASSES, columns), 1e-9, dtype=torch.float64)
    for c, k in [*pairs, *((c, 0) for c in range(CLASSES) if c not in dict(pairs))]:
        out[c, k] = 1.0 / CLASSES
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
    assert width.count_nonzero() == 9
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


def pair() -> tuple[otdd.LabelledDataset, otdd.LabelledDataset]:
    draw = torch.Generator().manual_seed(0)

    def data(shift: float, n: int, classes: int) -> otdd.LabelledDataset:
        labels = torch.arange(n) % classes
        x = torch.randn(n, 4, generator=draw, dtype=torch.float64)
        return otdd.LabelledDataset(
            x * (1.0 + labels[:, None] / 9) + labels[:, None] + shift, labels
        )

    return data(0.0, 90, 6), data(2.0, 80, 5)


def leave_out_more(monkeypatch) -> None:
    """More of the pairs than a flow would leave out."""
    monkeypatch.setattr(law_distances, "NEGLIGIBLE", 0.02)
    monkeypatch.setattr(law_distances, "MISSED", 1.0)


def test_flows_say_what_bounded_costs_hide(monkeypatch):
    """The value of a step is that of a flow that measures all pairs, within its label error."""
    src, tgt = pair()
    solver = OTDDSettings(device="cpu", tol=1e-11, max_passes=20000, epsilon=0.5)
    settings = FlowSettings(mode="attached", steps=4, step_size=0.02, solver=solver)
    leave_out_more(monkeypatch)
    found = list(flow(src, tgt, settings))
    bounded = [state for state in found if state.label_error > 0]
    assert len(bounded) == 3 and found[-1].label_error == 0.0
    # every step as the last one: its label costs are measured
    for state in bounded:
        *_, last = flow(src, tgt, replace(settings, steps=state.step))
        assert last.points.equal(state.points)
        assert 0 < abs(state.value - last.value) <= state.label_error


def test_steps_that_reuse_laws_bound_by_their_own_plans(monkeypatch):
    leave_out_more(monkeypatch)
    solver = OTDDSettings(device="cpu", epsilon=0.5)
    settings = FlowSettings(steps=7, step_size=0.02, laws_every=3, solver=solver)
    found = list(flow(*pair(), settings))
    # measured at the first three, whose plans nothing else needs
    assert [state.label_error for state in found[:3]] == [0.0] * 3
    assert [state.class_mass is None for state in found] == [False, True, True] + [False] * 5
    # bounds of the laws of step 3, plans of each step
    assert len({state.label_error for state in found[3:6]}) == 3
    assert all(state.label_error > 0 for state in found[3:6])


def test_a_flow_measures_once_a_step(monkeypatch):
    asked = []

    def counted(*arguments, **keywords):
        asked.append(keywords["due"] is None)
        return coupled_cost(*arguments, **keywords)

    monkeypatch.setattr(law_distances, "coupled_cost", counted)
    list(flow(*pair(), FlowSettings(steps=3, solver=OTDDSettings(device="cpu"))))
    assert asked == [True, False, False, True]


@pytest.mark.parametrize("share", [1e-5, 1e-9])
@pytest.mark.parametrize("mode", ["attached", "tied"])
def test_rare_classes_are_pulled_as_others_are(mode, share):
    """A translation is pulled back by 4 t, by samples and laws, whatever a class weighs."""
    labels = torch.tensor([0] * 7 + [1] * 6 + [2] * 5)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(18, 3, generator=draw, dtype=torch.float64) + 30.0 * labels[:, None]
    t = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    weights = torch.where(labels == 2, share, 1.0).double()
    weights /= weights.sum()
    src, tgt = (otdd.LabelledDataset(z, labels, weights=weights) for z in (x, x + t))
    solver = OTDDSettings(tol=1e-12, max_passes=20000, device="cpu", epsilon=1.0)
    *_, last = flow(src, tgt, FlowSettings(mode=mode, steps=3, step_size=0.05, solver=solver))
    torch.testing.assert_close(last.points, x + (1 - 0.8**3) * t, rtol=1e-7, atol=1e-7)


def test_pairs_that_are_left_out_hold_little_of_any_class():
    draw = torch.Generator().manual_seed(0)
    for columns in (1, 7, 900):
        mass = torch.rand(30, columns, generator=draw, dtype=torch.float64) ** 40
        # classes of all sizes
        mass *= 10.0 ** -torch.arange(30.0, dtype=torch.float64)[:, None]
        kept = mass * law_distances.weighty(mass, False)
        assert bool((kept.sum(1) >= (1 - law_distances.MISSED) * mass.sum(1)).all())
        assert columns == 1 or bool((kept == 0).any())
        share = mass / mass.sum()
        assert bool((kept[share > law_distances.NEGLIGIBLE] > 0).all())
    inner = torch.tensor([[1.0, 1e-12], [1e-12, 1e-12]], dtype=torch.float64)
    # next to nothing of the first class, half of the second
    assert bool(law_distances.weighty(inner, True).all())
    assert law_distances.weighty(inner, False).tolist() == [[True, False], [True, True]]
