"""Pages of results: what they say, what they must not do, and how a browser shows them."""

import dataclasses
import json
import re
import sys
from functools import cache
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from browser import Browser
from click.testing import CliRunner
from fakes import fake_images, fake_result
from matplotlib.figure import Figure
from problems import dataset
from test_cli import refused
from test_plots import vectors

import otdd_flash as otdd
from otdd_flash import DataError, write_report
from otdd_flash.cli import main
from otdd_flash.plots import strongest_pairs
from otdd_flash.png import ON_LIGHT
from otdd_flash.report import Card, Column, Page
from otdd_flash.report.drawing import MOST_MARKS, inline_svg
from otdd_flash.types import LabelledDataset

# names that would be code, markup, an attribute or a field of the template if they were not escaped
HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "${body} $title &amp;")
VOID = {"meta", "link", "img", "br", "hr", "path", "use", "image"}


class Reader(HTMLParser):
    """Collects tags, attributes and visible text, and checks that what opens closes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


def hostile_result():
    base = fake_result(3, 3)
    source = dataclasses.replace(base.source, name=HOSTILE[0], class_names=HOSTILE)
    target = dataclasses.replace(base.target, class_names=HOSTILE[::-1])
    return fake_result(3, 3, source=source, target=target, notes=(HOSTILE[1],))


def hostile_data(seed):
    points = torch.randn(900, 4, generator=torch.Generator().manual_seed(seed))
    return LabelledDataset(points, torch.arange(900) % 3, class_names=HOSTILE, name=HOSTILE[0])


def page_of(tmp_path, result, *data):
    write_report(result, tmp_path / "r.html", *data)
    return (tmp_path / "r.html").read_text("utf-8")


@cache
def explained_pair(kind):
    """An explanation and its datasets, images or points."""
    if kind == "images":
        data = tuple(otdd.load(f"{n}-mini", max_samples=60) for n in ("mnist", "fashion-mnist"))
    else:
        data = dataset(50, 4, 1, name="one"), dataset(40, 4, 2, weighted=True, name="two")
    return otdd.explain(*data, otdd.OTDDSettings(device="cpu"), pairs=5), data


@cache
def compared(kind):
    """A matrix and its datasets, images or points with names that must stay text."""
    settings = otdd.OTDDSettings(device="cpu", epsilon="3%")
    if kind == "images":
        data = (*explained_pair(kind)[1], explained_pair(kind)[1][0])
        confidence = otdd.Confidence(bootstrap=10, noise_floor=True)
        return otdd.matrix(data, settings, confidence=confidence), data
    data = tuple(dataset(12 + k, 3, k, name=f"{HOSTILE[k % 3]} {k}") for k in range(4))
    return otdd.matrix(data, settings), data


def flowed(folder, kind):
    """The page of a short flow by the command, of images or of points, and its summary."""
    names = ("digits", "digits") if kind == "vectors" else ("mnist-mini", "fashion-mnist-mini")
    path, out = folder / f"flow of {kind}.html", folder / f"run of {kind}"
    options = ["--max-samples", "60", "--steps", "3", "--every", "1", "--device", "cpu", "--json"]
    files = ["--out", str(out), "--report", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        if kind == "vectors":
            data = explained_pair(kind)[1]
            # the package's attribute of that name is the command
            module = sys.modules["otdd_flash.cli.flow"]
            patch.setattr(module, "load_pair", lambda *_: data)
        done = CliRunner().invoke(main, ["flow", *names, *options, *files])
    assert done.exit_code == 0, done.output
    return path, json.loads(done.stdout)


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
    assert rows[:8] == result.source_foreign.argsort()[:8].tolist()
    assert rows[8] == int(result.source_foreign.argmax())
    assert data[0].class_names[int(data[0].labels[rows[8]])] in foreign
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


def test_a_flow_says_where_it_ended(pages):
    for kind in ("images", "vectors"):
        path, _ = pages[f"flow of {kind}"]
        summary = json.loads((path.parent / f"run of {kind}" / "summary.json").read_text())
        text = Reader(path.read_text("utf-8")).text
        for number in summary["value"]:
            assert f"{number:.6g}" in text
        for entry in summary["classes"]:
            assert f"{100 * entry['share']:.1f}" in text
        assert "step_size" in text and "All solves converged" in text
        assert text.count("Step ") == (4 if kind == "images" else 2)


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


# --- in a browser


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


def test_the_watch_sees_what_a_page_must_not_do(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text('<img src="http://127.0.0.1:9/a.png"><script>console.error("no")</script>')
    browser.open(path)
    assert any("no" in line for line in browser.console())
    assert browser.requests() == [path.as_uri(), "http://127.0.0.1:9/a.png"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of every kind, made once: its file and words that a person must see on it."""
    folder = tmp_path_factory.mktemp("pages")
    images, points = (fake_images(), fake_images(seed=1)), (vectors(900), vectors(40))
    hostile = hostile_result(), (hostile_data(0), hostile_data(1))
    explained = [(explained_pair(kind), kind) for kind in ("images", "vectors")]
    results = {
        "distance of images": (fake_result(), images),
        "distance of vectors": (fake_result(3, 3, converged=False), points),
        "distance of hostile names": hostile,
        **{f"explanation of {kind}": found for found, kind in explained},
    }
    made = {}
    for name, (result, data) in results.items():
        write_report(result, folder / f"{name}.html", *data)
        value = getattr(result, "value", result)
        low, high = value.squared_bounds
        words = [f"{value.distance:.7g}", f"between {low:.7g} and {high:.7g}"]
        words += [*result.source.class_names, *result.target.class_names]
        made[name] = folder / f"{name}.html", words
    for kind in ("images", "vectors"):
        result, data = compared(kind)
        write_report(result, folder / f"matrix of {kind}.html", *data)
        values = (result.distance.max(), result.squared_upper.max(), result.marginal_error.max())
        words = [f.format(v) for f, v in zip(("{:.7g}", "{:.6g}", "{:.1e}"), values, strict=True)]
        made[f"matrix of {kind}"] = folder / f"matrix of {kind}.html", [*words, *result.names]
        path, summary = flowed(folder, kind)
        words = [f"{summary['final']['distance']:.7g}", f"{summary['epsilon']:.5g}"]
        made[f"flow of {kind}"] = path, words + [e["by_mass"] for e in summary["classes"]]
    return made


KINDS = [
    *(f"distance of {what}" for what in ("images", "vectors", "hostile names")),
    *(
        f"{page} of {what}"
        for page in ("explanation", "flow", "matrix")
        for what in ("images", "vectors")
    ),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_browser_shows_the_page_without_a_word_or_a_fetch(browser, pages, kind):
    path, words = pages[kind]
    Reader(path.read_text("utf-8"))
    browser.open(path)
    assert browser.console() == []
    assert browser.requests() == [path.as_uri()]
    seen = browser.run("return document.body.innerText")
    assert [word for word in words if word not in seen] == []
    whole = browser.run("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert whole and (len(browser.all("img")) > 0) == kind.endswith("images")
    for svg in browser.all("figure svg"):
        assert svg.size["height"] > 200
    if kind.endswith("vectors") and not kind.startswith("explanation"):
        assert browser.all("figure svg")


def test_a_browser_shows_the_numbers_of_the_result(browser, tmp_path):
    result = fake_result()
    page_of(tmp_path, result)
    browser.open(tmp_path / "r.html")
    shown = browser.run(
        "return [...document.querySelectorAll('table')[1].tBodies[0].rows].map("
        "row => [...row.cells].slice(1).map(cell => parseFloat(cell.innerText)))"
    )
    # two decimals are shown
    assert np.abs(np.array(shown) - 100 * result.class_mass.numpy()).max() <= 0.005 + 1e-9


def test_a_click_on_a_name_sorts(browser, tmp_path):
    result = fake_result()
    page_of(tmp_path, result)
    browser.open(tmp_path / "r.html")
    mass = browser.all("table")[1]
    heads = mass.find_elements("css selector", "thead th")

    def names():
        return browser.run(
            "return [...arguments[0].tBodies[0].rows].map(r => r.cells[0].innerText)", mass
        )

    order = np.argsort(-result.class_mass[:, 4].numpy())
    digits = [str(k) for k in range(10)]
    falling = [digits[k] for k in order]
    seen = []
    for _ in range(4):
        seen.append((heads[5].get_attribute("aria-sort"), names()))
        heads[5].find_element("css selector", "button").click()
    assert seen == [
        (None, digits), ("descending", falling), ("ascending", falling[::-1]), (None, digits)
    ]  # fmt: skip
    heads[0].find_element("css selector", "button").click()
    heads[0].find_element("css selector", "button").click()
    assert names() == digits[::-1] and heads[5].get_attribute("aria-sort") is None


def test_numbers_sort_as_numbers_and_gaps_stay_below(browser, tmp_path):
    page = Page("t")
    values = [("a10", 5.0), ("a9", None), ("a1", 40.0), ("b", float("nan")), ("a2", -1e-9)]
    page.table("c", [Column("name"), Column("x", "{:.0f}")], values)
    page.write(tmp_path / "r.html")
    browser.open(tmp_path / "r.html")
    orders = []
    for column, clicks in ((1, 1), (1, 1), (0, 1)):
        for _ in range(clicks):
            browser.all("thead button")[column].click()
        orders.append([head.text for head in browser.all("tbody th")])
    assert orders == [
        ["a1", "a10", "a2", "a9", "b"],
        ["a2", "a10", "a1", "a9", "b"],
        ["a1", "a2", "a9", "a10", "b"],
    ]


def luminance(colour):
    """Relative luminance by the formula of WCAG 2."""
    parts = np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour])
    return parts @ (0.2126, 0.7152, 0.0722)


def contrasts(browser):
    """Return the least contrast of text on its ground, over all elements that hold text."""
    found = browser.run(
        """
        const parse = (text) => text.match(/[\\d.]+/g).map(Number);
        return [...document.querySelectorAll("main *")].filter(e => !e.closest("svg") &&
          [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
            const grounds = [];
            for (let at = e; at; at = at.parentElement)
              grounds.push(parse(getComputedStyle(at).backgroundColor));
            return [e.tagName + "." + e.className, parse(getComputedStyle(e).color), grounds];
          });
        """
    )
    worst = {}
    for name, ink, grounds in found:
        ground = np.ones(3)
        for layer in reversed(grounds):
            alpha = layer[3] if len(layer) == 4 else 1.0
            ground = (1 - alpha) * ground + alpha * np.array(layer[:3]) / 255
        light, dark = sorted((luminance(np.array(ink[:3]) / 255), luminance(ground)))[::-1]
        ratio = (light + 0.05) / (dark + 0.05)
        worst[name] = min(worst.get(name, 99.0), ratio)
    return worst


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_can_be_read_in_both_schemes(browser, pages, kind, scheme):
    browser.open(pages[kind][0], scheme=scheme)
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    levels = [float(v) for v in re.findall(r"\d+", ground)]
    assert (min(levels) > 200) if scheme == "light" else (max(levels) < 60)
    worst = contrasts(browser)
    # WCAG 2, level AA
    assert len(worst) > 10 and min(worst.values()) >= 4.5, worst
    # the ink of figures is that of the page
    inks = browser.run(
        "return [...document.querySelectorAll('figure svg text')]"
        ".map(text => getComputedStyle(text).fill)"
    )
    text = browser.run("return getComputedStyle(document.body).color")
    assert set(inks) <= {text} and (len(inks) > 0) == bool(browser.all("figure svg"))
    # and what keeps names apart from lines is that of the paper
    rims = browser.run(
        "return [...document.querySelectorAll('.outlined text')]"
        ".map(text => getComputedStyle(text).stroke)"
    )
    assert set(rims) <= {ground} and (len(rims) > 0) == kind.startswith("matrix")


@pytest.mark.parametrize("kind", KINDS)
def test_a_phone_scrolls_down_only(browser, pages, kind):
    browser.open(pages[kind][0], width=360)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return getComputedStyle(document.body).fontSize") == "16px"
