"""Flows: tied and augmented classes, resumption in memory."""

from __future__ import annotations

import gc
import resource
from dataclasses import replace

import numpy as np
import pytest
import torch
from flow_runs import EXACT, states, velocity
from problems import dataset
from safetensors.torch import save
from scipy.linalg import sqrtm

import otdd_flash as otdd
from otdd_flash.flows import FlowSettings, flow, load_checkpoint, save_checkpoint
from otdd_flash.settings import OTDDSettings

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
