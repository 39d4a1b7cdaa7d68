"""What tests of pages share: results with names that must stay text, and a reader of HTML."""

import dataclasses
import json
import sys
from functools import cache
from html.parser import HTMLParser

import pytest
import torch
from click.testing import CliRunner
from fakes import fake_result
from problems import dataset

import otdd_flash as otdd
from otdd_flash import write_report
from otdd_flash.cli import main
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
