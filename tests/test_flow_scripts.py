"""The scripts about flows, in small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import otdd_flash as otdd

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def scripts(monkeypatch):
    """Make the scripts importable."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    yield
    for name in ("bench_flow", "flow_mnist_to_fashion", "flow_evidence", "flow_evidence_figure"):
        sys.modules.pop(name, None)


def test_the_benchmark_times_sections(scripts, monkeypatch, tmp_path):
    import bench_flow

    monkeypatch.delenv("OTDD_DATA", raising=False)
    names = ["features", "attached", "features, two slices"]
    monkeypatch.setattr(bench_flow, "VARIANTS", {names[2]: bench_flow.VARIANTS[names[2]]})
    options = ["--samples", "60", "--steps", "5", "--device", "cpu", "--output"]
    done = CliRunner().invoke(bench_flow.main, [*options, str(tmp_path / "b.json")])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "b.json").read_text())
    assert list(report["flows"]) == names
    for found in report["flows"].values():
        assert found["steps"] == 5 and len(found["values"]) == 6 and found["fall"] > 0
        assert found["ms"]["total"] >= found["ms"]["solve"] > 0


def test_the_flow_of_mnist_draws_its_strip(scripts, full_data_root, tmp_path):
    import flow_mnist_to_fashion as script

    options = ["--data", str(full_data_root), "--samples", "60", "--steps", "3", "--device", "cpu"]
    done = CliRunner().invoke(script.main, [*options, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0 and "S fell from" in done.output
    report = json.loads((tmp_path / "run" / "flow.json").read_text())
    assert len(report["values"]) == 4 and 0 < report["fall"] < 1
    with Image.open(tmp_path / "run" / "filmstrip.png") as strip:
        strip.load()


def test_the_evidence_has_all_its_rows(scripts, full_data_root, monkeypatch, tmp_path):
    import flow_evidence as script

    for name in ("UPDATES", "FEW_UPDATES", "ALL_UPDATES"):
        monkeypatch.setattr(script, name, 20)
    options = ["--data", str(full_data_root), "--samples", "100", "--steps", "2", "--every", "1"]
    options += ["--only", "digits", "--modes", "attached,augmented", "--device", "cpu"]
    reports = []
    for k in range(2):
        done = CliRunner().invoke(script.main, [*options, "--output", str(tmp_path / f"{k}.json")])
        assert done.exit_code == 0, done.output
        reports.append(json.loads((tmp_path / f"{k}.json").read_text())["pairs"])
    # the same numbers again
    assert reports[0] == reports[1]
    modes = reports[0]["digits to mnist 8x8"]["modes"]
    rows = modes["attached"]["judge_accuracy_by_step"]
    assert set(rows) == {"by_mass", "by_law", "same digit"}
    assert set(modes["augmented"]["judge_accuracy_by_step"]) == {"by_mass", "read", "same digit"}
    assert list(rows["by_mass"]) == ["0", "1", "2"]
    assert len(modes["attached"]["trained_on"]) == 8
    assert all(0 <= row["least"] <= row["mean"] for row in modes["attached"]["trained_on"].values())


def test_mnist_in_eight_by_eight_looks_as_the_digits_do(scripts):
    import flow_evidence as script

    small, digits = script.eight_by_eight(otdd.load("mnist-mini")), otdd.load("digits")
    assert small.points.dtype == torch.uint8 and int(small.points.max()) == 16
    assert small.sample_shape == (8, 8)
    means = []
    for data in (small, digits):
        mean = torch.stack([data.points[data.labels == c].float().mean(0) for c in range(10)])
        means.append(torch.nn.functional.normalize(mean - mean.mean(0), dim=1))
    # what sets a digit apart from the mean digit is on average alike in both, unlike any other
    alike = means[0] @ means[1].T
    assert float(alike.diagonal().mean()) > 0.4
    assert float((alike.sum() - alike.diagonal().sum()) / 90) < 0


def test_the_figure_shows_all_pairs(scripts, tmp_path):
    import flow_evidence_figure as script

    folder = SCRIPTS / "results"
    files = [str(folder / f"flow_evidence_{name}.json") for name in ("digits", "fashion")]
    done = CliRunner().invoke(script.main, [*files, "--output", str(tmp_path / "f.png")])
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "f.png") as one, Image.open(folder / "flow_evidence.png") as two:
        # what is kept is what the files give, up to the fonts of another version
        assert one.size == two.size
