"""Flows: oracles of gradients and trajectories, modes, resumption in memory, bad input."""

from __future__ import annotations

import gc
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import dataset
from safetensors.torch import save
from scipy.linalg import sqrtm

import otdd_flash as otdd
from otdd_flash.cost import make_problem, make_side
from otdd_flash.flows import FlowSettings, flow, load_checkpoint, save_checkpoint
from otdd_flash.flows.class_sums import ClassSums
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.certificate import class_mass
from otdd_flash.solver.sinkhorn import solve
from otdd_flash.types import finish

# so exact that only float64 and the formulas are left
EXACT = OTDDSettings(tol=1e-10, max_passes=5000, device="cpu", epsilon="5%")


def states(src, tgt, **keywords):
    keywords.setdefault("solver", EXACT)
    return list(flow(src, tgt, FlowSettings(**keywords)))


def velocity(src, tgt, **keywords):
    """The Wasserstein gradient at the start: what one step of size 1 takes away."""
    first, second = states(src, tgt, steps=1, step_size=1.0, box=None, **keywords)
    return first.points - second.points


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


# --- tied and augmented


def test_tied_classes_move_by_affine_maps_and_stay_gaussian():
    src, tgt = dataset(90, 3, 35), dataset(80, 3, 36)
    found = states(src, tgt, mode="tied", steps=4, step_size=0.03)
    assert found[-1].value < 0.8 * found[0].value
    last = found[-1].points
    for c in range(src.classes):
        rows = src.labels == c
        x = torch.cat([src.points[rows], torch.ones(int(rows.sum()), 1, dtype=torch.float64)], 1)
        fitted = x @ torch.linalg.lstsq(x, last[rows]).solution
        # more samples than an affine map has parameters: it explains them all
        assert len(x) > 4
        torch.testing.assert_close(fitted, last[rows], rtol=0, atol=1e-9)
    free = states(src, tgt, mode="attached", steps=4, step_size=0.03)
    assert free[-1].value < found[-1].value


def test_the_affine_field_is_the_symmetric_projection():
    from otdd_flash.flows.tied import affine_field

    r = np.random.default_rng(0)
    x, v = (torch.from_numpy(r.standard_normal((50, 4))) for _ in range(2))
    w = torch.from_numpy(r.dirichlet(np.ones(50)))
    labels = torch.zeros(50, dtype=torch.int64)
    found = affine_field(x, v, labels, w)
    z, mean = x - w @ x, w @ v
    # the least squares problem in the ten free entries of a symmetric matrix
    columns, root = [], w.sqrt()[:, None]
    for i in range(4):
        for j in range(i + 1):
            a = torch.zeros(4, 4, dtype=torch.float64)
            a[i, j] = a[j, i] = 1.0
            columns.append((root * (z @ a)).reshape(-1))
    basis = torch.stack(columns, 1)
    right = (root * (v - mean)).reshape(-1)
    fitted = basis @ torch.linalg.lstsq(basis, right[:, None]).solution
    truth = mean + fitted.reshape(50, 4) / root
    torch.testing.assert_close(found, truth, rtol=0, atol=1e-10)
    # an affine field with a symmetric matrix is kept, in a subspace too
    flat = x.clone()
    flat[:, 3] = flat[:, 0]
    a = torch.from_numpy(r.standard_normal((4, 4)))
    bent = flat @ (a + a.T) + 1
    torch.testing.assert_close(affine_field(flat, bent, labels, w), bent, rtol=0, atol=1e-9)
    # and one sample moves as it likes
    one = affine_field(x[:1], v[:1], labels[:1], w[:1])
    torch.testing.assert_close(one, v[:1], rtol=0, atol=0)


def test_a_tied_gaussian_class_follows_the_closed_form():
    """One class to one class, no entropy to speak of: (I - h A) with A = 4 (I - T) of the laws."""
    r = np.random.default_rng(1)
    z = torch.from_numpy(r.standard_normal((80, 2)))
    z = z - z.mean(0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / 80)).T
    a = torch.tensor([[2.0, 0.3], [0.3, 0.7]], dtype=torch.float64)
    src, tgt = otdd.LabelledDataset(z), otdd.LabelledDataset(z @ a + 5.0)
    # the covariances are I and a^2, the optimal map is a: also between the samples themselves
    assert np.allclose(sqrtm((a @ a).numpy()), a.numpy())
    solver = OTDDSettings(tol=1e-4, max_passes=20000, device="cpu", epsilon=1e-2)
    first, second = states(src, tgt, mode="tied", steps=1, step_size=0.1, solver=solver)
    expected = z + 0.4 * (z @ a + 5.0 - z)
    # the self terms take out what eps does to the means but for samples at the edge
    torch.testing.assert_close(second.points, expected, rtol=0, atol=0.03)


def test_augmented_particles_end_with_the_targets_classes():
    r = np.random.default_rng(2)
    labels = np.repeat([0, 1, 2], 30)
    x = r.standard_normal((90, 2)) + 8.0 * np.array([[0, 0], [1, 0], [0, 1]])[labels]
    kinds = np.repeat([0, 1, 2, 3], 20)
    y = r.standard_normal((80, 2)) + 8.0 * np.array([[3, 0], [4, 1], [3, 3], [5, 3]])[kinds]
    src = otdd.LabelledDataset(x, labels)
    tgt = otdd.LabelledDataset(y, kinds, class_names=["a", "b", "c", "d"])
    solver = OTDDSettings(tol=1e-4, device="cpu", label_distance="diagonal")
    for relabel in ("nearest", "kmeans"):
        found = states(
            src, tgt, mode="augmented", steps=30, step_size=0.1, solver=solver, relabel=relabel
        )
        assert found[-2].class_names == src.class_names
        assert torch.equal(found[-2].labels, src.labels)
        last = found[-1]
        assert last.value < 1e-2 * found[0].value and last.class_names == ("a", "b", "c", "d")
        # the labels that were read are those of the nearest target sample
        nearest = tgt.labels[torch.cdist(last.points, tgt.points).argmin(1)]
        assert float((nearest == last.labels).double().mean()) > 0.97
    every = states(
        src, tgt, mode="augmented", steps=4, step_size=0.1, solver=solver, relabel_every=2
    )
    assert [len(state.class_names) for state in every] == [3, 3, 4, 4, 4]


@pytest.mark.filterwarnings("error")
def test_fewer_different_particles_than_clusters_are_no_warning():
    src, tgt = dataset(40, 3, 56), otdd.LabelledDataset(torch.rand(60, 3), [*range(30)] * 2)
    last = states(src, tgt, mode="augmented", steps=0, relabel="kmeans", solver=None)[-1]
    assert last.class_names == tgt.class_names and len(last.labels.unique()) <= src.classes


def test_augmented_costs_are_those_of_diagonal_laws():
    src, tgt = dataset(40, 3, 37), dataset(30, 3, 38)
    for law in ("diagonal", "means"):
        solver = OTDDSettings(
            tol=1e-10, max_passes=5000, device="cpu", label_distance=law, lambda_y=0.7, lambda_x=1.3
        )
        first = states(src, tgt, mode="augmented", steps=0, solver=solver)[0]
        truth = otdd.distance(src, tgt, settings=solver)
        assert first.value == pytest.approx(truth.squared, rel=1e-8)
        assert first.epsilon == pytest.approx(truth.epsilon, rel=1e-9)
        torch.testing.assert_close(first.class_mass, truth.class_mass, rtol=0, atol=1e-7)
        # particles of one class move their laws by themselves, samples as in any flow
        v = velocity(src, tgt, mode="augmented", solver=solver)
        plain = velocity(src, tgt, mode="features", solver=solver)
        torch.testing.assert_close(v, plain, rtol=0, atol=1e-7)


# --- resumption


@pytest.mark.parametrize(
    "keywords",
    [
        {"mode": "attached", "optimizer": "adam", "step_size": 0.1},
        {"mode": "attached", "laws_every": 3, "self_every": 2, "optimizer": "sgd"},
        {"mode": "tied"},
        {"mode": "augmented", "relabel_every": 2},
        {"mode": "features", "box": None, "extrapolate": False},
    ],
)
@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_a_flow_goes_on_to_the_same_bits(keywords, kind, tmp_path):
    src, tgt = dataset(30, 4, 39, kind), dataset(25, 4, 40, kind)
    law = "diagonal" if keywords["mode"] == "augmented" else "gaussian"
    solver = OTDDSettings(tol=1e-2, device="cpu", label_distance=law)
    settings = FlowSettings(steps=8, solver=solver, **keywords)
    whole = list(flow(src, tgt, settings))
    for stop in (0, 3, 8):
        walk = flow(src, tgt, settings)
        for state in walk:
            if state.step == stop:
                break
        save_checkpoint(walk.checkpoint(), tmp_path / "c.safetensors")
        rest = list(flow(src, tgt, settings, start=load_checkpoint(tmp_path / "c.safetensors")))
        assert rest[0].step == min(stop + 1, 8)
        for state, truth in zip(rest[::-1], whole[::-1], strict=False):
            assert torch.equal(state.points, truth.points) and state.value == truth.value
            assert torch.equal(state.labels, truth.labels)
            assert state.class_names == truth.class_names and state.passes == truth.passes


def test_more_steps_go_on_as_if_there_had_been_no_end():
    src, tgt = dataset(30, 4, 41), dataset(25, 4, 42)
    short = FlowSettings(steps=3, solver=EXACT)
    walk = flow(src, tgt, short)
    list(walk)
    long = FlowSettings(steps=6, solver=EXACT)
    rest = list(flow(src, tgt, long, start=walk.checkpoint()))
    whole = list(flow(src, tgt, long))
    assert [state.step for state in rest] == [3, 4, 5, 6]
    assert all(a.value == b.value for a, b in zip(rest, whole[3:], strict=True))
    assert torch.equal(rest[-1].points, whole[-1].points)


def test_solves_that_end_where_they_began_go_on_to_the_same_bits(tmp_path):
    """Their value is a sum over what was read: in memory aligned as what was written."""
    src, tgt = dataset(30, 4, 54), dataset(61, 4, 55)
    solver = OTDDSettings(tol=1e-2, device="cpu", max_passes=2, epsilon="50%")
    settings = FlowSettings(steps=4, step_size=1e-4, laws_every=2, solver=solver)
    walk = flow(src, tgt, settings)
    next(walk), next(walk)
    save_checkpoint(walk.checkpoint(), tmp_path / "c.safetensors")
    start = load_checkpoint(tmp_path / "c.safetensors")
    # what torch gives new tensors
    assert not any(tensor.data_ptr() % 64 for tensor in start.tensors.values())
    for state, truth in zip(flow(src, tgt, settings, start=start), walk, strict=True):
        assert state.value == truth.value and state.passes[0] == 2


def test_another_flow_s_checkpoint_is_refused(tmp_path):
    src, tgt = dataset(20, 3, 43), dataset(20, 3, 44)
    settings = FlowSettings(steps=4, solver=EXACT)
    walk = flow(src, tgt, settings)
    with pytest.raises(otdd.SettingsError, match="between two states only"):
        walk.checkpoint()
    next(walk), next(walk)
    start = walk.checkpoint()
    with pytest.raises(otdd.SettingsError, match=r"step_size was 0.02, now 0.1"):
        flow(src, tgt, FlowSettings(steps=4, step_size=0.1, solver=EXACT), start=start)
    with pytest.raises(otdd.SettingsError, match=r"solver.tol was 1e-10, now 0.01"):
        flow(src, tgt, FlowSettings(steps=4), start=start)
    with pytest.raises(otdd.SettingsError, match="steps is 1, but the checkpoint is at step 2"):
        flow(src, tgt, FlowSettings(steps=1, solver=EXACT), start=start)
    with pytest.raises(otdd.DataError, match="the target is not the one"):
        flow(src, dataset(20, 3, 45), settings, start=start)
    # more steps, and another device or budget, are welcome
    elsewhere = replace(EXACT, device="auto", memory_budget=10**9)
    flow(src, tgt, FlowSettings(steps=9, solver=elsewhere), start=start)
    path = tmp_path / "c.safetensors"
    with pytest.raises(otdd.DataError, match="no such file"):
        load_checkpoint(path)
    save_checkpoint(start, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(otdd.DataError, match="not a whole checkpoint"):
        load_checkpoint(path)
    for about, text in (
        ("[]", "not a whole checkpoint"),
        ('{"step": 2}', "not a whole checkpoint"),
        ('{"step": 2, "format": 1}', "checkpoint of format 1, this version reads 2: begin anew"),
    ):
        path.write_bytes(save({"points": torch.zeros(2)}, {"otdd-flash flow": about}))
        with pytest.raises(otdd.DataError, match=text):
            load_checkpoint(path)
    with pytest.raises(otdd.SettingsError, match="start is '.*', expected what Flow.checkpoint"):
        flow(src, tgt, settings, start=str(path))


def test_memory_stays_flat_over_many_steps():
    """Case 30: the same tensors live at step 50 and at step 200, and the process does not grow."""
    src, tgt = dataset(60, 5, 46), dataset(60, 5, 47)
    walk = flow(src, tgt, FlowSettings(mode="attached", steps=201, optimizer="adam"))
    seen = []
    for state in walk:
        if state.step in (50, 200):
            gc.collect()
            sizes = [o.numel() for o in gc.get_objects() if type(o) is torch.Tensor]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            seen.append((len(sizes), sum(sizes), peak))
    assert seen[0][:2] == seen[1][:2]
    assert seen[1][2] - seen[0][2] < 8 << 10  # kB


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
