"""The scripts about second derivatives, in small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def runner(monkeypatch) -> CliRunner:
    """Make the scripts importable; return what runs them."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in ("bench_hvp", "shuffled_regression"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return CliRunner()


def test_products_are_checked_by_differences(runner, tmp_path):
    import bench_hvp

    out = tmp_path / "hvp.json"
    options = ["--device", "cpu", "--n", "60", "--d", "3", "--large", "20", "--output", str(out)]
    done = runner.invoke(bench_hvp.main, options, catch_exceptions=False)
    assert done.exit_code == 0
    rows = json.loads(out.read_text())["rows"]
    # potentials to 2e-6 and a residual of 1e-5, each counted a few times
    assert rows["otdd-flash, 1e-05"]["error"] < 1e-4
    assert rows["otdd-flash, 0.0001"]["residual"] <= 1e-4
    assert "otdd-flash, n = m = 20, d = 784" in rows
    # flash-sinkhorn is absent or has no GPU: its rows say so and cost no other
    assert "error_message" in rows["flash-sinkhorn, its defaults"] or torch.cuda.is_available()


def test_a_saddle_is_found_and_left(runner, tmp_path, monkeypatch):
    import shuffled_regression

    monkeypatch.setattr(shuffled_regression, "SAMPLE", 80)
    out = tmp_path / "regression.json"
    options = ["--n", "120", "--starts", "1", "--adam-steps", "30", "--output", str(out)]
    done = runner.invoke(shuffled_regression.main, options, catch_exceptions=False)
    assert done.exit_code == 0
    report = json.loads(out.read_text())
    assert report["summary"]["adam_stays"] == report["summary"]["true_weights"] == 1
    row = report["rows"][0]
    assert row["eigenvalues"][0] < 0 < row["eigenvalues"][-1] and row["eigenvalue"] > 0
    assert row["start_error"] > 0.2 and row["escapes"] >= 1 and row["converged"]
    assert out.with_suffix(".png").stat().st_size > 10_000
