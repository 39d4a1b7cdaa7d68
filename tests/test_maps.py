"""Pictures of matrices, rankings and explanations: whole, named, nothing over anything."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from fakes import fake_images, fake_result
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from PIL import Image
from problems import dataset

import otdd_flash as otdd
from otdd_flash import LabelledDataset, OTDDSettings
from otdd_flash.many.findings import extremes
from otdd_flash.pictures.maps import plot_map, plot_matrix, plot_ranking, plot_tree
from otdd_flash.pictures.naming import name_points
from otdd_flash.pictures.plots import plot_result
from otdd_flash.pictures.portraits import plot_explanation, plot_values

SETTINGS = OTDDSettings(epsilon="5%", device="cpu")


@pytest.fixture(scope="module")
def small():
    sets = [
        LabelledDataset(d.points, d.labels, name=f"a set of number ${k}$")
        for k, d in enumerate(dataset(12, 2, seed) for seed in range(3))
    ]
    return sets, otdd.matrix(sets, SETTINGS)


def of_size(result, count: int):
    """Return a made-up matrix of many datasets."""
    place = np.random.default_rng(count).normal(size=(count, 2))
    gaps = torch.from_numpy(np.linalg.norm(place[:, None] - place[None], axis=-1))
    names = tuple(f"dataset number {k}" for k in range(count))
    return dataclasses.replace(result, names=names, distance=gaps)


def texts(figure: Figure) -> list:
    """Return the boxes of the names that are written beside points."""
    figure.draw_without_rendering()
    return [
        text.get_window_extent()
        for axes in figure.axes
        for text in axes.texts
        if isinstance(text, Annotation) and text.get_text()
    ]


@pytest.mark.parametrize("draw", [plot_matrix, plot_map, plot_tree])
@pytest.mark.parametrize("count", [2, 10, 40])
def test_pictures_of_matrices_are_whole(tmp_path, small, draw, count):
    path = tmp_path / "m.png"
    figure = draw(of_size(small[1], count), path)
    with Image.open(path) as picture:
        assert picture.format == "PNG" and min(picture.size) > 250
    assert path.stat().st_size < 300_000
    height, width = figure.bbox.height, figure.bbox.width
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            continue
        shown = [axes.title]
        for axis, limits, k in ((axes.xaxis, axes.get_xlim(), 0), (axes.yaxis, axes.get_ylim(), 1)):
            # ticks beyond the limits have labels that are not drawn
            shown += [
                label
                for label in axis.get_ticklabels()
                if min(limits) <= label.get_position()[k] <= max(limits)
            ]
        for label in shown:
            box = label.get_window_extent()
            assert box.x0 >= -1 and box.y0 >= -1
            assert box.x1 <= width + 1 and box.y1 <= height + 1


@pytest.mark.parametrize("count", [3, 10, 20])
def test_names_on_a_map_do_not_overlap(tmp_path, small, count):
    figure = plot_map(of_size(small[1], count), tmp_path / "m.png")
    boxes = texts(figure)
    assert len(boxes) == count
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_names_of_points_at_one_place_are_apart():
    figure = Figure(figsize=(6, 5), dpi=100)
    axes = figure.add_subplot()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    name_points(axes, np.full((6, 2), 0.5), ["one", "two", "three", "four", "five", "six"])
    boxes = texts(figure)
    assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k])


def test_names_leave_lines_alone():
    figure = Figure(figsize=(6, 5), dpi=100)
    axes = figure.add_subplot()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    line = np.linspace((0.2, 0.5), (0.9, 0.5))
    name_points(axes, np.array([[0.5, 0.5]]), ["a name"], line)
    (box,) = texts(figure)
    places = axes.transData.transform(line)
    assert not any(box.contains(*place) for place in places)


def test_unconverged_matrices_say_so(small):
    result = dataclasses.replace(small[1], converged=torch.zeros(3, 3, dtype=torch.bool))
    for draw in (plot_matrix, plot_map, plot_tree):
        assert "NOT CONVERGED" in draw(result, Figure()).axes[0].get_title()


@pytest.mark.parametrize("scored", [0, 1, 3])
def test_rankings_with_and_without_scores(tmp_path, small, scored):
    sets, _ = small
    scores = {data.name: 0.1 * k for k, data in enumerate(sets[:scored])}
    found = otdd.rank(dataset(12, 2, 9), sets, SETTINGS, scores=scores)
    figure = plot_ranking(found, tmp_path / "r.png")
    title = figure.axes[0].get_title()
    assert ("Pearson" in title) == (scored == 3)
    assert (tmp_path / "r.png").stat().st_size > 1000


def test_explanations_of_images_and_vectors(tmp_path):
    src, tgt = fake_images(3), fake_images(4, seed=1)
    found = otdd.explain(src, tgt, SETTINGS, pairs=5)
    figure = plot_explanation(found, tmp_path / "e.png", src, tgt)
    # two maps with a colour bar, the split, three sheets of samples
    assert len(figure.axes) == 6
    assert len(plot_explanation(found, Figure()).axes) == 3
    none = dataclasses.replace(found, pairs=())
    assert len(plot_explanation(none, Figure(), src, tgt).axes) == 5
    flat = dataset(12, 2, 1), dataset(12, 2, 2)
    assert len(plot_explanation(otdd.explain(*flat, SETTINGS), Figure(), *flat).axes) == 3
    with pytest.raises(otdd.DataError, match=f"12 samples, the result is of {len(tgt)} of"):
        plot_explanation(found, Figure(), src, flat[1])


def test_values_of_images_and_vectors(tmp_path):
    src, tgt = fake_images(3), fake_images(3, seed=1)
    found = otdd.value(src, tgt, SETTINGS)
    figure = plot_values(found, tmp_path / "v.png", src)
    # two histograms, twelve samples of the highest value and as many of the highest label part
    assert len(figure.axes) == 2 + 24 and (tmp_path / "v.png").stat().st_size > 1000
    worst = src.class_names[int(src.labels[found.label.argmax()])]
    assert figure.axes[14].get_ylabel() == "label fits least"
    assert figure.axes[14].get_title() == worst
    flat = dataset(12, 2, 1), dataset(12, 2, 2)
    stopped = dataclasses.replace(otdd.value(*flat, SETTINGS), converged=False)
    figure = plot_values(stopped, Figure(), flat[0])
    assert len(figure.axes) == 2 and "NOT CONVERGED" in figure.get_suptitle()
    with pytest.raises(otdd.DataError, match=f"13 samples, the result is of {len(src)} of"):
        plot_values(found, Figure(), dataset(13, 2, 1))


def test_extremes_leave_out_what_has_no_score():
    score = torch.tensor([3.0, torch.nan, 1.0, 2.0])
    near, far = extremes(score, 2)
    assert near.tolist() == [2, 3] and far.tolist() == [0, 3]
    assert extremes(score, 9)[0].tolist() == [2, 3, 0]


def test_results_of_another_kind_are_not_drawn(tmp_path, small):
    path = tmp_path / "x.png"
    for draw in (plot_ranking, plot_result, plot_explanation, plot_values):
        with pytest.raises(otdd.DataError, match=r"MatrixResult\(.* arrived, expected "):
            draw(small[1], path)
    for draw in (plot_matrix, plot_map, plot_tree):
        with pytest.raises(otdd.DataError, match=r"OTDDResult\(.* arrived, expected MatrixResult"):
            draw(fake_result(), path)
    assert not path.exists()
