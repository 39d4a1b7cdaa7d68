"""Pages of results: what they say, and what they must not do."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fakes import fake_images, fake_result
from matplotlib.figure import Figure
from pages import (
    HOSTILE,
    Reader,
    compared,
    explained_pair,
    hostile_data,
    hostile_result,
    page_of,
)
from test_cli import refused
from test_plots import vectors

import otdd_flash as otdd
from otdd_flash import DataError, write_report
from otdd_flash.cli import main
from otdd_flash.pictures.plots import strongest_pairs
from otdd_flash.pictures.png import ON_LIGHT
from otdd_flash.report import Card, Column, Page
from otdd_flash.report.drawing import MOST_MARKS, inline_svg

# --- what a page says


@pytest.mark.parametrize(
    ("classes", "data"),
    [(10, ()), (10, (fake_images(), fake_images(seed=1))), (3, (vectors(900), vectors()))],
)
def test_a_page_is_one_whole_file_that_refers_to_nothing(tmp_path, classes, data):
    html = page_of(tmp_path, fake_result(classes, classes), *data)
    page = Reader(html)
    for tag, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:", "#")), (tag, key, value)
    assert re.findall(r"url\((?!#)|@import", html) == []
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert len(html) < 400_000


def test_the_page_holds_the_numbers_of_the_result(tmp_path):
    result = fake_result()
    text = Reader(page_of(tmp_path, result, fake_images(), fake_images())).text
    for piece in (
        "mnist to fashion-mnist", "15.25", "232.5625", "between 231 and 233.5",
        "lower 250.1 <= OT <= upper 250.9", "1.301 (1% of the mean cost 130.1)", "8.3e-04",
        "Converged", "after 41 passes (self terms 12 + 13)", "class laws 1.25", "1.23 GB",
        "label_distance", "gaussian", "memory_budget", "not set", torch.__version__,
    ):  # fmt: skip
        assert piece in text, piece
    assert "NOT CONVERGED" not in text


def test_an_unconverged_result_says_so_at_the_top(tmp_path):
    html = page_of(tmp_path, fake_result(converged=False, marginal_error=0.03))
    assert '<p class="verdict bad">NOT CONVERGED: L1 error of the marginals 3.0e-02' in html


def test_tables_hold_every_value_in_full(tmp_path):
    result = fake_result(3, 4)
    html = page_of(tmp_path, result)
    mass, cost, pairs = html.split("<table>")[2:5]
    for table, values in ((mass, 100 * result.class_mass), (cost, result.label_cost)):
        kept = [float(number) for number in re.findall(r'data-value="([^"]*)"', table)]
        assert kept == values.flatten().tolist()
        shares = [float(share) for share in re.findall(r"--share:([\d.]+)", table)]
        assert min(shares) == 0 and max(shares) == 1
    rows = re.findall(r"<tr><th scope=\"row\">.*</tr>", pairs)[:12]
    first = [float(v) for v in re.findall(r'data-value="([^"]*)"', rows[0])]
    row, column = strongest_pairs(result.class_mass.numpy())[0]
    share = result.class_mass[row, column] / result.class_mass[row].sum()
    expected = [100 * result.class_mass[row, column], 100 * share, result.label_cost[row, column]]
    # the shares are computed in another order: some ulp
    assert first == pytest.approx([float(v) for v in expected], rel=1e-12)
    assert len(rows) == 12


def test_of_many_classes_the_strongest_pairs_are_shown_and_the_rest_is_told(tmp_path):
    html = page_of(tmp_path, fake_result(60, 60))
    assert html.count("<table>") == 2 and html.count("<tr>") == 3 + 201
    assert "the 200 of 3,600 that carry the most mass" in html
    assert "that carry the most mass;" not in page_of(tmp_path, fake_result())


def test_names_are_text_whatever_they_hold(tmp_path):
    for data in ((), (hostile_data(0), hostile_data(1))):
        html = page_of(tmp_path, hostile_result(), *data)
        page = Reader(html)
        assert [tag for tag, _ in page.tags].count("script") == 1 and "<img" not in html
        assert all(page.text.count(name) >= 3 for name in HOSTILE)
        assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)


def test_the_same_result_gives_the_same_bytes(tmp_path):
    data = vectors(900), vectors(800)
    assert page_of(tmp_path, fake_result(3, 3), *data) == page_of(
        tmp_path, fake_result(3, 3), *data
    )


def test_datasets_that_the_result_is_not_of_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"vectors: 3 classes, .* 10 others; give mnist, .* None"):
        write_report(fake_result(), tmp_path / "r.html", vectors(), vectors())
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_report(fake_result(), tmp_path / "no" / "r.html")
    assert not list(tmp_path.iterdir())


def test_an_explanation_says_what_each_term_is_made_of(tmp_path):
    result, data = explained_pair("images")
    html = page_of(tmp_path, result, *data)
    tables = html.split("<table>")[1:]
    kept = [float(number) for number in re.findall(r'data-value="([^"]*)"', tables[0])]
    terms = (result.cross, result.source_self, result.target_self, result.split)
    assert kept == [v for t in terms for v in (t.features, t.labels, t.entropy, t.total)]
    assert kept[-1] == pytest.approx(result.value.squared, rel=1e-9)
    share = f"features {result.split.features / result.split.total:.1%}"
    assert share in Reader(html).text
    # the samples that are most foreign, and who pays
    (foreign,) = (t for t in tables if "<caption>Samples of the source" in t)
    rows = [int(float(v)) for v in re.findall(r'data-value="([^"]*)"', foreign)[::2]]
    assert rows[:8] == result.source_rows[result.source_foreign.argsort()[:8]].tolist()
    far = int(result.source_foreign.argmax())
    assert rows[8] == int(result.source_rows[far])
    assert data[0].class_names[int(data[0].labels[far])] in foreign
    (pairs,) = (t for t in tables if "<caption>Sample pairs" in t)
    assert pairs.count('<th scope="row">') == 5
    with pytest.raises(DataError, match=r"two: 40 samples, the result is of 60 of mnist"):
        write_report(result, tmp_path / "x.html", explained_pair("vectors")[1][1], data[1])


def test_an_explanation_without_debiasing_and_without_samples(tmp_path):
    data = explained_pair("vectors")[1]
    result = otdd.explain(*data, otdd.OTDDSettings(debias=False, device="cpu"), pairs=0)
    text = Reader(page_of(tmp_path, result)).text
    assert "to itself" not in text and "not debiased" in text and "Sample pairs" not in text


def test_a_matrix_holds_every_pair(tmp_path):
    result, data = compared("images")
    html = page_of(tmp_path, result, *data)
    whole, pairs = html.split("<table>")[1:3]
    kept = [float(number) for number in re.findall(r'data-value="([^"]*)"', whole)]
    assert kept == result.distance.flatten().tolist()
    names = re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td>', pairs)
    assert names[0] == ("mnist-mini", "mnist-mini (2)") and len(names) == 3
    first, second = (
        [float(v) for v in re.findall(r'data-value="([^"]*)"', row)]
        for row in re.findall("<tr>.*</tr>", pairs)[1:3]
    )
    assert first[:4] == [0.0] * 4 and len(first) == 9
    columns = "distance squared squared_lower squared_upper half_width transport_lower".split()
    place = tuple(result.names.index(name) for name in names[1])
    assert second[:6] == [float(getattr(result, name)[place]) for name in columns]
    text = Reader(html).text
    assert "95% intervals of squared, 10 resamples, seed 0" in text
    assert text.count("between two halves of 30, seed 0") == 3
    alone = page_of(tmp_path, result)
    assert "<img" not in alone and len(alone) < len(html)
    with pytest.raises(DataError, match=r"2 datasets arrived, the matrix is of 3; give the same"):
        write_report(result, tmp_path / "x.html", *data[:2])
    with pytest.raises(DataError, match=r"1 dataset\(s\) arrived, the result is of mnist and"):
        write_report(fake_result(), tmp_path / "x.html", data[0])


def test_of_many_datasets_the_nearest_pairs_are_shown(tmp_path):
    count = 60
    place = np.random.default_rng(0).normal(size=(count, 2))
    gaps = torch.from_numpy(np.linalg.norm(place[:, None] - place[None], axis=-1))
    made = {name: gaps for name in "distance squared squared_lower squared_upper".split()}
    made |= {name: gaps for name in "transport_lower transport_upper mean_cost".split()}
    one = compared("vectors")[0]
    result = dataclasses.replace(
        one,
        **made,
        datasets=one.datasets[:1] * count,
        names=tuple(f"set {k}" for k in range(count)),
        marginal_error=gaps,
        converged=gaps > 9,
    )
    html = page_of(tmp_path, result)
    pairs = html.split("<table>")[1]
    assert pairs.count('<th scope="row">') == 200 and "the nearest 200 of 1,770" in pairs
    assert "NOT CONVERGED" in html and len(html) < 400_000


def test_reports_of_flows_that_cannot_be_written_are_refused_first(tmp_path):
    for name, piece in (("r.pdf", "must end in .html"), ("no/r.html", "there is no directory")):
        options = ["--out", str(tmp_path / "run"), "--report", str(tmp_path / name)]
        done = CliRunner().invoke(main, ["flow", "mnist-mini", "mnist-mini", *options])
        refused(done, "--report", piece)
    assert not list(tmp_path.iterdir())


# --- parts


def test_a_cell_without_a_value_and_one_that_is_not_finite():
    page = Page("t")
    columns = [Column("name"), Column("x", "{:.1f}", tinted=True)]
    page.table("c", columns, [("a", 1.0), ("b", None), ("c", float("nan")), ("d", 3)])
    html = page.html()
    assert '<td class="number" data-value="">–</td>' in html
    assert '<td class="number" data-value="nan">nan</td>' in html
    assert html.count("--share:") == 2


def test_a_row_of_another_length_is_a_fault():
    with pytest.raises(ValueError, match="zip"):
        Page("t").table("c", [Column("a"), Column("b")], [("only one",)])


def test_pictures_are_kept_to_the_bit():
    import base64
    import io

    from PIL import Image

    for shape in ((5, 7, 1), (5, 7, 3)):
        levels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        pixels = np.broadcast_to(levels, (5, 7, 3))
        page = Page("t")
        page.cards([Card(pixels / 255, "title", "text")])
        (data,) = re.findall(r"data:image/png;base64,([^\"]*)", page.html())
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            assert picture.mode == ("L" if shape[2] == 1 else "RGB")
            assert np.array_equal(np.asarray(picture.convert("RGB")), pixels)


def drawn(count=10, title="a title"):
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(np.arange(count), np.arange(count), label="points")
    axes.text(0, 0, "on light", color=ON_LIGHT)
    axes.set_title(title)
    axes.legend()
    return figure


def test_ink_follows_the_page_and_text_stays_text():
    svg = inline_svg(drawn(title="#000000 & <b>"))
    page = Reader(svg)
    assert "#000000 & <b>" in page.text and "on light" in page.text
    assert svg.count("#000000") == 1 and "stroke: currentColor" in svg
    assert f"fill: {ON_LIGHT}" in svg and "font-family" not in svg
    assert page.tags[0][0] == "svg" and {"width", "height"}.isdisjoint(page.tags[0][1])
    assert not any(tag == "metadata" or ":" in tag for tag, _ in page.tags)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_many_marks_become_pixels():
    few, many = (inline_svg(drawn(count)) for count in (MOST_MARKS, MOST_MARKS + 1))
    assert few.count("<use") > MOST_MARKS > many.count("<use") and "<image" in many
    assert "<image" not in few and len(many) < len(few)
