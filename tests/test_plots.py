import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from fakes import fake_images, fake_result
from matplotlib.figure import Figure
from PIL import Image

from otdd_flash.pictures.figures import power_of_1000, short
from otdd_flash.pictures.plots import plot_result, strongest_pairs
from otdd_flash.pictures.sheets import is_coloured, is_image, pair_sheet, sample_pictures
from otdd_flash.types import LabelledDataset


def vectors(n=50, d=5, classes=3, name="vectors"):
    generator = torch.Generator().manual_seed(n)
    return LabelledDataset(
        torch.randn(n, d, generator=generator), torch.arange(n) % classes, name=name
    )


@pytest.mark.parametrize(
    ("classes", "shape"),
    [(10, (28, 28)), (10, (3, 32, 32)), (100, (32, 32, 3)), (1, (8, 8)), (37, (1, 9, 5))],
)
def test_pictures_are_small_and_whole(tmp_path, classes, shape):
    path = tmp_path / "r.png"
    src, tgt = fake_images(classes, shape), fake_images(classes, seed=1)
    plot_result(fake_result(classes, classes), path, src, tgt)
    assert os.listdir(tmp_path) == ["r.png"]
    assert path.stat().st_size < 250_000
    with Image.open(path) as picture:
        assert picture.format == "PNG" and round(picture.info["dpi"][0]) == 150
        pixels = np.asarray(picture.convert("RGB"))
    assert min(pixels.shape[:2]) > 1000
    # the paper is white and something is drawn on it
    assert (pixels[:3, :3] == 255).all() and len(np.unique(pixels.reshape(-1, 3), axis=0)) > 30


def words(figure):
    """The visible texts of a figure and their boxes, after a draw."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    found = []
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            continue
        labels = [*axes.get_xticklabels(), *axes.get_yticklabels()]
        for text in [*labels, axes.title, axes.xaxis.label, axes.yaxis.label]:
            if text.get_visible() and text.get_text() and axes.axison | (text is axes.title):
                found.append((axes, text, text.get_window_extent(renderer)))
    return found


@pytest.mark.parametrize("classes", [3, 10, 26, 100])
def test_class_names_do_not_overlap(tmp_path, classes):
    result = fake_result(classes, classes)
    figure = plot_result(result, tmp_path / "r.png", fake_images(classes), fake_images(classes))
    height, width = figure.bbox.height, figure.bbox.width
    titles = []
    for axes, text, box in words(figure):
        # 1 pixel of rounding
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        if text is axes.title:
            titles.append(box)
    assert not any(a.overlaps(b) for k, a in enumerate(titles) for b in titles[:k])
    # the two heat maps; each is followed by its colour bar
    for axes in (figure.axes[0], figure.axes[2]):
        upright = [label.get_window_extent() for label in axes.get_yticklabels()]
        assert not any(a.overlaps(b) for k, a in enumerate(upright) for b in upright[:k])
        # turned by 45 degrees: names are told apart when lines of text fit between the anchors
        places = [axes.transData.transform((place, 0))[0] for place in axes.get_xticks()]
        size = axes.get_xticklabels()[0].get_fontsize() * figure.dpi / 72
        assert (np.diff(places) * np.sqrt(0.5) > 0.9 * size).all()


def test_names_of_all_classes_are_shown_up_to_25():
    for classes, expected in ((10, 10), (25, 25), (26, 13), (100, 25)):
        figure = plot_result(fake_result(classes, classes), Figure())
        assert len(figure.axes[0].get_xticks()) == expected, classes


def test_vectors_get_a_scatter_and_bars(tmp_path):
    figure = plot_result(fake_result(3, 3), tmp_path / "r.png", vectors(), vectors(40))
    titles = [axes.get_title() for axes in figure.axes]
    assert any("principal components" in title for title in titles)
    assert "strongest class pairs" in titles


@pytest.mark.parametrize("pair", [(None, None), (vectors(d=1), vectors(d=1))])
def test_without_a_plane_bars_remain(tmp_path, pair):
    figure = plot_result(fake_result(3, 3), tmp_path / "r.png", *pair)
    titles = [axes.get_title() for axes in figure.axes]
    assert "strongest class pairs" in titles and len(figure.axes) == 5


def test_classes_without_weight_do_not_shift_the_samples(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "otdd_flash.pictures.plots.pair_sheet",
        lambda src, row, tgt, column, count: shown.append((row, column)) or np.zeros((2, 4, 3)),
    )
    # the result knows the classes 1 and 2 of 0, 1, 2
    base = fake_result(2, 3)
    source = dataclasses.replace(base.source, class_names=("1", "2"))
    mass = torch.tensor([[0.0, 0.0, 0.7], [0.3, 0.0, 0.0]], dtype=torch.float64)
    result = fake_result(2, 3, source=source, class_mass=mass)
    plot_result(result, Figure(), fake_images(3), fake_images(3))
    assert shown == [(1, 2), (2, 0)]
    plot_result(result, Figure(), vectors(), vectors())


def test_other_formats_and_a_given_figure(tmp_path):
    plot_result(fake_result(), tmp_path / "r.svg")
    assert b"<svg" in (tmp_path / "r.svg").read_bytes()[:1000]
    plot_result(fake_result(), tmp_path / "r.pdf")
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")
    figure = Figure()
    assert plot_result(fake_result(), figure) is figure and figure.axes


def test_an_unconverged_result_says_so_in_the_title():
    figure = plot_result(fake_result(converged=False), Figure())
    assert "NOT CONVERGED" in figure.get_suptitle()


def test_a_plot_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        plot_result(fake_result(), tmp_path / "no" / "r.png")
    assert not os.listdir(tmp_path)


def test_no_pyplot_and_no_global_state():
    code = "import sys, otdd_flash.pictures.plots; print('matplotlib.pyplot' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_strongest_pairs_are_sorted_and_leave_out_dust():
    mass = np.array([[0.5, 0.001], [0.0, 0.499]])
    assert strongest_pairs(mass) == [(0, 0), (1, 1)]
    assert len(strongest_pairs(np.full((10, 10), 0.01))) == 10


@pytest.mark.parametrize(
    ("largest", "power"), [(0, 0), (5, 0), (9999, 0), (1.2e6, 6), (3e4, 3), (2e-3, -3), (0.5, 0)]
)
def test_large_costs_are_shown_in_powers_of_1000(largest, power):
    assert power_of_1000(np.array([[0.0, largest]])) == power


def test_shapes_that_are_images():
    for shape, image, coloured in (
        ((28, 28), True, False),
        ((1, 28, 28), True, False),
        ((28, 28, 1), True, False),
        ((3, 32, 32), True, True),
        ((32, 32, 3), True, True),
        ((32, 32, 4), True, True),
        ((64,), False, False),
        ((1, 64), False, False),
        ((2, 8, 8), False, False),
        ((2, 3, 8, 8), False, False),
    ):
        data = LabelledDataset(np.zeros((2, *shape)))
        assert (is_image(data), is_coloured(data)) == (image, coloured), shape


def test_channel_orders_show_the_same_sheet():
    last = fake_images(3, (8, 9, 3))
    first = LabelledDataset(
        last.points.reshape(-1, 8, 9, 3).movedim(-1, 1), last.labels, sample_shape=(3, 8, 9)
    )
    sheets = [pair_sheet(data, 0, data, 1, 4) for data in (last, first)]
    assert np.array_equal(*sheets) and sheets[0].shape == (18, 36, 3)
    assert sheets[0].min() >= 0 and sheets[0].max() <= 1


@pytest.mark.parametrize(("largest", "white"), [(1, 1), (16, 16), (127, 127), (128, 255), (0, 255)])
def test_bytes_of_few_levels_are_not_shown_dark(largest, white):
    points = np.zeros((3, 4, 5), np.uint8)
    points[1, 2, 3], points[2, 0, 0] = largest, largest // 2
    # one scale for all samples of a dataset, whichever are shown
    pictures = sample_pictures(LabelledDataset(points), torch.tensor([0, 2]))
    assert np.array_equal(pictures[..., 0], points[[0, 2]] / white)


def test_names_are_cut_and_never_formulas():
    assert short("Ankle boot", 16) == "Ankle boot"
    assert len(short("a" * 50, 16)) == 16
    plot_result(fake_result(1, 1, source=fake_result(1, 1).source), Figure())
    assert short("$x$", 16) == r"\$x\$"
