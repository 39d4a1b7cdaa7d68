"""The benchmark of matrices and resamples, in small."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import otdd_flash as otdd

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def test_ten_sets_are_compared_and_resampled(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setitem(sys.modules, "bench_matrix", None)
    del sys.modules["bench_matrix"]
    import bench_matrix

    digits, garments = (otdd.load(f"{n}-mini", max_samples=200) for n in ("mnist", "fashion-mnist"))
    settings = otdd.OTDDSettings(device="cpu", normalize="unit")
    sets = bench_matrix.ten_sets(digits, garments, 40)
    assert [len(data) for data in sets] == [40] * 10 and sets[7].classes == 5
    found = bench_matrix.matrix_section(sets, settings)
    assert found["converged"] and found["samples"] == [40] * 10 and found["mean_cost"] > 1
    drawn = bench_matrix.bootstrap_section(sets[0], sets[6], settings)
    assert drawn["half_width"] > 0 and drawn["bootstrap_seconds"] > 0
    json.dumps([found, drawn], allow_nan=False)
