"""Every example that the help of a command gives, run as it is written, on a few samples."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from test_cli import refused

import otdd_flash as otdd
from otdd_flash import datasets
from otdd_flash.cli import main
from otdd_flash.datasets.registry import check_split, find_entry

COMMANDS = ("compute", "matrix", "explain", "value", "rank", "flow")
FEW = 20


def examples(command: str) -> list[str]:
    lines = CliRunner().invoke(main, [command, "--help"]).stdout.splitlines()
    return [line.strip() for line in lines if line.strip().startswith(f"otdd {command} ")]


@pytest.fixture
def few_samples(monkeypatch):
    """Give commands a few embedded samples, whatever dataset they ask for by its name."""

    def few(specs, settings):
        count = min(settings.max_samples or FEW, FEW)
        return [few_of(name, settings.split, count, settings.seed) for name in specs]
        yield  # a generator, as what it stands for

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


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_run_as_written(command, few_samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("scores.csv").write_text("fashion-mnist,0.71\nkmnist,0.83\nqmnist,0.98\n")
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
