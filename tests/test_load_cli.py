"""Commands and datasets of every kind: `otdd datasets`, `otdd info`, announcements, names."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from PIL import Image
from small_sets import noise, small, write_images
from test_cli import refused

import otdd_flash as otdd
from otdd_flash.cli import main
from otdd_flash.pictures.gallery import plot_samples


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def here(alone, tmp_path, monkeypatch):
    """Work in an empty folder, without a network."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_table(path, shift, n=40):
    x, y = small(n)
    rows = [
        f"{a + shift},{b},{('red', 'blue')[k % 2]},{'cde'[y[k]]}"
        for k, (a, b) in enumerate(x[:, :2])
    ]
    path.write_text("\n".join(["a,b,colour,kind", *rows]) + "\n")
    return path


@pytest.mark.parametrize("command", ["datasets", "info"])
def test_examples_of_the_help_run_as_written(command, here):
    lines = run(command, "--help").stdout.splitlines()
    examples = [line.strip() for line in lines if line.strip().startswith(f"otdd {command}")]
    assert len(examples) >= 2
    for example in examples:
        done = run(*shlex.split(example)[1:])
        assert done.exit_code == 0 and done.stdout, (example, done.output)
        assert done.stdout.startswith("{") == ("--json" in example)
    assert "hf:owner/name:config" in run(command, "--help").stdout


def test_datasets_lists_every_name_and_where_it_lies(here):
    listed = json.loads(run("datasets", "--json").stdout)
    by_name = {(known["name"], known["split"]): known for known in listed["named"]}
    assert {name for name, _ in by_name} == set(otdd.datasets.known_names())
    assert by_name["mnist", "test"]["where"] == "to be downloaded"
    assert by_name["mnist", "test"]["size"] is None
    assert by_name["mnist-mini", "train"]["where"] == "in the package"
    assert by_name["mnist-mini", "train"]["size"] > 100_000
    assert "wine" in listed["sklearn"] and "species_distributions" not in listed["sklearn"]
    from idx_files import write_pair

    write_pair(here / "files" / "mnist")
    text = run("datasets", "--data-root", "files").stdout
    row = next(line for line in text.splitlines() if line.startswith("mnist ") and "train" in line)
    # 20 images of 784 bytes after 16 bytes, 20 labels after 8
    assert "15.7 kB" in row and row.endswith("files/mnist")
    (here / "files" / "mnist" / "train-labels-idx1-ubyte").unlink()
    assert "found without train-labels-idx1-ubyte" in run("datasets", "--data-root", "files").stdout
    refused(run("datasets", "--data-root", "nowhere"), "data root nowhere does not exist")


def test_info_describes_what_a_distance_would_see(here):
    images = noise(6, 5, 4)
    write_images(here / "set", {f"{'ab'[k % 2]}/{k}.png": images[k] for k in range(6)})
    done = run("info", "set", "--plot", "set.png")
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "dataset    set" and "samples    6 of 20 features (5 x 4)" in lines
    assert f"values     uint8, {images.min()} to {images.max()}, 120 B" in lines
    assert any(line.split() == ["a", "3", "50.0%"] for line in lines)
    with Image.open("set.png") as picture:
        assert picture.width > 500
    found = json.loads(run("info", "set", "--json").stdout)
    assert found["classes"] == {"a": 3, "b": 3} and found["sample_shape"] == [5, 4]
    # float64 sums of whole numbers are exact, the square root is correctly rounded
    assert found["mean"] == images.mean() and found["deviation"] == pytest.approx(
        images.std(), rel=1e-12
    )
    assert found["provenance"]["source"] == "set"


def test_info_announces_and_refuses(here):
    write_table(here / "a.csv", 0)
    refused(run("info", "a.csv"), "no column looks like labels, it has 'a', 'b', 'colour', 'kind'")
    done = run("info", "a.csv", "--label", "kind", "--max-samples", 12)
    assert "a.csv: 12 of 40 samples, stratified by class, seed 0" in done.stderr.splitlines()
    assert "a.csv: 2 numeric columns standardised over its own samples" in done.stderr
    assert run("info", "a.csv", "--label", "kind", "--quiet").stderr == ""
    kinds = run("info", "a.csv", "--features", "a", "--labels", "kmeans:2").stdout
    assert "cluster 1" in kinds
    refused(
        run("info", "a.csv", "--label", "kind", "--plot", "a.gif"), "--plot a.gif: the name must"
    )
    done = run("info", "a.csv", "--label", "kind", "--plot", "a.png")
    assert done.exit_code == 2 and "are no images and cannot be drawn" in done.stderr
    # a picture that cannot be drawn does not cost the description
    assert "samples    40 of 4 features" in done.stdout and not (here / "a.png").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("compute",), ("explain",), ("value",), ("matrix",), ("rank", "--sources"),
        ("flow", "--steps", 1, "--out", "run"),
    ],
)  # fmt: skip
def test_every_command_takes_files_scaled_together(here, command):
    write_table(here / "a.csv", 0)
    write_table(here / "b.csv", 3)
    name, *more = command
    words = ["a.csv", *more, "b.csv"] if name == "rank" else [*more, "a.csv", "b.csv"]
    done = run(name, *words, "--label", "kind", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("2 numeric columns standardised over all 2 datasets") == 2
    assert done.stderr.count("1 column of categories ('colour') one-hot in 2 features") == 2
    text = json.dumps(json.loads(done.stdout))
    assert "a.csv" in text and "b.csv" in text
    # names of classes are kept and shown
    if name in ("compute", "explain", "flow"):
        assert all(f'"{kind}"' in text for kind in "cde")


def test_the_distance_of_tables_is_that_of_their_standardised_points(here):
    paths = [write_table(here / "a.csv", 0), write_table(here / "b.csv", 3)]
    done = run("compute", *paths, "--label", "kind", "--json", "--report", "page.html")
    found = json.loads(done.stdout)
    assert "2 numeric columns standardised over all 2 datasets" in Path("page.html").read_text()
    a, b = otdd.load_together(paths, otdd.LoadSettings(label="kind"))
    assert found["distance"] == otdd.distance(a, b).distance
    names = found["source"]["class_names"], found["target"]["class_names"]
    assert names == (["c", "d", "e"], ["c", "d", "e"])


def test_labels_of_each_dataset(here):
    x, y = small(30)
    np.savez("one.npz", x=x, kind=y)
    np.savez("two.npz", x=x, sort=y)
    done = run("compute", "one.npz", "two.npz", "--label", "kind", "--label", "sort", "--json")
    assert json.loads(done.stdout)["distance"] == 0
    refused(run("compute", "one.npz", "two.npz", "--label", "kind"), "two.npz: there is no array")


def test_mixed_spaces_end_in_one_line_with_a_way_out(here):
    write_images(here / "set", {f"{'ab'[k % 2]}/{k}.png": noise(8, 8, 3, seed=k) for k in range(6)})
    refused(run("compute", "set", "mnist-mini"), "8 x 8 (rgb, 192 features)",
            "28 x 28 (grey, 784 features)", "--image-size 8")  # fmt: skip
    refused(run("compute", "sklearn:wine", "sklearn:iris"), "13 feature columns", "--encoder pca:4")
    refused(run("compute", "iris", "mnist-mini"), "did you mean sklearn:iris?")
    refused(run("compute", "nowhere/set", "mnist-mini"), "nowhere/set: no such file or folder")
    refused(
        run("compute", "mnits", "mnist-mini"), "did you mean mnist?", "or give a file, a folder"
    )


def test_the_picture_of_samples_has_a_class_a_row():
    images = noise(60, 4, 6)
    data = otdd.LabelledDataset(images, np.arange(60) % 30, name="many")
    axes = plot_samples(data, Figure()).axes[0]
    assert axes.get_title() == "many: 60 samples, 25 of 30 classes"
    assert [label.get_text() for label in axes.get_yticklabels()] == list(data.class_names[:25])
    drawn = np.asarray(axes.images[0].get_array()).reshape(25, 4, 10, 6, 3)
    for k in (0, 7, 24):
        for column, row in enumerate((k, k + 30)):
            assert np.array_equal(drawn[k, :, column], images[row][..., None].repeat(3, 2) / 255)
    # white where a class has no more samples
    assert (drawn[:, :, 2:] == 1).all()
