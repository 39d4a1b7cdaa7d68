"""Pages of all kinds as a browser shows them: whole, without a fetch, to be read in any scheme."""

import json
import re

import numpy as np
import pytest
from browser import Browser
from fakes import fake_images, fake_result
from pages import (
    Reader,
    compared,
    explained_pair,
    flowed,
    hostile_data,
    hostile_result,
    page_of,
)
from test_plots import vectors

from otdd_flash import write_report
from otdd_flash.report import Column, Page


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
