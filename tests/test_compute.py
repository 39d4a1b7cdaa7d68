"""The command with real computations and real processes."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from test_cli import refused

from otdd_flash.cli import main
from otdd_flash.results import load_result

MINI = ("mnist-mini", "fashion-mnist-mini")
SMALL = (*MINI, "--max-samples", "300", "--normalize", "unit", "--device", "cpu")


def run(*arguments):
    return CliRunner().invoke(main, ["compute", *map(str, arguments)])


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """One run with everything on: its folder, what it printed, and its JSON."""
    folder = tmp_path_factory.mktemp("computed")
    files = ["--output", folder / "r.npz", "--plot", folder / "r.png"]
    result = run(*SMALL, "--json", *files)
    assert result.exit_code == 0, result.output
    return folder, result, json.loads(result.stdout)


def test_json_holds_a_certified_result(computed):
    _, result, data = computed
    assert result.stdout.count("\n") == 1
    assert data["converged"] is True and data["marginal_error"] <= 1e-3
    low, high = data["squared_bounds"]
    assert low <= data["squared"] <= high
    assert data["distance"] == pytest.approx(data["squared"] ** 0.5)
    assert data["transport"]["lower"] <= data["transport"]["upper"]
    assert data["epsilon"] == pytest.approx(0.01 * data["mean_cost"])
    assert sum(map(sum, data["class_mass"])) == pytest.approx(1.0, abs=1e-6)
    assert [data[side]["name"] for side in ("source", "target")] == list(MINI)
    assert [data[side][key] for side in ("source", "target") for key in ("n", "d", "classes")] == [
        300, 784, 10, 300, 784, 10,
    ]  # fmt: skip
    assert data["source"]["class_names"][0] == "0" and data["device"].startswith("cpu")
    assert data["quantization_error"] == 0 and data["settings"]["normalize"] == "unit"
    assert torch.__version__.startswith(data["versions"]["torch"])


def test_the_subsamples_are_announced(computed):
    lines = computed[1].stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == list(MINI)
    assert all("300 of 2,000 samples" in line for line in lines)


def test_the_files_are_whole(computed):
    folder, _, data = computed
    assert sorted(os.listdir(folder)) == ["r.npz", "r.png"]
    back = load_result(folder / "r.npz")
    assert back.squared == data["squared"] and back.f.shape == back.g.shape == (300,)
    assert torch.isfinite(back.f).all() and back.label_cost.tolist() == data["label_cost"]
    with Image.open(folder / "r.png") as picture:
        picture.load()
    assert (folder / "r.png").stat().st_size < 250_000


def test_the_table_agrees_with_the_json(computed):
    result = run(*SMALL, "--quiet")
    assert result.exit_code == 0 and result.stderr == ""
    assert f"distance   {computed[2]['distance']:.7g}" in result.stdout
    assert "Ankle boot" in result.stdout or "Sandal" in result.stdout


def test_a_dataset_has_distance_zero_to_itself():
    result = run("mnist-mini", "mnist-mini", "--max-samples", "150", "--json", "--device", "cpu")
    data = json.loads(result.stdout)
    assert data["distance"] == 0 and data["squared"] == 0


def test_the_convention_of_microsoft_halves_the_square(computed):
    data = json.loads(run(*SMALL, "--convention", "microsoft", "--json").stdout)
    assert data["squared"] == pytest.approx(computed[2]["squared"] / 2, rel=1e-3)
    assert data["distance"] == pytest.approx(data["squared"] ** 0.5)


def test_one_pass_is_not_converged_and_the_bounds_hold(computed):
    result = run(*SMALL, "--max-passes", "1", "--json", "--quiet")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["converged"] is False
    assert len(result.stderr.splitlines()) == 1 and "not converged" in result.stderr
    assert "raise max_passes or epsilon" in result.stderr
    low, high = data["transport"]["lower"], data["transport"]["upper"]
    exact_low, exact_high = (computed[2]["transport"][key] for key in ("lower", "upper"))
    assert low <= exact_high and exact_low <= high


# --- bad input that only the parts below can see


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        (["mnist-mimi", "mnist-mini"], ["'mnist-mimi'", "did you mean mnist-mini?"]),
        (["mnist-mini", "fashon-mnist-mini"], ["did you mean fashion-mnist-mini?"]),
        ([*MINI, "--split", "validation"], ["'validation'", "train"]),
        (["mnist", "fashion-mnist", "--data-root", "/no/such"], ["/no/such", "does not exist"]),
        (["mnist-mini", "digits"], ["mnist-mini", "digits", "784", "64"]),
        ([*SMALL, "--memory-budget", "1kB"], ["budget"]),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path, arguments, pieces):
    files = ["--output", tmp_path / "r.npz", "--plot", tmp_path / "r.png"]
    refused(run(*arguments, "--quiet", *files), *pieces)
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_an_absent_gpu_is_refused(device):
    refused(run(*MINI, "--device", device), "cuda")


def test_a_broken_file_is_named(tmp_path):
    for part in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / part).write_bytes(b"")
    refused(run("mnist", "mnist", "--data-root", tmp_path, "--quiet"), "-ubyte: the file is empty")


# --- processes


def test_a_piped_process_prints_the_result_alone():
    command = [sys.executable, "-m", "otdd_flash", "compute", *SMALL, "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["converged"] is True


def test_a_bad_process_exits_with_2():
    command = [sys.executable, "-m", "otdd_flash", "compute", "mnist-mimi", "mnist-mini"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_stdout_is_one_line(closed):
    command = f'exec "$0" -m otdd_flash compute {" ".join(SMALL)} --json {closed}'
    command = ["sh", "-c", command, sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 2
    assert (
        done.stderr.splitlines()
        == ["Error: stdout is closed, there is no place for the result"][
            : 1 if closed == ">&-" else 0
        ]
    )


def test_a_closed_stderr_costs_nothing():
    command = f'exec "$0" -m otdd_flash compute {" ".join(SMALL)} --json 2>&-'
    command = ["sh", "-c", command, sys.executable]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 0 and json.loads(done.stdout)["converged"] is True


README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_of_the_readme_runs_as_printed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert os.listdir(tmp_path) == ["result.npz"]
    assert load_result(tmp_path / "result.npz").plan is None


def read_until(descriptor, word, seconds):
    """Read a terminal until a word appears; return what was read."""
    seen, end = b"", time.monotonic() + seconds
    while word not in seen and time.monotonic() < end:
        if select.select([descriptor], [], [], 0.2)[0]:
            try:
                seen += os.read(descriptor, 4096)
            except OSError:
                break
    return seen


def test_ctrl_c_at_a_terminal(tmp_path):
    """Bars are shown at a terminal; an interrupt ends them in one line and writes nothing."""
    ours, theirs = pty.openpty()
    # so small an epsilon takes long
    slow = ["--epsilon", "0.0001%", "--tol", "1e-9", "--max-passes", "1000000", "--device", "cpu"]
    command = [sys.executable, "-m", "otdd_flash", "compute", *MINI, *slow, "--output"]
    command.append(str(tmp_path / "r.npz"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        try:
            shown = read_until(ours, b"solve", 120)
            assert b"solve" in shown and b"load" in shown, shown
            process.send_signal(signal.SIGINT)
            shown = read_until(ours, b"Interrupted", 60)
            assert process.wait(60) == 130
            assert process.stdout.read() == ""
        finally:
            process.kill()
            os.close(ours)
    assert shown.rstrip().endswith(b"Interrupted") and b"Traceback" not in shown
    assert not os.listdir(tmp_path)
