"""Every example that the help of a command gives, run as it is written, on a few samples."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from small_sets import noise, write_images
from test_cli import refused

import otdd_flash as otdd
from otdd_flash import datasets
from otdd_flash.cli import main
from otdd_flash.datasets.registry import check_split, find_entry, known_names

COMMANDS = ("compute", "matrix", "explain", "value", "rank", "flow")
FEW = 20


def examples(command: str) -> list[str]:
    lines = CliRunner().invoke(main, [command, "--help"]).stdout.splitlines()
    return [line.strip() for line in lines if line.strip().startswith(f"otdd {command} ")]


@pytest.fixture
def few_samples(monkeypatch):
    """Give commands a few samples; embedded ones for a name whose files are to be downloaded."""
    load_steps = datasets.load_steps

    def few(specs, settings):
        count = min(settings.max_samples or FEW, FEW)
        named = [
            few_of(spec, settings.split, count, settings.seed) if spec in known_names() else spec
            for spec in specs
        ]
        return (yield from load_steps(named, replace(settings, max_samples=count)))

    monkeypatch.setattr(datasets, "load_steps", few)


def few_of(name: str, split: str, count: int, seed: int) -> otdd.LabelledDataset:
    check_split(find_entry(name), split)
    embedded = "fashion-mnist-mini" if "fashion" in name else "mnist-mini"
    data = otdd.load(embedded, max_samples=count, seed=seed)
    return otdd.LabelledDataset(
        data.points,
        data.labels,
        class_names=data.class_names,
        sample_shape=data.sample_shape,
        name=name,
    )


def write_flowers(path: Path, shift: float) -> None:
    """Write a table of two numbers, a category and a species."""
    rows = [
        f"{k + shift},{k * k % 7},{'ab'[k % 2]},{('iris', 'rose')[k % 3 == 0]}" for k in range(30)
    ]
    path.write_text("\n".join(["length,width,garden,species", *rows]) + "\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_run_as_written(command, few_samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scores.csv").write_text("fashion-mnist,0.71\nkmnist,0.83\nqmnist,0.98\n")
    for k, name in enumerate(("old", "older", "new")):
        write_flowers(Path(f"{name}.csv"), k)
    write_images(Path("photos"), {f"{'ab'[k % 2]}/{k}.png": noise(40, 50, 3) for k in range(6)})
    found = examples(command)
    assert len(found) >= 3 and any("-mini" in example for example in found)
    for example in found:
        words, _, target = example.partition(" > ")
        # what follows # is for people, as a shell has it
        done = CliRunner().invoke(main, shlex.split(words, comments=True)[1:])
        if "cuda" in example and not torch.cuda.is_available():
            refused(done, "cuda:0", "0 CUDA device(s)")
            continue
        assert done.exit_code == 0, (example, done.output)
        assert done.stdout.startswith("{") == ("--json" in example)
        for word in [*shlex.split(words), target]:
            if Path(word).suffix in (".png", ".npz", ".html", ".csv", ".gif"):
                assert Path(word).stat().st_size > 0, (example, word)
