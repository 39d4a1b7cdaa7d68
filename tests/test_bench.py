"""Timers, the float64 check, the benchmark of this machine, its command and the scripts."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from otdd_flash import bench, float64
from otdd_flash.bench import (
    bench_steps,
    cross_report,
    make_clouds,
    operator_errors,
    pass_report,
    resized,
    truth_of,
)
from otdd_flash.cli import main
from otdd_flash.cli.bench import bench as command
from otdd_flash.datasets import load
from otdd_flash.errors import DeviceError, SettingsError
from otdd_flash.float64 import Float64Cost
from otdd_flash.ops import WORKSPACE_BYTES
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import Clock, PeakMemory, command_line, machine, median_ms, seconds_of
from otdd_flash.types import LabelledDataset

CPU = torch.device("cpu")
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture(scope="module")
def clouds():
    """Both mini sets at 150 and 170 samples, pixels in [0, 1]."""
    made = make_clouds(load("mnist-mini"), load("fashion-mnist-mini"), CPU, factor=1 / 255**2)
    return replace(resized(made, 150), y=resized(made, 170).y)


@pytest.fixture(scope="module")
def problem(clouds):
    return clouds.problem(clouds.x, clouds.y, clouds.label_cost, OTDDSettings(device="cpu"))


def dense(clouds):
    """The cost by its definition, one difference at a time."""
    x, y = clouds.x.points.double(), clouds.y.points.double()
    squared = torch.stack([(p - y).square().sum(1) for p in x]) * clouds.factor
    return squared + clouds.label_cost[clouds.x.labels][:, clouds.y.labels]


def drive(steps):
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as done:
            return seen, done.value


# --- timers


def test_a_median_runs_the_work_as_often_as_the_time_allows():
    calls = []
    assert median_ms(lambda: calls.append(1), CPU, seconds=0.0, least=3, most=9) >= 0
    assert len(calls) == 2 + 3
    median_ms(lambda: calls.append(1), CPU, seconds=5.0, least=3, most=9)
    assert len(calls) == 2 + 3 + 2 + 9


def test_seconds_come_with_the_value_and_a_clock_keeps_them_by_stage():
    value, seconds = seconds_of(lambda: 7, CPU)
    assert value == 7 and 0 <= seconds < 1
    clock = Clock(CPU)
    assert clock("one", lambda: "a") == "a" and clock("two", lambda: "b") == "b"
    assert list(clock.seconds) == ["one", "two"]
    assert PeakMemory(CPU).extra() == PeakMemory(CPU).total() == 0


def test_a_measurement_says_where_and_with_what_it_was_made():
    found = machine(CPU, "no-such-package")
    assert found["versions"]["no-such-package"] == "not installed"
    assert torch.__version__.startswith(found["versions"]["torch"])
    assert re.match(r"\d{4}-\d\d-\d\d ", found["date"]) and "cpu" in found["device"]
    json.dumps(found)


# --- the float64 check


@pytest.mark.parametrize("block", [None, 7])
def test_the_float64_cost_is_the_definition(clouds, problem, monkeypatch, block):
    if block:
        monkeypatch.setattr(float64, "BLOCK_ROWS", block)
        monkeypatch.setattr(float64, "BLOCK_COLUMNS", block + 4)
    truth = truth_of(clouds, problem.x, problem.y)
    cost = dense(clouds)[problem.x.order][:, problem.y.order]
    n, m = cost.shape
    every = slice(0, n), slice(0, m)
    torch.testing.assert_close(truth.block(*every), cost, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(truth.transposed.block(*every[::-1]), cost.mT, rtol=1e-12, atol=1e-9)

    torch.manual_seed(0)
    f, g, eps = torch.randn(n).double(), torch.randn(m).double(), 30.0
    a, b = problem.x.weights, problem.y.weights
    rows = torch.tensor([0, 5, n - 1])
    expected = -eps * torch.logsumexp((g - cost) / eps, 1)
    torch.testing.assert_close(truth.softmin(g, eps, rows), expected[rows])
    plan = a[:, None] * b * ((f[:, None] + g - cost) / eps).exp()
    wanted = ((plan.sum(1) - a).abs().sum(), (plan.sum(0) - b).abs().sum())
    assert truth.marginal_errors(f, g, a, b, eps) == pytest.approx([float(w) for w in wanted])
    value = a @ (-eps * torch.logsumexp((g - cost) / eps + b.log(), 1)) + b @ g
    assert truth.semidual(g, a, b, eps) == pytest.approx(float(value))


def test_points_far_from_zero_keep_their_distances():
    x = torch.randn(20, 3, dtype=torch.float64)
    none = torch.zeros(20, dtype=torch.int64)
    far = Float64Cost(x + 1e6, x + 1e6, none, none, torch.zeros(1, 1), 2.0)
    expected = 2 * torch.cdist(x, x).square()
    every = slice(0, 20)
    torch.testing.assert_close(far.block(every, every), expected, rtol=0, atol=1e-7)


def test_huge_potentials_do_not_overflow(clouds, problem):
    truth = truth_of(clouds, problem.x, problem.y)
    a, b = problem.x.weights, problem.y.weights
    errors = truth.marginal_errors(torch.full_like(a, 1e9), torch.zeros_like(b), a, b, 1.0)
    assert all(e == e and e > 1e9 for e in errors)


# --- what is measured


@pytest.mark.parametrize("samples", [37, 2000, 4500])
def test_resizing_keeps_classes_and_repeats_with_a_little_noise(samples):
    made = make_clouds(load("mnist-mini"), load("fashion-mnist-mini"), CPU)
    one, again = resized(made, samples), resized(made, samples)
    for side, same, given in ((one.x, again.x, made.x), (one.y, again.y, made.y)):
        assert torch.equal(side.points, same.points)
        assert len(side.points) == samples and side.points.dtype == torch.uint8
        assert float(side.weights.sum()) == pytest.approx(1)
        assert torch.equal(side.labels, side.labels.sort().values)
        assert int(side.labels.max()) == 9
        rows = torch.arange(samples) * 2000 // samples
        gap = (side.points.int() - given.points[rows].int()).abs()
        assert int(gap.max()) == (2 if samples > 2000 else 0)
        assert torch.equal(side.labels, given.labels[rows])
    assert samples <= 2000 or not torch.equal(one.x.points[0], one.x.points[1])


def test_reports_hold_times_and_small_errors(clouds, problem):
    truth = truth_of(clouds, problem.x, problem.y)
    eps = 0.01 * problem.mean_cost
    one = pass_report(problem, truth, eps)
    assert one["ms"] > 0 and one["cost_error"] < 1e-6 and one["softmin_error"] < 1e-6
    solved = cross_report(problem, truth, eps, 1e-3)
    assert solved["marginal_error_float64"] == pytest.approx(solved["marginal_error"], abs=1e-5)
    assert solved["marginal_error"] < 1e-3 and solved["passes"] > 4


def test_a_wrong_operator_is_found_out(clouds, problem):
    class Wrong:
        device = CPU

        def softmin(self, h, eps):
            return problem.op.softmin(h, eps)

        def softmin_transposed(self, h, eps):
            return problem.op.softmin_transposed(h, eps) + 0.01 * problem.mean_cost

    truth = truth_of(clouds, problem.x, problem.y)
    h = torch.zeros(150, dtype=torch.float64), torch.zeros(170, dtype=torch.float64)
    found = operator_errors(Wrong(), truth, h, 3.0, problem.mean_cost)
    assert found["cost_error"] == pytest.approx(0.01, rel=1e-3)
    assert found["softmin_error"] == pytest.approx(0.01, rel=1e-3)


def test_this_machine_is_measured_and_checked():
    seen, report = drive(bench_steps(device="cpu", samples=60))
    assert [s.stage for s in seen][:4] == ["class laws", "class laws", "pass", "pass"]
    assert {"self source", "solve", "certificate", "check"} <= {s.stage for s in seen}
    assert report["checks"] == {"cost_error": True, "marginal_error": True, "bounds": True}
    assert report["samples"] == 60 and report["solve"]["converged"]
    low, high = report["solve"]["squared_bounds"]
    assert low <= report["solve"]["squared"] <= high
    json.dumps(report, allow_nan=False)


def test_what_cannot_be_measured_is_refused(monkeypatch):
    with pytest.raises(SettingsError, match="samples is 3, expected 20 or more"):
        next(bench_steps(device="cpu", samples=3))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="use cpu, or auto"):
        next(bench_steps(device="cuda"))


def test_quick_means_fewer_samples(monkeypatch):
    monkeypatch.setitem(bench.SAMPLES, ("cpu", True), 25)
    monkeypatch.setitem(bench.SAMPLES, ("cpu", False), 30)
    assert drive(bench_steps(device="cpu", quick=True))[1]["samples"] == 25
    assert drive(bench_steps(device="cpu"))[1]["samples"] == 30


# --- the command


def run(*arguments):
    return CliRunner().invoke(main, ["bench", *arguments])


def test_the_command_prints_a_table():
    result = run("--device", "cpu", "--samples", "60")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    names = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert names == [
        "device", "operators", "versions", "data", "class laws", "one pass", "distance", "squared",
        "float64", "checks",
    ]  # fmt: skip
    assert "60 x 60 samples" in result.stdout and "bounds ok" in result.stdout


def test_the_command_prints_json():
    result = run("--device", "cpu", "--samples", "60", "--json", "--quiet")
    assert result.exit_code == 0 and result.stdout.count("\n") == 1
    assert json.loads(result.stdout)["samples"] == 60


def test_a_failed_check_is_told_and_sets_the_exit_code(monkeypatch):
    monkeypatch.setattr(bench, "COST_TOLERANCE", 0.0)
    result = run("--device", "cpu", "--samples", "60")
    assert result.exit_code == 1
    assert result.stderr == "Warning: failed against float64: cost_error\n"
    assert "cost error FAILS" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        (["--samples", "5"], "x>=20"),
        (["--device", "tpu"], "'tpu' is not a device"),
        (["--device", "cuda:77"], "use cpu, or auto"),
        (["mnist"], "unexpected extra argument"),
    ],
)
def test_bad_options_are_one_line(arguments, piece):
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and piece in result.stderr


def test_the_examples_of_the_help_are_understood_without_torch():
    code = "import sys\nfrom otdd_flash.cli import main\n"
    code += "try:\n    main(['bench', '--help'])\nfinally:\n    assert 'torch' not in sys.modules\n"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0 and "--quick" in out.stdout, out.stderr
    lines = re.findall(r"^  otdd bench(.*)$", command.epilog, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        command.make_context("bench", shlex.split(line.split(" > ")[0], comments=True))


# --- the scripts


def test_the_gpu_benchmark_runs_in_small_and_records_what_fails(tmp_path):
    out = tmp_path / "out.json"
    parts = [sys.executable, SCRIPTS / "bench_gpu.py", "--device", "cpu", "--tiny", "--out", out]
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [*map(str, parts), "--only", "pass,solver,large,laws,matrix"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert list(report["sections"]) == ["pass", "solver", "large", "laws", "matrix"]
    rows = [row for section in report["sections"].values() for row in section.values()]
    assert len(rows) == 2 + 8 + 1 + 1 + 2
    assert not [row["error"] for row in rows if "error" in row]
    assert "FAILED" not in done.stdout and "goal <=" in done.stdout


def test_reports_name_no_folders(monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench.py", "--out", "/home/me/bench.json", "--limit", "5"])
    assert command_line() == ["--out", "bench.json", "--limit", "5"]


def test_a_row_of_the_gpu_benchmark_that_fails_is_a_row(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_gpu
    import bench_table

    row = bench_gpu.run_row(lambda: 1 / 0)
    assert row["error"] == "ZeroDivisionError: division by zero"
    assert "FAILED ZeroDivisionError" in bench_table.line("title", row, bench_table.SHOWN["pass"])
    assert set(bench_gpu.SECTIONS) == set(bench_table.SHOWN)
    met = list(bench_table.goals({"pass": {"n = m = 60,000": {"ms": 4.0, "cost_error": 1.0}}}))
    assert [line.split()[-1] for line in met] == ["met", "MISSED"]


def test_streaming_can_be_forced_by_the_budget(clouds):
    settings = OTDDSettings(device="cpu", memory_budget=WORKSPACE_BYTES)
    made = clouds.problem(clouds.x, clouds.y, clouds.label_cost, settings)
    assert "streamed" in made.op.backend


def test_the_cpu_benchmark_solves_the_same_problem(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_cpu
    import peers

    made = bench_cpu.make_problem_clouds(None, 80)
    own = bench_cpu.ours(made)
    task = peers.make_task(made, own["epsilon"], 100 * own["epsilon"])
    pot = bench_cpu.pot(task, as_torch=False, known={})
    for row in (own, pot):
        assert row["marginal_error_float64"] < bench_cpu.GOAL and row["seconds"] > 0
    assert pot["iterations"] % bench_cpu.CHUNK == 0


def test_the_class_of_a_dataset_may_be_anything():
    data = LabelledDataset(torch.arange(60, dtype=torch.uint8).reshape(20, 3), ["a", "b"] * 10)
    made = make_clouds(data, data, CPU)
    assert made.label_cost.shape == (2, 2)
    assert float(made.label_cost.diagonal().abs().max()) < 1e-9
