"""Runs of `otdd flow`: folders, exports, pictures, interruption and resumption, bad input."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from matplotlib.figure import Figure
from PIL import Image
from problems import dataset
from test_cli import refused

import otdd_flash as otdd
from otdd_flash.cli import main
from otdd_flash.cli.flow import table
from otdd_flash.datasets.idx import read_idx
from otdd_flash.flows import FlowSettings, pictures
from otdd_flash.flows.exports import write_hugging_face, write_idx_pair
from otdd_flash.flows.finish import finish_steps
from otdd_flash.flows.pictures import draw_curve
from otdd_flash.flows.record import COLUMNS, Record, clear
from otdd_flash.types import finish

MINI = ("mnist-mini", "fashion-mnist-mini", "--max-samples", "60", "--device", "cpu")
SHORT = (*MINI, "--steps", "6", "--every", "4")


def run(*arguments):
    return CliRunner().invoke(main, ["flow", *map(str, arguments)])


def curve(folder, seconds=False):
    """The rows of a curve, without the seconds, which differ from run to run."""
    with open(folder / "curve.csv", newline="") as file:
        rows = list(csv.reader(file))
    return rows if seconds else [row[:-1] for row in rows]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One short run with everything on."""
    folder = tmp_path_factory.mktemp("flow") / "run"
    result = run(*SHORT, "--out", folder, "--animate", folder / "flow.gif", "--json")
    assert result.exit_code == 0, result.output
    return folder, result


# --- what a run leaves


def test_the_summary_is_json_and_a_file(done):
    folder, result = done
    summary = json.loads(result.stdout)
    assert summary == json.loads((folder / "summary.json").read_text())
    assert summary["mode"] == "attached" and summary["steps"] == 6
    assert summary["value"][1] < 0.7 * summary["value"][0]
    assert summary["fall"] == pytest.approx(1 - summary["value"][1] / summary["value"][0])
    names, *rows = curve(folder)
    hidden = [float(row[names.index("label_error")]) for row in rows]
    assert summary["label_error"] == max(hidden) > 0 and hidden[-1] == 0
    low, high = summary["final"]["squared_bounds"]
    assert low <= summary["final"]["squared"] <= high
    # the flowed set as written has whole grey levels
    assert summary["final"]["squared"] == pytest.approx(summary["value"][1], rel=0.02)
    assert [entry["source"] for entry in summary["classes"]] == [str(k) for k in range(10)]
    assert all(0 < entry["share"] <= 1 for entry in summary["classes"])


def test_the_curve_has_a_row_a_step(done):
    folder, _ = done
    rows = curve(folder, seconds=True)
    assert rows[0] == COLUMNS and [row[0] for row in rows[1:]] == [str(k) for k in range(7)]
    values = [float(row[1]) for row in rows[1:]]
    assert values == sorted(values, reverse=True)
    with Image.open(folder / "curve.png") as picture:
        picture.load()
    figure = Figure()
    draw_curve(figure, [[float(cell) for cell in row] for row in rows[1:]])
    steps = figure.axes[1].get_xticks()
    assert len(steps) > 2 and (steps == steps.round()).all()


def test_the_table_tells_rounding_where_there_was_any(done):
    folder, _ = done
    summary = json.loads((folder / "summary.json").read_text())
    assert f"rounded, by {summary['moved']:.2g} (rms)" in table(summary) and summary["moved"] > 0
    assert "rounded" not in table({**summary, "moved": 0.0})


def test_the_table_tells_where_weights_are(tmp_path, done):
    assert "weights" not in table(json.loads(done[1].stdout))
    draw = np.random.default_rng(0)
    weights = draw.random(12) + 0.5
    arrays = {"x": draw.random((12, 3)), "y": np.arange(12) % 2, "weights": weights / weights.sum()}
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", x=draw.random((9, 3)), y=np.arange(9) % 2)
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    result = run(*paths, "--steps", "1", "--device", "cpu", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "weights     of the flowed set are in flowed.npz" in result.stdout
    kept = np.load(tmp_path / "run" / "flowed.npz")["weights"]
    np.testing.assert_allclose(kept, arrays["weights"], rtol=1e-12)


def test_kept_steps_and_their_pictures(done):
    folder, _ = done
    steps = ("000000", "000004", "000006")
    for pattern, count in (("trajectory-*.safetensors", 3), ("grid-*.png", 3)):
        found = sorted(path.name for path in folder.glob(pattern))
        assert [name.split("-")[1][:6] for name in found] == list(steps) and len(found) == count
    kept = list(Record(folder, 4).kept())
    assert [step.step for step in kept] == [0, 4, 6]
    rows = torch.tensor([3, 17])
    src = otdd.load("mnist-mini", max_samples=60)
    assert torch.equal(kept[0].rows(rows), src.points[rows].float())
    assert torch.equal(kept[0].labels(), src.labels)
    assert kept[0].class_names == src.class_names
    with Image.open(folder / "flow.gif") as film:
        assert film.n_frames == 3
    with Image.open(folder / "filmstrip.png") as strip:
        # two particles of each of ten classes, a column a kept step
        assert strip.mode == "L" and strip.height > 20 * 56 and strip.width > 3 * 56
    assert not list(folder.glob(".*"))


def test_the_exports_hold_the_flowed_set(done):
    import datasets

    folder, _ = done
    last = list(Record(folder, 4).kept())[-1]
    points = last.rows(torch.arange(60)).round().clamp(0, 255).to(torch.uint8).numpy()
    labels = last.labels().numpy()
    images = read_idx(folder / "idx" / "train-images-idx3-ubyte.gz").values
    assert images.dtype == np.uint8 and np.array_equal(images.reshape(60, -1), points)
    found = read_idx(folder / "idx" / "train-labels-idx1-ubyte.gz").values
    assert found.dtype == np.uint8 and np.array_equal(found, labels)
    # any reader of MNIST reads them
    back = otdd.load("mnist", data_root=folder / "idx")
    assert np.array_equal(back.points.numpy(), points)
    with np.load(folder / "flowed.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["points"], images)
        assert archive["class_names"].tolist() == [str(k) for k in range(10)]
        assert json.loads(str(archive["about"]))["steps"] == 6
    hub = datasets.load_from_disk(str(folder / "hugging-face"))
    assert np.array_equal(np.asarray(hub[7]["image"]), images[7])
    assert hub[7]["label"] == labels[7] and hub.features["label"].names[3] == "3"


def test_floats_that_are_no_pictures(tmp_path):
    src = dataset(30, 5, 1, class_names=["low", "mid", "high"])
    tgt = dataset(30, 5, 2, "float32")
    settings = FlowSettings(steps=2, mode="tied")
    record = Record(tmp_path / "run", 1)
    walk = record.begin(src, tgt, settings, resume=False, overwrite=False)
    for state in walk:
        record.add(walk, state)
    finish(finish_steps(walk, state, record, tmp_path / "film.gif"))
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"scatter-000000.png", "scatter-000002.png"} < names and "filmstrip.png" not in names
    images = read_idx(tmp_path / "run" / "idx" / "train-images-idx3-ubyte.gz").values
    assert images.dtype == np.float32 and images.shape == (30, 5)
    assert np.array_equal(images, state.points.float().numpy())
    with np.load(tmp_path / "run" / "flowed.npz") as archive:
        assert np.array_equal(archive["points"], state.points.numpy())
    with Image.open(tmp_path / "film.gif") as film:
        assert film.n_frames == 3


@pytest.mark.parametrize("shape", [(3, 4, 5), (4, 5, 3), (1, 4, 5)])
def test_colours_and_channels(shape, tmp_path):
    import datasets

    size = int(np.prod(shape))
    points = torch.arange(2 * size).reshape(2, *shape).remainder(256).to(torch.uint8)
    made = otdd.LabelledDataset(points, [0, 1], sample_shape=shape, class_names=["a", "b"])
    write_idx_pair(tmp_path / "idx", made)
    images = read_idx(tmp_path / "idx" / "train-images-idx3-ubyte.gz").values
    assert np.array_equal(images, points.numpy())
    write_hugging_face(tmp_path / "hub", made)
    back = np.asarray(datasets.load_from_disk(str(tmp_path / "hub"))[1]["image"])
    expected = points[1].numpy()
    if shape[0] in (1, 3) and shape[2] != 3:
        expected = np.moveaxis(expected, 0, -1)
    assert np.array_equal(back, expected[..., 0] if shape[0] == 1 else expected)


def test_pictures_hold_the_same_particles_in_the_same_places(tmp_path):
    r = np.random.default_rng(0)
    src, tgt = (
        otdd.LabelledDataset(r.integers(0, 256, (20, 8, 8)).astype(np.uint8), [0] * 17 + [1] * 3)
        for _ in range(2)
    )
    record = Record(tmp_path, 1)
    walk = record.begin(src, tgt, FlowSettings(steps=1), resume=False, overwrite=False)
    for state in walk:
        record.add(walk, state)
    cast = pictures.Cast.of(src, tgt, 4)
    assert cast.rows.tolist() == [[0, 1, 2, 3], [17, 18, 19, -1]]
    first = cast.pictures(next(record.kept()))
    assert first.shape == (2, 4, 56, 56, 3)
    assert np.array_equal(first[1, 2, ::7, ::7, 0], src.points[19].reshape(8, 8).numpy())
    assert (first[1, 3] == 255).all()
    grid = np.asarray(pictures.grid_picture(cast, next(record.kept())))
    top, left = pictures.CAPTION + 56 + pictures.GAP, 2 * (56 + pictures.GAP)
    assert np.array_equal(grid[top : top + 56, left : left + 56], first[1, 2])


def test_the_table_says_what_came_of_it(done, tmp_path):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    result = run(*SHORT, "--out", tmp_path / "run", "--resume")
    assert result.exit_code == 0
    assert "attached, 6 steps" in result.stdout and "S fell from" in result.stdout
    assert "closest law" in result.stdout
    assert "resumed at step 6 of 6" in result.stderr


# --- interruption


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_run_goes_on_to_the_same_bits(how, tmp_path):
    """Cases 28: a process that is killed loses one step at most, and nothing of the result."""
    options = (*MINI, "--steps", "60", "--every", "20", "--optimizer", "sgd", "--step-size", "0.01")
    command = [sys.executable, "-m", "otdd_flash", "flow", *options, "--out"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [*command, str(tmp_path / "cut")], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        end = time.monotonic() + 60
        path = tmp_path / "cut" / "curve.csv"
        while time.monotonic() < end and process.poll() is None:
            if path.exists() and len(path.read_text().splitlines()) > 10:
                break
            time.sleep(0.005)
        process.send_signal(how)
        errors = process.stderr.read()
        code = process.wait(60)
    written = len(curve(tmp_path / "cut")) - 1
    # in the middle: else this would test nothing
    assert 10 <= written < 60, errors
    assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    if how == signal.SIGINT:
        assert f"stopped after step {written - 1}: go on with --resume" in errors
        assert "Traceback" not in errors
    assert not (tmp_path / "cut" / "summary.json").exists()
    on = run(*options, "--out", tmp_path / "cut", "--resume")
    assert on.exit_code == 0, on.output
    # no step that was written is made again
    assert (
        f"resumed at step {written}" in on.stderr or f"resumed at step {written + 1}" in on.stderr
    )
    whole = run(*options, "--out", tmp_path / "whole")
    assert whole.exit_code == 0
    assert curve(tmp_path / "cut") == curve(tmp_path / "whole")
    for name in ("trajectory-000000", "trajectory-000020", "trajectory-000060"):
        cut, full = (tmp_path / k / f"{name}.safetensors" for k in ("cut", "whole"))
        assert cut.read_bytes() == full.read_bytes()
    for name in ("idx/train-images-idx3-ubyte.gz", "filmstrip.png", "grid-000060.png"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_that_died_before_its_first_step_begins_anew(done, tmp_path):
    folder, _ = done
    (tmp_path / "run").mkdir()
    shutil.copy(folder / "settings.json", tmp_path / "run")
    result = run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet")
    assert result.exit_code == 0 and result.stderr == ""
    assert curve(tmp_path / "run") == curve(folder)


def test_a_command_that_failed_before_its_first_step_can_be_corrected(done, tmp_path):
    folder, _ = done
    options = (*SHORT, "--out", tmp_path / "run", "--quiet")
    refused(run(*options, "--epsilon", "1e-30"), "epsilon is 1e-30, far below")
    assert os.listdir(tmp_path / "run") == ["settings.json"]
    assert run(*options).exit_code == 0
    assert curve(tmp_path / "run") == curve(folder)
    # from then on it has something to lose
    refused(run(*options), "holds a run already")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    refused(run(*options), "holds a run already")


def test_more_steps_are_a_longer_run(done, tmp_path):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    longer = (*MINI, "--steps", "8", "--every", "4")
    assert run(*longer, "--out", tmp_path / "run", "--resume").exit_code == 0
    assert run(*longer, "--out", tmp_path / "whole").exit_code == 0
    assert curve(tmp_path / "run") == curve(tmp_path / "whole")


def test_a_full_disk_leaves_the_last_checkpoint(done, tmp_path, monkeypatch):
    src, tgt = (otdd.load(name, max_samples=60) for name in MINI[:2])
    record = Record(tmp_path / "run", 4)
    walk = record.begin(src, tgt, FlowSettings(steps=6), resume=False, overwrite=False)
    record.add(walk, next(walk))
    before = (tmp_path / "run" / "checkpoint.safetensors").read_bytes()

    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: .*checkpoint.safetensors"):
        record.add(walk, next(walk))
    monkeypatch.undo()
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*"))


# --- what is refused


def test_a_run_is_not_touched_unasked(done, tmp_path):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    before = (tmp_path / "run" / "curve.csv").read_bytes()
    refused(
        run(*SHORT, "--out", tmp_path / "run"), "holds a run already", "--resume", "--overwrite"
    )
    refused(
        run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet", "--step-size", "0.5"),
        "flow.step_size was 0.02, now 0.5",
    )
    refused(
        run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet", "--max-samples", "50"),
        "source.samples was 60, now 50",
        "source.sha256 differs",
    )
    refused(
        run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet", "--seed", "3"),
        "source.sha256 differs",
    )
    refused(
        run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet", "--steps", "2"),
        "steps is 2, but the checkpoint is at step 6 already",
    )
    refused(
        run(*SHORT, "--out", tmp_path / "run", "--resume", "--overwrite"),
        "--resume and --overwrite exclude one another",
    )
    assert (tmp_path / "run" / "curve.csv").read_bytes() == before
    (tmp_path / "run" / "settings.json").write_text("{")
    refused(run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet"), "settings.json: damaged")


def test_a_damaged_checkpoint_is_refused(done, tmp_path):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    refused(
        run(*SHORT, "--out", tmp_path / "run", "--resume", "--quiet"),
        "not a whole checkpoint of a flow",
    )


@pytest.mark.parametrize("left", [0, 200, 60_000])
def test_a_damaged_kept_step_is_refused_before_any_step(done, tmp_path, left):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "trajectory-000004.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    longer = (*MINI, "--steps", "8", "--every", "4", "--out", tmp_path / "run", "--resume")
    refused(run(*longer, "--quiet"), f"{path}: not a whole step of a flow", "delete it to go on")
    assert len(curve(tmp_path / "run")) == 1 + 7
    path.unlink()
    assert run(*longer, "--quiet").exit_code == 0
    assert [kept.step for kept in Record(tmp_path / "run", 4).kept()] == [0, 6, 8]


def test_kept_steps_come_in_order_beyond_six_digits(tmp_path):
    src, tgt = dataset(6, 2, 1), dataset(6, 2, 2)
    record = Record(tmp_path, 1)
    walk = record.begin(src, tgt, FlowSettings(), resume=False, overwrite=False)
    state = next(walk)
    for step in (1_000_000, 999_999, 20):
        record.add(walk, replace(state, step=step))
    assert [kept.step for kept in record.kept()] == [20, 999_999, 1_000_000]


def test_a_flow_that_climbs_says_so(tmp_path):
    result = run(*MINI, "--steps", "1", "--step-size", "5", "--out", tmp_path / "run", "--quiet")
    assert result.exit_code == 0 and "S rose from" in result.stdout
    assert "Warning: S rose from" in result.stderr and "lower --step-size (5)" in result.stderr


def test_overwriting_takes_away_what_a_killed_export_left(tmp_path, monkeypatch):
    def killed(self, path):
        (Path(path) / "data").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("datasets.Dataset.save_to_disk", killed)
    with pytest.raises(KeyboardInterrupt):
        write_hugging_face(tmp_path / "hugging-face", otdd.LabelledDataset(torch.rand(4, 3)))
    assert os.listdir(tmp_path)
    clear(tmp_path)
    assert not os.listdir(tmp_path)


def test_overwriting_takes_away_the_run_and_nothing_else(done, tmp_path):
    folder, _ = done
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    clear(tmp_path / "run")
    assert sorted(os.listdir(tmp_path / "run")) == ["flow.gif", "notes.txt"]
    shutil.copytree(folder, tmp_path / "again")
    options = (*MINI, "--steps", "2", "--every", "2", "--quiet")
    result = run(*options, "--out", tmp_path / "again", "--overwrite")
    assert result.exit_code == 0 and len(curve(tmp_path / "again")) == 1 + 3
    assert not (tmp_path / "again" / "grid-000004.png").exists()


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        ([], ["--out"]),
        (["--out", "{}/file"], ["is a file, expected a folder"]),
        (["--out", "{}/other"], ["holds files that are no run of a flow"]),
        (["--out", "{}/new", "--animate", "{}/film.mp4"], ["--animate", "must end in .gif"]),
        (["--out", "{}/new", "--animate", "{}/no/film.gif"], ["there is no directory"]),
        (["--out", "{}/new", "--mode", "tied", "--optimizer", "adam"], ["no affine map"]),
        (["--out", "{}/new", "--momentum", "0.5"], ["momentum is for optimizer='sgd'"]),
        (["--out", "{}/new", "--box", "0;1"], ["is not a box"]),
        (["--out", "{}/new", "--box", "1,0"], ["expected (low, high)"]),
        (["--out", "{}/new", "--relabel-every", "2"], ["relabel_every is for mode='augmented'"]),
        (
            ["--out", "{}/new", "--mode", "augmented", "--label-distance", "gaussian"],
            ["set label_distance='diagonal'"],
        ),
    ],
)
def test_bad_input_is_one_line_and_makes_no_folder(arguments, pieces, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.txt").write_text("")
    refused(run(*SHORT, "--quiet", *(a.format(tmp_path) for a in arguments)), *pieces)
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_datasets_of_different_shapes_are_refused_before_a_folder_is_made(tmp_path):
    result = run("mnist-mini", "digits", "--max-samples", "20", "--quiet", "--out", tmp_path / "x")
    refused(result, "mnist-mini has", "784 features", "digits has", "64 features")
    assert not (tmp_path / "x").exists()


def test_the_help_says_how_to_go_on():
    text = CliRunner().invoke(main, ["flow", "--help"]).output
    assert "--resume" in text and "attached" in text and "[default: 1e-2" not in text
    assert "0.01" in text
