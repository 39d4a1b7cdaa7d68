"""The command without a computation: help, options, errors, progress, what is printed where."""

import ast
import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from fakes import fake_images, fake_result

import otdd_flash
from otdd_flash.cli import main, progress
from otdd_flash.cli.announce import duration
from otdd_flash.cli.compute import compute
from otdd_flash.cli.params import Device, MemorySize
from otdd_flash.datasets import LoadSettings, loading
from otdd_flash.errors import ConvergenceWarning, DataError
from otdd_flash.results import load_result
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import Progress


def run(*arguments):
    return CliRunner().invoke(main, ["compute", *map(str, arguments)])


def refused(result, *pieces):
    """Assert one clear line on stderr, exit code 2, no traceback, an empty stdout."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), result.stderr
    for piece in pieces:
        assert piece in lines[0], (piece, lines[0])


@pytest.fixture
def computed(monkeypatch):
    """Replace loading and computing by made-up values that a test may change."""
    made = types.SimpleNamespace(
        result=fake_result(),
        seconds=1.0,
        provenance={},
        error=None,
        seen=[],
        loads=[],
        size=5,
        warmed=[],
        warnings=[],
    )

    def load_steps(specs, settings):
        made.loads.append((specs, settings))
        yield Progress("load", 1, 1)
        loaded = []
        for spec in specs:
            data = fake_images(per_class=made.size)
            data.provenance.update(made.provenance)
            object.__setattr__(data, "name", spec)
            loaded.append(data)
        return loaded

    def steps(src, tgt, settings, *, confidence=None):
        made.seen.append(settings)
        yield Progress("class laws", 1, 2)
        if made.error is not None:
            raise made.error
        yield Progress("class laws", 2, 2)
        yield Progress("solve", 7, None, "error 3.2e-03")
        for warning in made.warnings:
            warnings.warn(warning, stacklevel=2)
        return made.result

    fakes = {
        "otdd_flash.datasets": {"LoadSettings": LoadSettings, "load_steps": load_steps},
        "otdd_flash.otdd": {"steps": steps},
        "otdd_flash.ahead": {
            "estimate_seconds": lambda *_: made.seconds,
            "warm_up": made.warmed.append,
        },
    }
    for name, content in fakes.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return made


# --- help and version


def test_help_shows_every_option_with_help_text_and_examples():
    text = run("--help").stdout
    for option in compute.params:
        if isinstance(option, click.Option):
            assert option.opts[-1] in text and option.help, option.name
    for piece in (
        "Examples:",
        "otdd compute mnist-mini fashion-mnist-mini",
        "SRC TGT",
        "default: gaussian",
    ):
        assert piece in text
    assert main.get_help(click.Context(main)).count("compute")


def test_option_defaults_are_those_of_the_settings():
    settings = OTDDSettings()
    for option in compute.params:
        if hasattr(settings, option.name) and option.name != "memory_budget":
            assert option.default == getattr(settings, option.name), option.name


def test_version_and_module_run():
    for command in (["--version"], ["--help"]):
        out = subprocess.run(
            [sys.executable, "-m", "otdd_flash", *command], capture_output=True, text=True
        )
        assert out.returncode == 0 and "otdd" in out.stdout and out.stderr == ""


@pytest.mark.parametrize("command", ["-m otdd_flash", "-c"])
def test_without_arguments_the_help_is_shown(command):
    code = ["import otdd_flash.cli as c; c.main()"] if command == "-c" else []
    start = [sys.executable, *command.split(), *code]
    bare, asked = (
        subprocess.run([*start, *more], capture_output=True, text=True) for more in ([], ["--help"])
    )
    assert bare.returncode == 0 and bare.stderr == ""
    assert bare.stdout == asked.stdout and len(bare.stdout.splitlines()) > 5


def test_dir_lists_what_is_for_users():
    assert {"distance", "load", "__version__"} <= set(dir(otdd_flash))
    assert not {"TYPE_CHECKING", "import_module", "_HOME"} & set(dir(otdd_flash))


def test_public_names_come_from_where_they_are_defined():
    for name, home in otdd_flash._HOME.items():
        # classes and functions know their module; a package passes on what its modules define
        defined, told = getattr(otdd_flash, name).__module__, f"otdd_flash.{home}"
        if hasattr(sys.modules[told], "__path__"):
            assert defined.startswith(f"{told}."), name
        else:
            assert defined == told, name


@pytest.mark.parametrize("arguments", [["--help"], ["compute", "--help"], ["compute", "a"]])
def test_help_and_usage_errors_do_not_wait_for_torch(arguments):
    code = (
        "import sys\nfrom otdd_flash.cli import main\n"
        "try:\n    main(sys.argv[1:])\nfinally:\n"
        "    assert not {'torch', 'numpy', 'matplotlib', 'tqdm'} & set(sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert out.returncode == (2 if arguments == ["compute", "a"] else 0), out.stderr
    assert "Traceback" not in out.stderr


def examples():
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text("utf-8")
    return re.findall(r"(?:^|/| )otdd compute (.*)$", readme + compute.epilog, re.MULTILINE)


def test_examples_are_understood():
    lines = [line for line in examples() if "--" in line and "`" not in line]
    assert len(lines) >= 8
    for line in lines:
        words = shlex.split(line.split(" > ")[0], comments=True)
        compute.make_context("compute", words)


# --- refused before anything is read


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        (["mnist-mini"], ["Missing argument 'TGT'", "otdd compute --help"]),
        (["a", "b", "c"], ["unexpected extra argument"]),
        (["a", "b", "--no-such"], ["No such option"]),
        (["a", "b", "--epsilon", "abc"], ["epsilon", "'abc'", "such as 1%"]),
        (["a", "b", "--epsilon", "0"], ["epsilon"]),
        (["a", "b", "--epsilon=-0.1"], ["epsilon"]),
        (["a", "b", "--epsilon", "nan"], ["epsilon"]),
        (["a", "b", "--max-samples", "0"], ["--max-samples", "x>=1"]),
        (["a", "b", "--max-samples", "many"], ["--max-samples"]),
        (["a", "b", "--max-passes", "0"], ["--max-passes"]),
        (["a", "b", "--seed", "-1"], ["--seed"]),
        (["a", "b", "--tol", "0"], ["--tol"]),
        (["a", "b", "--tol", "nan"], ["tol"]),
        (["a", "b", "--lambda-x", "-1"], ["--lambda-x"]),
        (["a", "b", "--lambda-x", "0", "--lambda-y", "0"], ["both 0"]),
        (["a", "b", "--label-distance", "exactly"], ["--label-distance", "gaussian"]),
        (["a", "b", "--normalize", "all"], ["--normalize"]),
        (["a", "b", "--convention", "geomloss"], ["--convention"]),
        (["a", "b", "--device", "tpu"], ["--device", "'tpu'", "cuda:<number>"]),
        (["a", "b", "--memory-budget", "lots"], ["--memory-budget", "'lots'", "1GB"]),
        (["a", "b", "--memory-budget", "0"], ["--memory-budget"]),
    ],
)
def test_bad_options_are_one_line(computed, arguments, pieces):
    refused(run(*arguments), *pieces)
    assert not computed.loads


def test_an_unknown_command_is_one_line():
    refused(CliRunner().invoke(main, ["compote", "a", "b"]), "compote")
    refused(CliRunner().invoke(main, ["--no-such"]), "--no-such")


@pytest.mark.parametrize(
    ("option", "name", "piece"),
    [
        ("--output", "r.txt", "must end in .npz"),
        ("--output", "no/r.npz", "there is no directory"),
        ("--output", "folder.npz", "is a directory"),
        ("--plot", "r.bmp", "must end in .png, .pdf or .svg"),
        ("--plot", "r", "must end in"),
        ("--plot", "no/r.png", "there is no directory"),
        ("--report", "r.pdf", "must end in .html or .htm"),
        ("--report", "no/r.html", "there is no directory"),
    ],
)
def test_files_that_cannot_be_written_are_refused_first(computed, tmp_path, option, name, piece):
    (tmp_path / "folder.npz").mkdir()
    refused(run("a", "b", option, tmp_path / name), option, name, piece)
    assert not computed.loads and os.listdir(tmp_path) == ["folder.npz"]


def test_names_too_long_and_links_to_no_file_are_refused_first(computed, tmp_path):
    (tmp_path / "null.npz").symlink_to(os.devnull)
    (tmp_path / "lost.npz").symlink_to(tmp_path / "no" / "r.npz")
    refused(run("a", "b", "--output", tmp_path / f"{'r' * 252}.npz"), "--output", "too long")
    refused(run("a", "b", "--output", tmp_path / "null.npz"), "not an ordinary file")
    refused(run("a", "b", "--output", tmp_path / "lost.npz"), "there is no directory")
    assert not computed.loads


def test_a_closed_directory_is_refused_first(computed):
    refused(run("a", "b", "--output", "/proc/r.npz"), "/proc", "cannot write")
    assert not computed.loads


# --- what is printed where


def test_the_table_is_on_stdout_and_nothing_on_stderr(computed):
    result = run("mnist", "fashion-mnist")
    assert result.exit_code == 0 and result.stderr == ""
    assert "distance   15.25" in result.stdout and "C = ||x - y||^2" in result.stdout


def test_json_is_one_object_on_stdout(computed):
    computed.provenance = {"sampled": {"of": 60_000, "kept": 50, "seed": 3}}
    result = run("mnist", "fashion-mnist", "--json")
    assert json.loads(result.stdout)["distance"] == 15.25
    assert len(result.stdout.splitlines()) == 1
    assert "50 of 60,000 samples" in result.stderr and "seed 3" in result.stderr
    assert len(result.stderr.splitlines()) == 2
    computed.provenance["announced"] = ["9 images made grey"]
    said = run("mnist", "fashion-mnist", "--json").stderr.splitlines()
    assert said[1::2] == ["mnist: 9 images made grey", "fashion-mnist: 9 images made grey"]
    assert run("mnist", "fashion-mnist", "--json", "--quiet").stderr == ""


def test_options_reach_the_loader_and_the_settings(computed, tmp_path):
    run(
        "a", "b", "--split", "test", "--max-samples", 7, "--seed", 5, "--data-root", tmp_path,
        "--epsilon", "2%", "--tol", "1e-4", "--max-passes", 9, "--lambda-x", 2, "--lambda-y", 3,
        "--label-distance", "diagonal", "--normalize", "unit", "--convention", "microsoft",
        "--no-debias", "--device", "CPU", "--memory-budget", "1.5GiB",
    )  # fmt: skip
    wanted = LoadSettings("test", 7, 5, str(tmp_path), device="cpu")
    assert computed.loads == [(("a", "b"), wanted)]
    assert computed.seen == [
        OTDDSettings(
            "2%", 1e-4, 9, 2.0, 3.0, "diagonal", "unit", "microsoft", False, None, 1_610_612_736,
            "cpu",
        )
    ]  # fmt: skip
    assert computed.warmed == ["cpu"]


def test_options_of_samples_reach_the_loader(computed):
    run("a", "b")
    assert computed.loads.pop() == (("a", "b"), LoadSettings())
    run(
        "a", "b", "--label", "kind", "--label", "y", "--features", "c*", "--labels", "kmeans:3",
        "--drop-unlabelled", "--image-size", "32x48", "--color", "grey", "--scale", "standard",
        "--missing", "mean", "--cosine", "--encoder", "pca:5", "--batch-size", 7, "--no-cache",
    )  # fmt: skip
    wanted = LoadSettings(
        label=("kind", "y"), features="c*", labels="kmeans:3", drop_unlabelled=True,
        image_size=(32, 48), color="grey", scale="standard", missing="mean", cosine=True,
        encoder="pca:5", batch_size=7, cache=False,
    )  # fmt: skip
    assert computed.loads == [(("a", "b"), wanted)]
    assert run("a", "b", "--image-size", "7").exit_code == 0
    assert computed.loads[-1][1].image_size == (7, 7)
    refused(run("a", "b", "--image-size", "big"), "'big' is no size; expected a side such as 32")
    refused(run("a", "b", "--image-size", "0"), "image_size is (0, 0), expected a side such as 32")
    refused(run("a", "b", "--labels", "kmeans"), "labels is 'kmeans', expected given, none, kme")
    assert len(computed.loads) == 2


@pytest.mark.parametrize("threads", [1, 8])
def test_a_gpu_starts_beside_the_reading_only_where_threads_bear_it(computed, monkeypatch, threads):
    begun, together = threading.Event(), []
    load = sys.modules["otdd_flash.datasets"].load_steps

    def load_steps(*arguments):
        begun.set()
        return load(*arguments)

    def warm_up(device):
        # to its end before the reading, which would begin in far less than this
        together.append(begun.wait(0.3 if threads == 1 else 60))

    monkeypatch.setattr(loading, "THREADS", threads)
    monkeypatch.setattr(sys.modules["otdd_flash.datasets"], "load_steps", load_steps)
    monkeypatch.setattr(sys.modules["otdd_flash.ahead"], "warm_up", warm_up)
    assert run("a", "b").exit_code == 0
    assert together == [threads > 1]


def test_files_are_written(computed, tmp_path):
    files = {"--output": "r.npz", "--plot": "r.png", "--report": "r.html"}
    asked = [word for option, name in files.items() for word in (option, tmp_path / name)]
    result = run("mnist", "fashion-mnist", *asked)
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(tmp_path)) == sorted(files.values())
    assert load_result(tmp_path / "r.npz").distance == 15.25


@pytest.mark.parametrize(
    ("option", "ending"), [("--output", ".npz"), ("--plot", ".png"), ("--report", ".html")]
)
def test_the_longest_names_and_links_are_written(computed, tmp_path, option, ending):
    longest = tmp_path / ("r" * (255 - len(ending)) + ending)
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / f"old{ending}", tmp_path / f"link{ending}"
    target.write_text("old")
    link.symlink_to(target)
    for path in (longest, link):
        assert run("a", "b", option, path).exit_code == 0
    assert link.is_symlink() and target.read_bytes()[:3] != b"old"
    assert longest.stat().st_size > 500
    assert len(os.listdir(tmp_path)) == 3 and os.listdir(target.parent) == [target.name]


def test_an_unconverged_result_warns_even_when_quiet(computed):
    computed.result = fake_result(converged=False, marginal_error=0.03)
    computed.warnings = [ConvergenceWarning("above tol=0.001: raise epsilon; the bounds hold")]
    for extra in ([], ["--quiet"]):
        result = run("a", "b", "--json", *extra)
        assert result.exit_code == 0
        assert json.loads(result.stdout)["converged"] is False
        assert result.stderr == f"Warning: not converged: {computed.warnings[0]}\n"
    assert "NOT CONVERGED" in run("a", "b").stdout


def test_other_warnings_are_shown_as_python_shows_them(computed):
    computed.warnings = [UserWarning("something else")]
    with pytest.warns(UserWarning, match="something else"):
        assert run("a", "b").exit_code == 0


def test_long_runs_are_announced_with_what_shortens_them(computed):
    computed.seconds, computed.size = 600.0, 500
    result = run("a", "b", "--device", "cpu")
    assert "about 10 min expected" in result.stderr and "--max-samples" in result.stderr
    assert "--epsilon" in result.stderr and len(result.stderr.splitlines()) == 1
    assert run("a", "b", "--quiet").stderr == ""
    assert [duration(s) for s in (61, 600, 7200)] == ["61 s", "10 min", "2.0 h"]


# --- errors while it runs


def test_bad_data_is_one_line_and_nothing_is_written(computed, tmp_path):
    computed.error = DataError("a: row 3 holds NaN\nor infinity")
    output = ["--output", tmp_path / "r.npz", "--plot", tmp_path / "r.png"]
    refused(run("a", "b", *output), "a: row 3 holds NaN or infinity")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("place", [["--debug", "compute"], ["compute", "--debug"]])
def test_debug_shows_the_traceback_before_the_line(computed, place):
    computed.error = DataError("row 3")
    result = CliRunner().invoke(main, [*place, "a", "b"])
    assert result.exit_code == 2 and "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1] == "Error: row 3"


def test_memory_and_files_are_one_line(computed):
    computed.error = torch.cuda.OutOfMemoryError("tried to allocate 80 GiB")
    refused(run("a", "b"), "out of memory", "--memory-budget")
    computed.error = MemoryError()
    refused(run("a", "b"), "out of memory")
    computed.error = OSError(28, "No space left on device", "r.npz")
    refused(run("a", "b"), "r.npz: No space left on device")


def test_a_fault_of_the_package_keeps_its_traceback(computed):
    computed.error = ZeroDivisionError("a bug")
    result = run("a", "b")
    assert isinstance(result.exception, ZeroDivisionError) and result.exit_code == 1


def test_a_full_disk_does_not_cost_the_result(computed, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "r.npz")

    monkeypatch.setattr("otdd_flash.results.save", full)
    result = run("a", "b", "--json", "--output", tmp_path / "r.npz")
    assert result.exit_code == 2 and json.loads(result.stdout)["distance"] == 15.25
    assert result.stderr == "Error: r.npz: No space left on device\n"


def test_ctrl_c_is_one_line_and_130(computed, tmp_path):
    computed.error = KeyboardInterrupt()
    result = run("a", "b", "--output", tmp_path / "r.npz")
    assert result.exit_code == 130 and result.stdout == ""
    assert result.stderr == "Interrupted\n" and not os.listdir(tmp_path)


# --- values and bars


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GB", 10**9), ("1gib", 2**30), ("1.5 GiB", 3 * 2**29), ("800MB", 8 * 10**8),
     ("2k", 2000), ("123", 123), ("7B", 7), (5, 5)],
)  # fmt: skip
def test_sizes(text, size):
    assert MemorySize().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GB", "1XB", "-1GB", "1e9", "0.1B", "1iB", "inf"])
def test_sizes_that_are_none(text):
    with pytest.raises(click.BadParameter):
        MemorySize().convert(text, None, None)


def test_devices():
    names = ["auto", "cpu", "cuda", "cuda:1", "CUDA:0"]
    assert [Device().convert(n, None, None) for n in names] == [n.lower() for n in names]
    for name in ("", "gpu", "cuda:", "cuda:x", "cuda:-1", "mps"):
        with pytest.raises(click.BadParameter):
            Device().convert(name, None, None)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_bars_show_each_stage_and_its_note(monkeypatch):
    def steps():
        yield Progress("class laws", 1, 2)
        yield Progress("class laws", 2, 2)
        yield Progress("solve", 5, None, "error 3.2e-03")
        for total in (8, 6):
            yield Progress("images", 0, total)
            yield Progress("images", total, total)
        return 42

    monkeypatch.setattr(sys, "stderr", Terminal())
    assert progress.wanted(quiet=False) and not progress.wanted(quiet=True)
    assert progress.Bars(True).drive(steps()) == 42
    shown = sys.stderr.getvalue()
    assert "class laws" in shown and "2/2" in shown and "error 3.2e-03" in shown
    # one dataset after the other, each with a bar of its own
    assert "8/8" in shown and "6/6" in shown and "6/8" not in shown
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not progress.wanted(quiet=False)
    assert progress.Bars(False).drive(steps()) == 42 and sys.stderr.getvalue() == ""


def test_bars_close_the_computation_when_they_are_interrupted(monkeypatch):
    closed = []

    def steps():
        try:
            yield Progress("solve", 1, 2)
        finally:
            closed.append(True)

    bars = progress.Bars(False)
    monkeypatch.setattr(bars, "show", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        bars.drive(steps())
    assert closed


def literal(node):
    """The text of a string in the source, a brace for each value put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_messages_that_name_settings_name_their_options_too():
    parameters = [p for command in main.commands.values() for p in command.params]
    options = {option for p in parameters for option in (*p.opts, *p.secondary_opts)}
    found = 0
    for path in sorted(Path(otdd_flash.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            text = " ".join(map(literal, node.exc.args))
            for key in re.findall(r"\b([a-z_]+)=(?:'|True)", text):
                option = f"--{key.replace('_', '-')}"
                if option in options:
                    found += 1
                    assert option in text, f"{path.name}: {text}"
    assert found > 20
