"""Flows: oracles of gradients and trajectories, how a step is computed, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flow_runs import states, velocity
from problems import dataset

import otdd_flash as otdd
from otdd_flash.cost import make_problem, make_side
from otdd_flash.flows import FlowSettings, flow, load_checkpoint, save_checkpoint
from otdd_flash.flows.class_sums import ClassSums
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.certificate import class_mass
from otdd_flash.solver.sinkhorn import solve
from otdd_flash.types import finish

# --- O1, O2: translations


@pytest.mark.parametrize("epsilon", [1e-2, 1e-1, 10.0])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("d", [1, 3, 17])
def test_translations_pull_back_along_themselves(epsilon, offset, d):
    """O1: the gradient over weights is -2 t, so each step of size h keeps (1 - 2 h) of the gap."""
    x = torch.from_numpy(np.random.default_rng(d).uniform(size=(10, d)) + offset)
    t = torch.arange(1.0, d + 1, dtype=torch.float64) / d
    src, tgt = otdd.LabelledDataset(x), otdd.LabelledDataset(x + t)
    solver = OTDDSettings(tol=1e-9, max_passes=20000, device="cpu", lambda_y=0.0, epsilon=epsilon)
    found = states(src, tgt, mode="features", steps=3, step_size=0.1, solver=solver)
    for k, state in enumerate(found):
        # rounding of points near 1000, squared distances of which the self terms cancel
        gap = 0.8**k
        assert state.value == pytest.approx(gap**2 * float(t @ t), rel=1e-6)
        torch.testing.assert_close(state.points, x + (1 - gap) * t, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("mode", ["attached", "tied"])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_class_laws_double_the_pull(mode, epsilon):
    """O2: S = 2 |t|^2 with laws that follow, also for a class of one sample: the pull doubles."""
    r = np.random.default_rng(0)
    labels = [0] * 7 + [1] * 6 + [2]
    # classes far from one another keep their mass, so that the plan is a translation at every eps
    x = torch.from_numpy(r.standard_normal((14, 3)) + 30.0 * np.array(labels)[:, None])
    t = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    src = otdd.LabelledDataset(x, labels)
    tgt = otdd.LabelledDataset(x + t, labels)
    solver = OTDDSettings(tol=1e-10, max_passes=20000, device="cpu", epsilon=epsilon)
    found = states(src, tgt, mode=mode, steps=3, step_size=0.05, solver=solver)
    for k, state in enumerate(found):
        gap = 0.8**k
        assert state.value == pytest.approx(2 * gap**2 * float(t @ t), rel=1e-6)
        torch.testing.assert_close(state.points, x + (1 - gap) * t, rtol=1e-7, atol=1e-7)


# --- gradients against finite differences of the distance


@pytest.mark.parametrize("mode", ["features", "attached"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_is_that_of_the_distance(mode, weighted):
    src = dataset(18, 3, 1, weighted=weighted)
    tgt = dataset(15, 3, 2, weighted=weighted)
    settings = OTDDSettings(tol=1e-11, max_passes=20000, device="cpu", epsilon=2.0)
    if mode == "features":
        # without labels, whose costs stay in this mode but not in the distance of moved points
        settings = OTDDSettings(
            tol=1e-11, max_passes=20000, device="cpu", epsilon=2.0, lambda_y=0.0
        )
    v = velocity(src, tgt, mode=mode, solver=settings)
    step = 1e-4
    for i, j in ((0, 0), (7, 2), (17, 1)):
        values = []
        for sign in (1, -1):
            points = src.points.clone()
            points[i, j] += sign * step
            there = otdd.LabelledDataset(points, src.labels, weights=src.weights)
            values.append(otdd.distance(there, tgt, settings=settings).squared)
        difference = (values[0] - values[1]) / (2 * step)
        # 1e-11 of a value near 100 over the step, and the third derivative times its square
        assert float(src.weights[i] * v[i, j]) == pytest.approx(difference, rel=1e-5, abs=2e-6)


def test_a_step_of_one_half_is_a_jump_onto_the_barycentric_map():
    src, tgt = dataset(30, 4, 3), dataset(25, 4, 4)
    solver = OTDDSettings(
        tol=1e-10, max_passes=5000, device="cpu", lambda_y=0.0, debias=False, epsilon=1.0
    )
    last = states(src, tgt, mode="features", steps=1, step_size=0.5, solver=solver)[-1]
    plan = otdd.distance(src, tgt, settings=solver).plan
    torch.testing.assert_close(last.points, plan.barycentric_map(tgt.points), rtol=0, atol=1e-8)


def test_values_are_those_of_the_distance():
    src, tgt = dataset(40, 3, 5), dataset(30, 3, 6)
    for state in states(src, tgt, steps=2):
        solver = otdd.OTDDSettings(tol=1e-10, device="cpu", epsilon=state.epsilon, max_passes=5000)
        truth = otdd.distance(state.dataset(src), tgt, settings=solver)
        assert state.value == pytest.approx(truth.squared, rel=1e-8)
        assert state.distance == pytest.approx(truth.distance, rel=1e-8)


@pytest.mark.parametrize("normalize", ["none", "unit", "mnist"])
@pytest.mark.parametrize("convention", ["otdd", "microsoft"])
def test_units_do_not_change_where_points_go(normalize, convention):
    src, tgt = (dataset(40, 5, k, "uint8") for k in (7, 8))
    half = 2.0 if convention == "microsoft" else 1.0
    given = OTDDSettings(tol=1e-5, normalize=normalize, convention=convention, device="cpu")
    plain = OTDDSettings(tol=1e-5, device="cpu")
    one = states(src, tgt, steps=3, step_size=0.05 * half, solver=given)[-1]
    other = states(src, tgt, steps=3, step_size=0.05, solver=plain)[-1]
    # points are float32 and costs are rounded to float32
    torch.testing.assert_close(one.points, other.points, rtol=0, atol=1e-2)
    unit = {"none": 1.0, "unit": 255.0, "mnist": 255.0 * 0.3081}[normalize]
    assert one.value * half * unit**2 == pytest.approx(other.value, rel=1e-4)


# --- cases 6, 7, 14, 19: degenerate clouds, views, determinism


@pytest.mark.parametrize("mode", ["features", "attached", "tied", "augmented"])
def test_a_dataset_at_its_target_rests(mode):
    src = dataset(20, 3, 9)
    found = states(src, src, mode=mode, steps=2, solver=None)
    assert [state.value for state in found] == [0.0, 0.0, 0.0]
    assert all(state.speed == 0 for state in found)
    assert torch.equal(found[-1].points, src.points)


@pytest.mark.parametrize("mode", ["features", "attached", "tied"])
def test_single_and_equal_points(mode):
    one = otdd.LabelledDataset(torch.zeros(4, 2, dtype=torch.float64))
    other = otdd.LabelledDataset(torch.ones(3, 2, dtype=torch.float64))
    found = states(one, other, mode=mode, steps=2, step_size=0.1)
    assert all(torch.isfinite(state.points).all() for state in found)
    # no spread: the laws are points, and S = |x - y|^2 twice over where they follow
    factor = 1 if mode == "features" else 2
    assert found[0].value == pytest.approx(2.0 * 2, rel=1e-9)
    expected = 0.2 * factor
    torch.testing.assert_close(
        found[1].points, torch.full((4, 2), expected, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_coincident_points_have_finite_gradients():
    x = torch.zeros(6, 2, dtype=torch.float64)
    x[3:] = 1.0
    src, tgt = otdd.LabelledDataset(x, [0, 0, 1, 1, 2, 2]), dataset(9, 2, 10)
    assert torch.isfinite(states(src, tgt, steps=3)[-1].points).all()


def test_views_flow_as_copies_do():
    base = torch.from_numpy(np.random.default_rng(11).standard_normal((3, 24)))
    tgt = dataset(10, 3, 12)
    view = otdd.LabelledDataset(base.T[::2], [0, 1] * 6)
    copy = otdd.LabelledDataset(base.T[::2].contiguous().clone(), [0, 1] * 6)
    one, other = (states(src, tgt, steps=2)[-1] for src in (view, copy))
    assert torch.equal(one.points, other.points) and one.value == other.value


def test_the_same_flow_twice_has_the_same_bits():
    src, tgt = dataset(30, 3, 13, "uint8"), dataset(30, 3, 14, "uint8")
    one, other = (states(src, tgt, steps=3) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        assert a.value == b.value and torch.equal(a.points, b.points)


def test_rows_keep_their_order_and_those_without_weight_their_place():
    src = dataset(30, 3, 15, weighted=True)
    weights = src.weights.clone()
    weights[::7] = 0
    src = otdd.LabelledDataset(src.points, src.labels, weights=weights / weights.sum())
    tgt = dataset(20, 3, 16)
    last = states(src, tgt, steps=2)[-1]
    assert torch.equal(last.points[::7], src.points[::7])
    kept = (weights > 0).nonzero()[:, 0]
    alone = states(src.subset(kept), tgt, steps=2)[-1]
    torch.testing.assert_close(last.points[kept], alone.points, rtol=0, atol=1e-9)
    assert torch.equal(last.labels, src.labels) and last.class_names == src.class_names


def test_points_of_half_as_many_digits_flow_as_their_values(tmp_path):
    src, tgt = dataset(30, 3, 57), dataset(30, 3, 58)
    half = [otdd.LabelledDataset(d.points.bfloat16(), d.labels) for d in (src, tgt)]
    same = [otdd.LabelledDataset(d.points.float(), d.labels) for d in half]
    settings = FlowSettings(steps=2, solver=OTDDSettings(device="cpu"))
    walks = [flow(*pair, settings) for pair in (half, same)]
    for one, other in zip(*walks, strict=True):
        assert torch.equal(one.points, other.points) and one.value == other.value
    # numpy has no such type to take a digest of
    save_checkpoint(walks[0].checkpoint(), tmp_path / "c.safetensors")
    flow(*half, settings, start=load_checkpoint(tmp_path / "c.safetensors"))
    with pytest.raises(otdd.DataError, match="the source is not the one"):
        flow(half[1], half[1], settings, start=load_checkpoint(tmp_path / "c.safetensors"))


# --- how a step is computed


def test_reused_parts_are_said_and_change_little():
    src, tgt = dataset(60, 3, 17), dataset(50, 3, 18)
    plain = states(src, tgt, steps=6, step_size=0.02)
    reused = states(src, tgt, steps=6, step_size=0.02, self_every=2, laws_every=3)
    assert [bool(state.notes) for state in reused] == [False, True, True, True, True, True, False]
    assert "class laws: as at step 3" in reused[5].notes
    fall = plain[0].value - plain[-1].value
    assert abs(reused[-1].value - plain[-1].value) < 0.05 * fall


def test_extrapolated_starts_save_passes_and_change_nothing_else():
    src, tgt = dataset(150, 3, 19), dataset(150, 3, 20)
    solver = OTDDSettings(tol=1e-3, device="cpu")
    with_, without = (
        states(src, tgt, steps=12, step_size=0.01, solver=solver, extrapolate=e)
        for e in (True, False)
    )
    passes = [sum(sum(s.passes) for s in found[3:]) for found in (with_, without)]
    assert passes[0] < passes[1]
    # both stop at an L1 error of 1e-3
    assert with_[-1].value == pytest.approx(without[-1].value, rel=1e-2)


def test_eight_bit_points_are_rounded_in_the_cost_alone():
    src, tgt = dataset(80, 6, 21, "uint8"), dataset(70, 6, 22, "uint8")
    rounded = states(src, tgt, steps=4, solver=OTDDSettings(tol=1e-6, device="cpu"))
    exact = states(src, tgt, steps=4, solver=OTDDSettings(tol=1e-6, device="cpu", slices=2))
    assert rounded[0].moved == 0 and exact[-1].moved == 0
    # uniform rounding of both: sqrt(d / 12) at most
    assert 0 < rounded[-1].moved < (6 / 12) ** 0.5 + 0.1
    assert rounded[-1].points.dtype == torch.float32
    assert (rounded[-1].points % 1 != 0).any()
    torch.testing.assert_close(rounded[-1].points, exact[-1].points, rtol=0, atol=0.5)
    assert rounded[-1].value == pytest.approx(exact[-1].value, rel=1e-2)


def test_the_box_keeps_points_inside():
    src, tgt = dataset(40, 3, 23), dataset(40, 3, 24)
    last = states(src, tgt, steps=5, step_size=0.2, box=(-1, 1))[-1]
    assert float(last.points.abs().max()) <= 1
    assert float(tgt.points.abs().max()) > 1


def test_points_that_leave_the_grid_get_a_wider_one():
    src, tgt = (dataset(30, 3, k, "uint8") for k in (25, 26))
    # a potential that pushes everything beyond 255
    settings = {"steps": 3, "box": None, "potential": lambda z: -1000.0 * z[:, 0]}
    solver = OTDDSettings(tol=1e-6, device="cpu")
    last = states(src, tgt, mode="features", step_size=0.1, solver=solver, **settings)[-1]
    fine = OTDDSettings(tol=1e-6, device="cpu", slices=2)
    truth = states(src, tgt, mode="features", step_size=0.1, solver=fine, **settings)[-1]
    assert float(last.points.max()) > 400 and last.moved > 0
    assert last.value == pytest.approx(truth.value, rel=0.02)


# --- optimisers


def test_momentum_and_adam_by_their_formulas():
    src, tgt = dataset(20, 2, 27), dataset(20, 2, 28)
    plain = states(src, tgt, steps=1, step_size=1.0)
    v0 = plain[0].points - plain[1].points
    for optimizer, first in (("sgd", 0.01 * v0), ("adam", 0.01 * v0.sign())):
        found = states(src, tgt, steps=2, step_size=0.01, optimizer=optimizer)
        # the first step of adam is the sign of the gradient, up to 1e-8 of its size
        torch.testing.assert_close(src.points - found[1].points, first, rtol=1e-5, atol=1e-9)
        there = found[1].dataset(src)
        solver = otdd.OTDDSettings(
            tol=1e-10, max_passes=5000, device="cpu", epsilon=found[0].epsilon
        )
        v1 = velocity(there, tgt, solver=solver)
        if optimizer == "sgd":
            second = 0.01 * (0.9 * v0 + v1)
        else:
            mean = (0.9 * 0.1 * v0 + 0.1 * v1) / (1 - 0.81)
            square = (0.999 * 0.001 * v0**2 + 0.001 * v1**2) / (1 - 0.999**2)
            second = 0.01 * mean / (square.sqrt() + 1e-8)
        gap = found[1].points - found[2].points
        torch.testing.assert_close(gap, second, rtol=1e-4, atol=1e-7)


# --- potential and interaction


def test_potential_and_interaction_are_descended_too():
    src, tgt = dataset(24, 3, 29, weighted=True), dataset(20, 3, 30)
    a = src.weights

    def potential(z):
        return (z - 1.0).square().sum(1)

    def interaction(z, w):
        return 0.5 * w @ torch.cdist(z, z).square() @ w

    plain = velocity(src, tgt, mode="features")
    v = velocity(src, tgt, mode="features", potential=potential)
    torch.testing.assert_close(v - plain, 2 * (src.points - 1), rtol=0, atol=1e-9)
    v = velocity(src, tgt, mode="features", interaction=interaction)
    expected = 2 * (src.points - a @ src.points)
    torch.testing.assert_close(v - plain, expected, rtol=0, atol=1e-9)
    both = {"potential": potential, "interaction": interaction}
    found = states(src, tgt, mode="features", steps=0, **both)[0]
    extra = float(a @ potential(src.points) + interaction(src.points, a))
    assert found.objective - found.value == pytest.approx(extra)
    # in normalised points, for pixels too
    src, tgt = dataset(24, 3, 31, "uint8"), dataset(20, 3, 32, "uint8")
    solver = OTDDSettings(normalize="unit", tol=1e-6, device="cpu")
    plain = velocity(src, tgt, mode="features", solver=solver)
    v = velocity(src, tgt, mode="features", solver=solver, potential=potential)
    expected = 2 * (src.points / 255 - 1) * 255
    torch.testing.assert_close(v - plain, expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"potential": lambda z: z}, r"potential returned \(20, 2\), expected .*\(20,\)"),
        ({"potential": lambda z: torch.ones(len(z))}, "potential returned a constant"),
        ({"potential": lambda z: z[:, 0] / 0}, "potential returned NaN or infinity"),
        ({"interaction": lambda z, a: z.sum(1)}, r"interaction returned \(20,\)"),
        ({"interaction": lambda z, a: 1.0}, "interaction returned float"),
    ],
)
def test_functions_that_return_something_else_are_refused(keywords, text):
    with pytest.raises(otdd.SettingsError, match=text):
        states(dataset(20, 2, 33), dataset(20, 2, 34), steps=1, mode="features", **keywords)


# --- bad input


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"mode": "free"}, "mode is 'free', expected one of features, attached"),
        ({"steps": -1}, "steps is -1, expected an integer >= 0"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"step_size": 0}, "step_size is 0, expected a finite number > 0"),
        ({"step_size": float("nan")}, "step_size is nan"),
        ({"optimizer": "lbfgs"}, "optimizer is 'lbfgs', expected one of gradient"),
        ({"momentum": 0.5}, "momentum is for optimizer='sgd', not 'gradient'"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum is 1.0, expected 0 <= momentum < 1"),
        ({"box": (1, 0)}, r"box is \(1, 0\), expected \(low, high\)"),
        ({"box": "pixels"}, "box is 'pixels'"),
        ({"box": (0, float("inf"))}, "box is "),
        ({"solver": {"tol": 1e-2}}, "solver is .*, expected an OTDDSettings"),
        ({"solver": OTDDSettings(lambda_x=0)}, "samples would have nowhere to go"),
        ({"extrapolate": 1}, "extrapolate is 1, expected True or False"),
        ({"self_every": 0}, "self_every is 0, expected an integer >= 1"),
        ({"laws_every": True}, "laws_every is True"),
        ({"relabel_every": 2}, "relabel_every is for mode='augmented'"),
        ({"relabel": "spectral"}, "relabel is 'spectral'"),
        ({"potential": 3}, "potential is 3, expected a function"),
        ({"mode": "tied", "optimizer": "adam"}, "no affine map of a class"),
        ({"mode": "tied", "box": (0, 1)}, "no affine map of a class"),
        ({"mode": "augmented", "solver": OTDDSettings()}, "set label_distance='diagonal'"),
        (
            {
                "mode": "augmented",
                "solver": OTDDSettings(label_distance="diagonal", lambda_y=0),
            },
            "carry nothing that labels could be read from",
        ),
    ],
)
def test_bad_settings_are_refused(keywords, text):
    with pytest.raises(otdd.SettingsError, match=text):
        FlowSettings(**keywords)


def test_bad_data_are_refused():
    with pytest.raises(otdd.DataError, match="3 features .* 4 .*bring both to one feature space"):
        flow(dataset(10, 3, 48), dataset(10, 4, 49))
    src = dataset(10, 3, 50)
    weights = torch.full((10,), 1 / 9, dtype=torch.float64)
    weights[4] = 0
    src = otdd.LabelledDataset(src.points, src.labels, weights=weights)
    with pytest.raises(otdd.DataError, match="1 samples have weight zero and would get no label"):
        flow(src, dataset(10, 3, 51), FlowSettings(mode="augmented"))
    settings = FlowSettings(mode="augmented", relabel="kmeans")
    tgt = otdd.LabelledDataset(torch.rand(12, 3), range(12))
    with pytest.raises(otdd.DataError, match="has 10 samples, and .* 12 classes.*'nearest'"):
        flow(dataset(10, 3, 50), tgt, settings)


@pytest.mark.parametrize("kind", ["float64", "uint8"])
@pytest.mark.parametrize("optimizer", ["gradient", "sgd", "adam"])
def test_points_that_run_away_are_an_error(kind, optimizer):
    # more than float32 holds, in which 8-bit integers move
    size = 1e308 if optimizer == "adam" else 1e200
    settings = FlowSettings(
        steps=50, step_size=size, mode="features", optimizer=optimizer, box=None
    )
    with pytest.raises(otdd.DataError, match="ran away to infinity or NaN at step .*step_size"):
        list(flow(dataset(10, 3, 52, kind), dataset(10, 3, 53, kind), settings))


def test_the_public_names():
    assert otdd.flow is flow and otdd.FlowSettings is FlowSettings
    import otdd_flash.flows

    assert callable(otdd.flow) and otdd_flash.flows.FlowState is otdd.FlowState


def test_sums_of_classes_give_the_softmin_and_the_mass_of_its_plan():
    src, tgt = dataset(30, 3, 60, weighted=True), dataset(25, 3, 61, weighted=True)
    sides = [make_side(d.points, d.labels, d.weights, torch.device("cpu")) for d in (src, tgt)]
    g = torch.Generator().manual_seed(0)
    costs = torch.rand(src.classes, tgt.classes, generator=g, dtype=torch.float64)
    problem = make_problem(*sides, costs, factor=1.0, slices=None, memory_budget=None)
    op, a, b = problem.op, problem.x.weights, problem.y.weights
    merged = ClassSums(op)
    plain, found = (
        finish(solve(o, a, b, 1.0, tol=1e-6, max_passes=99, start=torch.zeros_like(b)))
        for o in (op, merged)
    )
    torch.testing.assert_close(found.f, plain.f, rtol=0, atol=1e-9)
    mass = class_mass(op, a, b, 1.0, plain)
    torch.testing.assert_close(merged.mass(a, 1.0), mass, rtol=1e-9, atol=0)
