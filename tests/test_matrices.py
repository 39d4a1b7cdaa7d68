"""Matrices of distances: what is shared changes nothing, what is kept is not computed again."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from fakes import reread
from problems import dataset, moved

import otdd_flash as otdd
from otdd_flash import Confidence, LabelledDataset, OTDDSettings
from otdd_flash.many.matrices import linkage, matrix_steps, positions
from otdd_flash.many.pairs import unique_names

SETTINGS = OTDDSettings(epsilon="3%", device="cpu")


def named(data: LabelledDataset, name: str) -> LabelledDataset:
    return LabelledDataset(data.points, data.labels, weights=data.weights, name=name)


@pytest.fixture(scope="module")
def sets() -> list[LabelledDataset]:
    return [
        named(dataset(30, 3, 0), "a"),
        named(dataset(40, 3, 1, weighted=True), "b"),
        named(dataset(25, 3, 2, kind="uint8", classes=2), "c"),
        named(dataset(35, 3, 3), "d"),
    ]


@pytest.mark.parametrize("normalize", ["none", "unit"])
def test_entries_are_distances_at_the_common_eps(sets, normalize):
    settings = dataclasses.replace(SETTINGS, normalize=normalize)
    found = otdd.matrix(sets, settings)
    means = []
    for i in range(4):
        for j in range(i + 1, 4):
            fixed = dataclasses.replace(settings, epsilon=found.epsilon)
            alone = otdd.distance(sets[i], sets[j], settings=fixed)
            # rounding: of the points of mixed dtypes in float32 when both are normalised
            close = {"rel": 1e-6}
            assert float(found.squared[i, j]) == pytest.approx(alone.squared, **close)
            assert float(found.squared_lower[i, j]) == pytest.approx(
                alone.squared_bounds[0], **close
            )
            assert float(found.squared_upper[i, j]) == pytest.approx(
                alone.squared_bounds[1], **close
            )
            assert float(found.transport_upper[i, j]) == pytest.approx(
                alone.transport.upper, **close
            )
            assert float(found.mean_cost[i, j]) == pytest.approx(alone.mean_cost, **close)
            assert float(found.distance[i, j]) == pytest.approx(alone.distance, **close)
            means.append(alone.mean_cost)
    assert found.epsilon == pytest.approx(0.03 * np.mean(means), rel=1e-6)
    assert found.converged.all() and float(found.marginal_error.max()) < settings.tol


def test_a_matrix_is_symmetric_with_an_exact_diagonal(sets):
    found = otdd.matrix(sets, SETTINGS)
    for name in ("distance", "squared", "squared_lower", "squared_upper", "transport_lower"):
        entries = getattr(found, name)
        assert torch.equal(entries, entries.mT) and not entries.diagonal().any()
    assert (found.squared_lower <= found.squared).all()
    assert (found.squared <= found.squared_upper).all()
    assert found.names == ("a", "b", "c", "d") and len(found.datasets) == 4


def test_other_orders_give_the_same_entries(sets):
    exact = dataclasses.replace(SETTINGS, tol=1e-9)
    found, turned = otdd.matrix(sets, exact), otdd.matrix(sets[::-1], exact)
    # of the mean cost: solves that start from the other side end within the tolerance
    apart = (found.squared - turned.squared.flip(0, 1)).abs()
    assert float((apart / found.mean_cost.clamp(min=1e-300)).max()) < 1e-8
    assert turned.epsilon == pytest.approx(found.epsilon, rel=1e-12)


def test_equal_sets_are_at_distance_0_and_translations_as_far_as_they_are(sets):
    first = sets[0]
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    shuffled = LabelledDataset(first.points[order], first.labels[order] * 2 + 5, name="shuffled")
    far = named(moved(first, np.array([0.0, 3.0, 4.0])), "far")
    found = otdd.matrix([first, shuffled, far], dataclasses.replace(SETTINGS, tol=1e-7))
    assert float(found.squared[0, 1]) == 0.0
    # 25 for the points, 25 for their classes
    assert float(found.squared[0, 2]) == pytest.approx(50, rel=1e-6)


def test_progress_tells_stage_by_stage(sets):
    steps = matrix_steps(sets[:3], SETTINGS, confidence=Confidence(noise_floor=True))
    states = list(steps)
    stages = list(dict.fromkeys(state.stage for state in states))
    expected = "prepare, class laws, label costs, self terms, pairs, noise floor"
    assert ", ".join(stages) == expected
    pairs = [state for state in states if state.stage == "pairs"]
    assert [s.done for s in pairs] == sorted(s.done for s in pairs) and pairs[-1].done == 3
    assert any(s.note.startswith("a - c: solve") for s in pairs)


def test_an_absolute_eps_and_no_debiasing(sets):
    settings = dataclasses.replace(SETTINGS, epsilon=2.0, debias=False)
    found = otdd.matrix(sets[:2], settings)
    assert found.epsilon == 2.0
    alone = otdd.distance(sets[0], sets[1], settings=settings)
    assert float(found.squared[0, 1]) == pytest.approx(alone.squared, rel=1e-9)


def test_intervals_and_noise_floors(sets):
    confidence = Confidence(bootstrap=15, noise_floor=True, seed=2)
    found = otdd.matrix(sets[:3], SETTINGS, confidence=confidence)
    assert found.half_width is not None and found.resamples == 15 and found.seed == 2
    assert torch.equal(found.half_width, found.half_width.mT)
    assert not found.half_width.diagonal().any() and len(found.noise_floor) == 3
    fixed = dataclasses.replace(SETTINGS, epsilon=found.epsilon)
    # the draws of a dataset are numbered by its place, as in a single distance those of both sides
    alone = otdd.distance(sets[0], sets[1], settings=fixed, confidence=confidence)
    assert float(found.half_width[0, 1]) == pytest.approx(alone.interval.half_width, rel=1e-6)
    assert found.noise_floor[0] == alone.noise_floor[0]


def test_files_keep_all_of_it(sets, tmp_path):
    for confidence in (None, Confidence(bootstrap=10, noise_floor=True)):
        found = otdd.matrix(sets[:3], SETTINGS, confidence=confidence)
        assert isinstance(reread(found, tmp_path / "m.npz"), otdd.MatrixResult)


def counted(monkeypatch):
    """Count the pairs that are computed."""
    from otdd_flash.many import shared

    seen = []
    real = shared.divergence_steps

    def steps(clouds, settings, **keywords):
        seen.append(1)
        return real(clouds, settings, **keywords)

    monkeypatch.setattr(shared, "divergence_steps", steps)
    return seen


def test_a_resumed_run_computes_what_is_missing(sets, tmp_path, monkeypatch):
    seen = counted(monkeypatch)
    whole = otdd.matrix(sets, SETTINGS, out=tmp_path)
    assert len(seen) == 6
    files = sorted((tmp_path / "pairs").iterdir())
    assert len(files) == 6
    for file in files[2:]:
        file.unlink()
    before = [file.read_bytes() for file in files[:2]]
    seen.clear()
    elsewhere = dataclasses.replace(SETTINGS, memory_budget=200 << 20)
    again = otdd.matrix(sets, elsewhere, out=tmp_path, resume=True)
    assert len(seen) == 4
    assert [file.read_bytes() for file in files[:2]] == before
    torch.testing.assert_close(again.squared, whole.squared, rtol=1e-12, atol=0)
    assert again.epsilon == whole.epsilon
    seen.clear()
    otdd.matrix(sets, SETTINGS, out=tmp_path, resume=True)
    assert not seen


def test_resume_begins_where_nothing_is(sets, tmp_path):
    # numbers of numpy are written as numbers
    confidence = Confidence(bootstrap=np.int64(10), noise_floor=np.True_, seed=np.int64(1))
    out = tmp_path / "new"
    found = otdd.matrix(sets[:2], SETTINGS, confidence=confidence, out=out, resume=True)
    assert (tmp_path / "new" / "pairs" / "0000-0001.json").exists() and len(found.names) == 2


def test_runs_of_others_are_refused(sets, tmp_path):
    otdd.matrix(sets[:2], SETTINGS, out=tmp_path)
    with pytest.raises(otdd.SettingsError, match="holds a run already; go on with it"):
        otdd.matrix(sets[:2], SETTINGS, out=tmp_path)
    other = dataclasses.replace(SETTINGS, epsilon="4%")
    with pytest.raises(otdd.SettingsError, match="settings.epsilon was '3%', now '4%'"):
        otdd.matrix(sets[:2], other, out=tmp_path, resume=True)
    with pytest.raises(otdd.SettingsError, match="confidence.bootstrap was 0, now 20"):
        otdd.matrix(
            sets[:2], SETTINGS, confidence=Confidence(bootstrap=20), out=tmp_path, resume=True
        )
    changed = named(dataset(30, 3, 9), "a")
    with pytest.raises(otdd.SettingsError, match="datasets.a.sha256 differs"):
        otdd.matrix([changed, sets[1]], SETTINGS, out=tmp_path, resume=True)
    with pytest.raises(otdd.SettingsError, match="datasets.c is new"):
        otdd.matrix(sets[:3], SETTINGS, out=tmp_path, resume=True)


def test_folders_of_something_else_are_left_alone(sets, tmp_path):
    (tmp_path / "map.png").write_text("mine")
    for resume in (False, True):
        with pytest.raises(otdd.SettingsError, match="holds files that are no run of a matrix"):
            otdd.matrix(sets[:2], SETTINGS, out=tmp_path, resume=resume)
    with pytest.raises(otdd.SettingsError, match="map.png is a file, expected a folder"):
        otdd.matrix(sets[:2], SETTINGS, out=tmp_path / "map.png")
    assert [file.name for file in tmp_path.iterdir()] == ["map.png"]


def test_damaged_files_of_a_run_are_named(sets, tmp_path):
    otdd.matrix(sets[:2], SETTINGS, out=tmp_path)
    for name, content in (
        ("pairs/0000-0001.json", "{}"),
        ("pairs/0000-0001.json", "{"),
        ("epsilon.json", "[1]"),
        ("run.json", "[]"),
    ):
        file = tmp_path / name
        before = file.read_text()
        file.write_text(content)
        with pytest.raises(otdd.DataError, match=f"{name}: damaged"):
            otdd.matrix(sets[:2], SETTINGS, out=tmp_path, resume=True)
        file.write_text(before)
    assert json.loads((tmp_path / "run.json").read_text())["format"] == 1


def test_bad_input_is_refused(sets, tmp_path):
    with pytest.raises(otdd.SettingsError, match=r"1 dataset\(s\) arrived"):
        otdd.matrix(sets[:1], SETTINGS)
    with pytest.raises(otdd.SettingsError, match="resume without out"):
        otdd.matrix(sets, SETTINGS, resume=True)
    with pytest.raises(otdd.DataError, match="a has 3 features"):
        otdd.matrix([sets[0], dataset(9, 2, 0)], SETTINGS)
    with pytest.warns(otdd.ConvergenceWarning, match="3 of 3 pairs ended.*e - c .*a - c"):
        found = otdd.matrix(
            [sets[0], named(sets[0], "e"), sets[2]],
            dataclasses.replace(SETTINGS, max_passes=3, tol=1e-9),
        )
    assert not found.converged[0, 2]


def test_notes_of_datasets_and_label_costs_are_told_once(sets, monkeypatch):
    from otdd_flash import prepared

    monkeypatch.setattr(prepared, "accuracy_notes", lambda *_: ["label costs are rough"])
    weights = torch.ones(30) / 28
    weights[:2] = 0
    some = LabelledDataset(sets[0].points, sets[0].labels, weights=weights, name="some")
    for found in (
        otdd.matrix([some, *sets[1:]], SETTINGS),
        otdd.rank(some, sets[1:], SETTINGS),
        otdd.explain(some, sets[1], SETTINGS),
        otdd.value(some, sets[1], SETTINGS),
        otdd.distance(some, sets[1], settings=SETTINGS),
    ):
        assert found.notes.count("label costs are rough") == 1 and len(found.notes) == 2
        assert any("some: 2 samples of weight zero" in note for note in found.notes)


def test_what_cannot_be_halved_is_refused_before_anything_is_computed(sets, tmp_path):
    one = named(dataset(1, 3, 0, classes=1), "one")
    with pytest.raises(otdd.SettingsError, match="one has one sample: there are no two halves"):
        otdd.matrix([*sets, one], SETTINGS, confidence=Confidence(noise_floor=True), out=tmp_path)
    assert not list((tmp_path / "pairs").iterdir())


def test_sets_at_one_place_have_a_map_and_a_tree():
    one = named(dataset(1, 3, 0, classes=1), "one")
    found = otdd.matrix([one, one, one], SETTINGS)
    place, stress = positions(found)
    assert not place.any() and stress == 0 and not linkage(found)[:, 2].any()


def test_names_are_made_unique():
    sets = [named(dataset(3, 2, 0), name) for name in ("a", "a", "a (2)", "b", "a")]
    names = unique_names(sets)
    assert len(set(names)) == 5 and names[0] == "a" and names[3] == "b"


def test_maps_keep_distances_that_fit_a_plane(sets):
    place = np.array([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 4.0]])
    gaps = torch.from_numpy(np.linalg.norm(place[:, None] - place[None], axis=-1))
    found = dataclasses.replace(otdd.matrix(sets, SETTINGS), distance=gaps)
    got, stress = positions(found)
    # smacof stops at changes of 1e-6
    assert stress < 1e-3
    np.testing.assert_allclose(
        np.linalg.norm(got[:, None] - got[None], axis=-1), gaps, rtol=0, atol=0.02
    )
    tree = linkage(found)
    assert tree.shape == (3, 4) and tree[0, 2] == 3.0 and tree[1, 2] == 3.0
    two = otdd.matrix(sets[:2], SETTINGS)
    got, stress = positions(two)
    assert np.linalg.norm(got[0] - got[1]) == pytest.approx(float(two.distance[0, 1]), rel=1e-3)
