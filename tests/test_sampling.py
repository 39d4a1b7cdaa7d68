"""Samples of a dataset: stratified, seeded, in order, the same wherever they are drawn."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otdd_flash.datasets import load, stratified_rows
from otdd_flash.datasets.sampling import allocate
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.types import LabelledDataset


def numbered(labels, **options) -> LabelledDataset:
    return LabelledDataset(np.arange(len(labels)), labels, name="numbered", **options)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.data())
def test_allocation(counts, data):
    counts = np.array(counts)
    total = data.draw(st.integers(1, int(counts.sum())))
    share = allocate(counts, total, np.arange(len(counts)))
    assert share.sum() == total and (share <= counts).all() and (share >= 0).all()
    quota = total * counts / counts.sum()
    if total >= len(counts):
        assert (share >= 1).all()
        if (quota >= 1).all():
            assert (np.abs(share - quota) < 1).all()
    else:
        assert share.max() == 1 and counts[share == 1].min() >= counts[share == 0].max()


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ([5, 3, 2], 5, [3, 1, 1]),  # quotas 2.5, 1.5, 1: the tie goes to the first
        ([1000, 1, 1], 10, [8, 1, 1]),
        ([50, 50], 3, [2, 1]),
        ([1, 9, 5], 2, [0, 1, 1]),
        ([7], 7, [7]),
        ([1, 1, 1], 3, [1, 1, 1]),
    ],
)
def test_allocation_by_hand(counts, total, expected):
    share = allocate(np.array(counts), total, np.arange(len(counts)))
    assert share.tolist() == expected


def test_same_draw_on_both_sides_in_order_and_announced():
    a, b = (load("mnist-mini", max_samples=300, seed=4) for _ in range(2))
    assert torch.equal(a.points, b.points) and torch.equal(a.labels, b.labels)
    assert a.provenance["sampled"] == {"of": 2000, "seed": 4, "kept": 300}
    assert a.provenance["source"] == "embedded"
    later = load(load("mnist-mini"), max_samples=300, seed=4)
    assert torch.equal(a.points, later.points)
    other = load("mnist-mini", max_samples=300, seed=5)
    assert not torch.equal(a.points, other.points)


def test_draw_is_the_same_for_every_version():
    labels = torch.arange(1000) % 7
    rows = [196, 269, 504, 569, 600, 608, 632, 701, 855, 921]
    assert stratified_rows(labels, 10, seed=0).tolist() == rows


def test_rows_keep_their_order_and_are_not_a_prefix():
    sampled = load(numbered(np.arange(1000) % 3), max_samples=100)
    rows = sampled.points.reshape(-1)
    assert (rows.diff() > 0).all() and int(rows[-1]) > 800
    assert sampled.labels.bincount().tolist() == [34, 33, 33]


def test_renaming_classes_changes_nothing():
    labels = np.random.default_rng(0).integers(0, 3, 500)
    plain = load(numbered(labels), max_samples=50)
    renamed = load(numbered(np.array(["zebra", "ant", "cow"])[labels]), max_samples=50)
    assert torch.equal(plain.points, renamed.points)


def test_every_class_is_kept():
    labels = np.zeros(1000, int)
    labels[[17, 401]] = 1, 2
    sampled = load(numbered(labels), max_samples=5)
    assert sampled.labels.bincount().tolist() == [3, 1, 1]


@pytest.mark.parametrize("cap", [None, 1000, 5000])
def test_no_cap_below_n_changes_nothing(cap):
    dataset = numbered(np.arange(1000) % 3)
    assert load(dataset, max_samples=cap) is dataset


def test_one_sample():
    assert len(load(numbered(np.arange(10) % 3), max_samples=1)) == 1


def test_rows_without_weight_are_never_drawn():
    weights = np.r_[np.zeros(500), np.full(100, 0.01)]
    dataset = numbered(np.arange(600) % 3, weights=weights)
    sampled = load(dataset, max_samples=30)
    assert int(sampled.points.min()) >= 500 and float(sampled.weights.sum()) == pytest.approx(1)
    assert len(load(dataset, max_samples=400)) == 100


def test_numpy_integers_are_integers():
    assert len(load("mnist-mini", max_samples=np.int64(20), seed=np.int32(1))) == 20


@pytest.mark.parametrize("cap", [0, -3, 1.5, "7", True])
def test_bad_caps(cap):
    with pytest.raises(SettingsError, match="max_samples is .*, expected an integer >= 1"):
        load("mnist-mini", max_samples=cap)


@pytest.mark.parametrize("seed", [-1, 0.5, "x", None])
def test_bad_seeds(seed):
    with pytest.raises(SettingsError, match="seed is .*, expected an integer >= 0"):
        load("mnist-mini", max_samples=5, seed=seed)


def test_large_sets_are_sampled_fast():
    labels = torch.randint(0, 1000, (6_000_000,), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    rows = stratified_rows(labels, 60_000, seed=0)
    assert len(rows) == 60_000 and time.perf_counter() - start < 6


def test_rows_of_the_whole_dataset_are_kept(tmp_path):
    table = tmp_path / "t.csv"
    gaps = [k for k in range(40) if k % 7 == 3]
    lines = (f"{'' if k in gaps else k},{k * k},{'' if k % 9 == 5 else k % 2}" for k in range(40))
    table.write_text("\n".join(["a,b,label", *lines]))
    given = {"scale": "none", "missing": "drop", "drop_unlabelled": True}
    whole = load(table, **given)
    kept = [k for k in range(40) if k not in gaps and k % 9 != 5]
    assert whole.rows.tolist() == kept == whole.points[:, 0].int().tolist()
    drawn = load(table, max_samples=12, **given)
    assert drawn.rows.tolist() == drawn.points[:, 0].int().tolist()
    # of what was loaded before, drawn from once more; by numbers or by a mask
    again = load(whole, max_samples=8, cosine=True)
    assert set(again.rows.tolist()) <= set(kept) and len(again) == 8
    assert whole.subset(torch.tensor([4, 2])).rows.tolist() == [kept[4], kept[2]]
    assert whole.subset(whole.labels == 1).rows.tolist() == [
        k for k, label in zip(kept, whole.labels.tolist(), strict=True) if label == 1
    ]
    assert LabelledDataset([[0.0], [1.0]]).rows.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0], "set: rows are .*, expected 2 integers: the row of each sample"),
        ([0.5, 1.0], "expected 2 integers"),
        (["a", "b"], "expected 2 integers"),
        ([3, -1], "rows hold -1, expected numbers >= 0"),
    ],
)
def test_rows_that_are_none_are_refused(rows, message):
    with pytest.raises(DataError, match=message):
        LabelledDataset([[0.0], [1.0]], rows=rows, name="set")
