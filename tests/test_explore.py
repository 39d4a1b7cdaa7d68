"""``otdd matrix``, ``explain``, ``value`` and ``rank``: files, interruptions, bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time

import click
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from test_cli import refused

import otdd_flash as otdd
from otdd_flash.cli import main

MINI = ("mnist-mini", "fashion-mnist-mini")
SMALL = ("--max-samples", "100", "--normalize", "unit", "--device", "cpu")
COMMANDS = ("matrix", "explain", "value", "rank")


def run(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_option_and_examples(command):
    text = run(command, "--help").stdout
    for option in main.commands[command].params:
        if isinstance(option, click.Option):
            assert option.opts[-1] in text and option.help, option.name
    assert "Examples:" in text and f"otdd {command} mnist-mini" in text


def test_a_matrix_writes_tables_and_pictures(tmp_path):
    out = tmp_path / "sets"
    more = ("--bootstrap", "10", "--noise-floor", "--seed", "3", "--json", "--out", out)
    result = run("matrix", *MINI, MINI[0], *SMALL, *more)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["names"] == [*MINI, "mnist-mini (2)"] and data["seed"] == 3
    assert data["distance"][0][2] == 0 and data["distance"][0][1] > 1
    assert data == json.loads((out / "matrix.json").read_text())
    found = otdd.load_result(out / "matrix.npz")
    assert found.distance.tolist() == data["distance"]
    with open(out / "matrix.csv", newline="") as file:
        assert next(csv.reader(file))[1:] == data["names"]
    for name in ("heatmap", "map", "tree"):
        with Image.open(out / f"{name}.png") as picture:
            assert min(picture.size) > 300
    assert not list(out.glob(".otdd*"))


def test_a_matrix_killed_in_the_middle_goes_on_where_it_was(tmp_path):
    slow = ("--max-samples", "400", "--normalize", "unit", "--device", "cpu")
    slow += ("--epsilon", "0.05%", "--tol", "1e-5", "--label-distance", "means")
    sets = (*MINI, *MINI)
    whole = run("matrix", *sets, *slow, "--json", "--quiet")
    command = [sys.executable, "-m", "otdd_flash", "matrix", *sets, *slow, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        pairs = tmp_path / "pairs"
        while not (pairs.is_dir() and len(list(pairs.glob("*.json"))) >= 1):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = {file: file.stat().st_mtime_ns for file in pairs.glob("*.json")}
    assert 1 <= len(finished) < 6 and not (tmp_path / "matrix.npz").exists()
    result = run("matrix", *sets, *slow, "--json", "--quiet", "--resume", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert {file: file.stat().st_mtime_ns for file in finished} == finished
    assert len(list(pairs.glob("*.json"))) == 6
    ours, theirs = json.loads(result.stdout), json.loads(whole.stdout)
    for key in ("distance", "squared_lower", "squared_upper", "epsilon"):
        assert ours[key] == theirs[key], key


def test_an_explanation_writes_all_of_it_and_a_picture(tmp_path):
    files = ("--output", tmp_path / "e.npz", "--plot", tmp_path / "e.png")
    result = run("explain", *MINI, *SMALL, "--json", "--pairs", "3", *files)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert len(data["pairs"]) == 3 and len(data["row_entropy"]) == 10
    total = sum(data["split"][part] for part in ("features", "labels", "entropy"))
    assert total == pytest.approx(data["value"]["squared"])
    assert len(otdd.load_result(tmp_path / "e.npz").source_foreign) == 100
    with Image.open(tmp_path / "e.png") as picture:
        assert picture.format == "PNG"


def test_values_are_written_a_line_a_sample(tmp_path):
    result = run("value", *MINI, *SMALL, "--json", "--output", tmp_path / "v.csv")
    assert result.exit_code == 0, result.output
    with open(tmp_path / "v.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 100
    worst = max(rows, key=lambda row: float(row["value"]))
    assert json.loads(result.stdout)["most_foreign"][0]["row"] == int(worst["row"])
    # rows are those of the whole dataset: their labels, and the values of what was drawn
    whole, drawn = otdd.load(MINI[0]), otdd.load(MINI[0], max_samples=100)
    places = [int(row["row"]) for row in rows]
    assert places == drawn.rows.tolist() and max(places) >= 100
    assert torch.equal(whole.points[places], drawn.points)
    classes = [whole.class_names[k] for k in whole.labels[places].tolist()]
    assert [row["class"] for row in rows] == classes
    assert f"\n{worst['row']} " in run("value", *MINI, *SMALL).stdout
    result = run("value", *MINI, *SMALL, "--output", tmp_path / "v.npz")
    assert result.exit_code == 0 and type(otdd.load_result(tmp_path / "v.npz")) is otdd.Values


def test_sources_are_ranked_beside_what_was_measured(tmp_path):
    scores = tmp_path / "s.csv"
    scores.write_text("source,accuracy\nmnist-mini,0.9\nfashion-mnist-mini,0.4\n")
    sources = ("--sources", MINI[1], MINI[0], MINI[1])
    files = ("--transfer", scores, "--plot", tmp_path / "r.png", "--output", tmp_path / "r.npz")
    result = run("rank", MINI[0], *sources, *SMALL, "--json", *files)
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert [s["name"] for s in data["sources"]][0] == "mnist-mini"
    assert data["sources"][0]["value"]["squared"] == 0 and data["sources"][0]["score"] == 0.9
    assert otdd.load_result(tmp_path / "r.npz").sources[0].name == "mnist-mini"
    assert (tmp_path / "r.png").stat().st_size > 1000


def test_compute_shows_intervals_and_floors():
    result = run("compute", *MINI, *SMALL, "--bootstrap", "10", "--noise-floor", "--seed", "7")
    assert result.exit_code == 0, result.output
    assert "+-" in result.stdout and "10 resamples, seed 7" in result.stdout
    assert result.stdout.count("halves of 50, seed 7") == 2


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        (("matrix", "mnist-mini"), ("two datasets or more", "otdd matrix --help")),
        (("matrix", *MINI, "--resume"), ("give --out DIR",)),
        (("matrix", "mnist-mini", "nothing"), ("nothing",)),
        (("matrix", *MINI, *SMALL, "--bootstrap", "5"), ("bootstrap is 5",)),
        (("explain", *MINI, "--output", "x.csv"), ("--output", ".npz")),
        (("explain", *MINI, "--pairs", "-1"), ("--pairs",)),
        (("explain", "mnist-mini", "digits", "--device", "cpu"), ("784 features", "64")),
        (("value", *MINI, "--output", "v.txt"), ("must end in .csv or .npz",)),
        (("rank", "mnist-mini"), ("no sources: give --sources",)),
        (("rank", *MINI, "--transfer", "none.csv"), ("none.csv: no such file",)),
    ],
)
def test_bad_input_is_one_line(arguments, pieces):
    refused(run(*arguments), *pieces)


def test_long_runs_are_announced(monkeypatch):
    from otdd_flash import ahead

    monkeypatch.setattr(ahead, "estimate_seconds", lambda *_: 100.0)
    for command, words in (
        (("matrix", *MINI, MINI[0]), "3 pairs of datasets: about 5 min expected"),
        (("explain", *MINI), "mnist-mini (100) x fashion-mnist-mini (100): about 2 min expected"),
        (("value", *MINI), "about 3 min expected"),
        (("rank", MINI[0], "--sources", MINI[1]), "about 2 min expected"),
    ):
        result = run(*command, *SMALL)
        assert result.exit_code == 0 and words in result.stderr, result.stderr
        assert "expected" not in run(*command, *SMALL, "--quiet").stderr


def test_a_run_of_others_in_the_folder_is_refused(tmp_path):
    assert run("matrix", *MINI, *SMALL, "--out", tmp_path).exit_code == 0
    refused(run("matrix", "nothing", "x", *SMALL, "--out", tmp_path), "holds a run already")
    other = (*SMALL, "--epsilon", "2%", "--quiet", "--out", tmp_path, "--resume")
    refused(run("matrix", *MINI, *other), "settings.epsilon was '1%', now '2%'")
    again = run("matrix", *MINI, *SMALL, "--out", tmp_path, "--resume")
    assert again.exit_code == 0 and os.listdir(tmp_path / "pairs") == ["0000-0001.json"]
