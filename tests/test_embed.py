"""Samples through encoders of the user's own and principal components; `otdd embed`."""

import json
import os
import subprocess
import sys
from importlib import invalidate_caches
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from test_cli import refused

import otdd_flash as otdd
from otdd_flash.cli import main
from otdd_flash.embed import components, encode_steps, make_encoder, parse_encoder
from otdd_flash.embed.cache import cached
from otdd_flash.embed.components import project
from otdd_flash.embed.encoder import needed
from otdd_flash.embed.written import write_dataset
from otdd_flash.errors import DataError, EncoderError, SettingsError
from otdd_flash.samples import Arrays
from otdd_flash.types import finish

ROOT = Path(__file__).resolve().parents[1]
# writes a line when it is imported and one for each sample
COUNTING = """
from pathlib import Path
LOG = Path(__file__).with_name("log")
with LOG.open("a") as log:
    log.write("imported\\n")
def features(batch):
    with LOG.open("a") as log:
        log.writelines(f"{float(x.sum())}\\n" for x in batch)
    return batch.flatten(1).double() @ WEIGHTS
import torch
WEIGHTS = torch.arange(12.0, dtype=torch.float64).reshape(4, 3)
"""


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """A cache and a working directory of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def module(folder, name, text):
    (folder / f"{name}.py").write_text(text)
    invalidate_caches()
    return f"{name}:features"


def arrays(path, seed, n=30):
    values = np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    np.savez(path, points=values, labels=np.arange(n) % 3)
    return values


def points(n=6, d=4):
    return torch.arange(float(n * d)).reshape(n, d) / 7


def said(dataset):
    return " | ".join(dataset.provenance["announced"])


def test_the_encoder_is_called_once_a_sample_over_two_commands(work):
    module(work, "counting", COUNTING)
    first, second = arrays("a.npz", 1), arrays("b.npz", 2)
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "kernels", ROOT / "data"))

    def otdd_command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "otdd_flash", *arguments, "--encoder", "counting:features"]
            + ["--device", "cpu", "--batch-size", "7"],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": paths},
        )

    one = otdd_command("compute", "a.npz", "b.npz", "--json")
    assert one.returncode == 0, one.stderr
    lines = Path("log").read_text().split("\n")[:-1]
    assert lines.count("imported") == 1 and lines[0] == "imported"
    expected = [float(x.sum()) for x in torch.from_numpy(np.concatenate([first, second]))]
    assert [float(line) for line in lines[1:]] == expected
    two = otdd_command("explain", "a.npz", "b.npz", "--json")
    assert two.returncode == 0, two.stderr
    assert two.stderr.count("(from the cache, made 20") == 2
    # not called, and not even imported
    assert Path("log").read_text().split("\n")[:-1] == lines
    assert json.loads(one.stdout)["distance"] == json.loads(two.stdout)["value"]["distance"]


def test_a_changed_module_or_dataset_is_encoded_again(work):
    encoder = module(work, "changing", COUNTING)
    data = (points(), [0, 1] * 3)
    read = lambda given=data, **more: otdd.load(given, encoder=encoder, **more)  # noqa: E731
    assert "from the cache" not in said(read())
    assert "from the cache" in said(read())
    # labels are none of the encoder's business
    assert "from the cache" in said(read((points(), [5] * 6)))
    assert "from the cache" not in said(read((points() + 1, [0, 1] * 3)))
    assert "from the cache" not in said(read(max_samples=3))
    assert "from the cache" not in said(read(cache=False))
    assert len(cached()) == 3
    module(work, "changing", COUNTING + "\n# another version")
    assert "from the cache" not in said(read())
    assert len(cached()) == 4


def test_features_of_own_encoders_arrive_as_they_were_returned(work):
    values = points().to(torch.float64)
    encode = {
        "tensor": lambda x: x[:, :2],
        "array": lambda x: x[:, :2].numpy(),
        "lists": lambda x: x[:, :2].tolist(),
        "gradients": lambda x: x[:, :2] * torch.ones(2, dtype=x.dtype, requires_grad=True),
        "maps": lambda x: x[:, :2].reshape(-1, 2, 1, 1),
    }
    for name, call in encode.items():
        found = otdd.load((values, [0, 1] * 3), encoder=call, batch_size=4)
        assert torch.equal(found.points, values[:, :2]), name
        assert found.points.dtype == torch.float64
    halves = otdd.load((values, [0, 1] * 3), encoder=lambda x: x.half()[:, :2])
    assert torch.equal(halves.points, values[:, :2].half().float())
    assert cached() == []  # nothing says what these functions do


def test_a_callable_that_says_what_it_is_is_kept(work):
    def features(batch):
        calls.append(len(batch))
        return batch * 2

    calls: list[int] = []
    features.cache_key = "doubling 1"
    for _ in range(2):
        found = otdd.load((points(), [0, 1] * 3), encoder=features, batch_size=4)
        assert torch.equal(found.points, points() * 2)
    assert calls == [4, 2]
    features.cache_key = "doubling 2"
    otdd.load((points(), [0, 1] * 3), encoder=features, batch_size=4)
    assert calls == [4, 2, 4, 2]


def test_own_encoders_get_texts_images_and_scaled_tables(work):
    seen = []

    def look(batch):
        seen.append(batch)
        return np.ones((len(batch), 2))

    otdd.load((["one", "two"], [0, 1]), encoder=look)
    assert seen.pop() == ["one", "two"]
    for name, color in (("a", "red"), ("b", "blue")):
        Path("images", name).mkdir(parents=True)
        Image.new("RGB", (5, 4), color).save(f"images/{name}/0.png")
    otdd.load("images", encoder=look)
    images = seen.pop()
    assert images.dtype == torch.uint8 and images.shape == (2, 3, 4, 5)
    assert images[:, :, 0, 0].tolist() == [[255, 0, 0], [0, 0, 255]]
    Path("table.csv").write_text("u,v,label\n1,10,a\n3,30,b\n")
    otdd.load("table.csv", encoder=look)
    assert seen.pop().tolist() == [[-1, -1], [1, 1]]


def encoded(encode):
    encoder = make_encoder(parse_encoder(encode), None, "cpu")
    return finish(encode_steps(Arrays.of(points()), encoder, "numbers", 4, True))


@pytest.mark.parametrize(
    ("encode", "message"),
    [
        (lambda x: x[:-1], r"returned shape \(3, 4\) for 4 samples, expected \(4, d\)"),
        (lambda x: x[:, 0], r"returned shape \(4,\) for 4 samples, expected \(4, d\)"),
        (lambda x: x[:, :0], r"returned shape \(4, 0\) for 4 samples"),
        (lambda x: 3.0, r"returned shape \(\) for 4 samples"),
        (lambda x: None, "returned a NoneType, expected an array or tensor of numbers"),
        (lambda x: [["a"]] * len(x), "returned a list, expected an array or tensor of numbers"),
        (lambda x: [[1], [1, 2], [1], [1]], "returned a list, expected an array or tensor"),
        (lambda x: x * 1j, "returned complex numbers, expected real ones"),
        (lambda x: x[:, : len(x)], "2 features from sample 4 on and 4 before"),
        (
            lambda x: x / (x[:, :1] * 7 % 8),
            "returned NaN or infinity for 3 of 6 samples, sample 0 first; repair or drop them",
        ),
    ],
)
def test_what_are_no_features_is_refused(encode, message):
    encode.cache_key = "wrong"
    with pytest.raises(EncoderError, match=f"^numbers: .*{message}"):
        encoded(encode)
    assert cached() == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "def features(x):\n    raise RuntimeError('mine')\n",
            "failed on .* 6 .*RuntimeError: mine",
        ),
        ("def features(x):\n    raise SystemExit(7)\n", "failed on a batch of 6 samples .*Exit: 7"),
        ("def features(x:\n", r"does not load \(SyntaxError: "),
        ("raise RuntimeError('mine')\n", r"does not load \(RuntimeError: mine\)"),
    ],
)
def test_an_encoder_that_fails_ends_in_one_line_over_its_own_error(work, text, message):
    encoder = module(work, f"failing{abs(hash(text))}", text)
    with pytest.raises(EncoderError, match=f"^encoder {encoder}.*{message}") as caught:
        otdd.load((points(), [0, 1] * 3), encoder=encoder)
    assert caught.value.__cause__ is not None and cached() == []
    refused(CliRunner().invoke(main, ["info", "mnist-mini", "--encoder", encoder]), encoder)


def test_an_encoder_that_writes_into_its_batch_changes_nothing_else():
    given = points()
    found = otdd.load((given, [0, 1] * 3), encoder=lambda batch: batch.mul_(2))
    assert torch.equal(given, points()) and torch.equal(found.points, 2 * points())


def test_what_an_encoder_prints_is_no_part_of_the_result(work):
    text = "def features(batch):\n    print('loud')\n    return batch.flatten(1)\n"
    encoder = module(work, "loud", text)
    done = CliRunner().invoke(
        main, ["info", "mnist-mini", "--max-samples", "9", "--encoder", encoder, "--json"]
    )
    assert done.exit_code == 0 and json.loads(done.stdout)["samples"] == 9
    assert "loud" in done.stderr.splitlines()


@pytest.mark.parametrize(
    ("encoder", "error", "message"),
    [
        ("no_such_module:features", EncoderError, "there is no module 'no_such_module'; give"),
        ("torchvison:resnet18", EncoderError, "one of pixels, pca, torchvision, timm, sentence"),
        ("mine:absent", EncoderError, "encoder mine:absent: there is no absent in mine"),
        ("mine:VALUE", EncoderError, "encoder mine:VALUE: not callable: VALUE in mine"),
        ("broken:features", EncoderError, "broken does not load .*no_such_package"),
        ("pca", SettingsError, "encoder is 'pca', expected pca:K with K >= 1, such as pca:50"),
        ("pca:0", SettingsError, "encoder is 'pca:0', expected pca:K"),
        ("resnet18", SettingsError, "encoder is 'resnet18', expected pixels, pca:50, torch"),
        ("sentence:", SettingsError, "encoder is 'sentence:', expected"),
        (7, SettingsError, "encoder is 7, expected pixels, pca:50"),
    ],
)
def test_encoders_that_are_not_there(work, encoder, error, message):
    module(work, "mine", "VALUE = 3\n")
    module(work, "broken", "import no_such_package\n")
    with pytest.raises(error, match=message):
        otdd.load((points(), [0, 1] * 3), encoder=encoder)


def test_an_encoder_of_a_class_is_found_through_its_module(work):
    text = "class Scaled:\n    def __call__(self, x):\n        return 3 * x\nmade = Scaled()\n"
    module(work, "classes", text)
    found = otdd.load((points(), [0, 1] * 3), encoder="classes:made")
    assert torch.equal(found.points, 3 * points())
    assert found.provenance["encoder"] == "classes:made"


def test_a_package_that_is_missing_is_named():
    with pytest.raises(EncoderError, match="x:y needs .* not-there, .* pip install not-there$"):
        needed("not_there", "x:y")


def test_cosine_makes_squared_distances_two_minus_twice_the_cosine():
    data = otdd.load((points(), [0, 1] * 3), encoder=lambda x: x + 1, cosine=True)
    given = (points() + 1).double()
    lengths = given.norm(dim=1)
    cosines = given @ given.T / lengths[:, None] / lengths
    squared = torch.cdist(data.points.double(), data.points.double()) ** 2
    # float32 unit vectors: each coordinate to 6e-8
    assert torch.allclose(squared, 2 - 2 * cosines, atol=1e-6)
    with pytest.raises(DataError, match="1 of 6 samples are zero and have no direction"):
        otdd.load((points(), [0, 1] * 3), encoder=lambda x: x * (x[:, :1] != 0), cosine=True)


@pytest.mark.parametrize("shape", [(300, 12), (20, 40), (60, 120)])
def test_components_are_those_of_all_datasets_together(shape):
    n, d = shape
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0][:, :6]
    clouds = [
        k + (torch.randn(size, 6, dtype=torch.float64) * 2.0 ** -torch.arange(6)) @ basis.T
        for k, size in enumerate((n, n // 2))
    ]
    stacked = torch.cat(clouds)
    _, values, directions = torch.linalg.svd(stacked - stacked.mean(0), full_matrices=False)
    expected = (stacked - stacked.mean(0)) @ directions[:3].T
    share = float((values[:3] ** 2).sum() / (values**2).sum())
    found = project(clouds, 3)
    together = torch.cat([points for points, _ in found])
    # a direction's sign is a convention; float32 holds coordinates of up to 8 to 5e-7
    assert torch.allclose(together.double().abs(), expected.abs(), atol=2e-6)
    for points, text in found:
        assert points.dtype == torch.float32
        assert text == (
            f"{d} features projected on 3 principal components ({share:.1%} of the variance; "
            "exact), fitted on the samples of all datasets"
        )


def test_components_above_memory_come_from_batches(monkeypatch):
    """In a subspace of as many dimensions as components the incremental fit is exact too."""
    monkeypatch.setattr(components, "CHUNK", 50)
    torch.manual_seed(1)
    basis = torch.linalg.qr(torch.randn(15, 15, dtype=torch.float64))[0][:, :4]
    clouds = [
        (torch.randn(n, 4, dtype=torch.float64) * 2.0 ** -torch.arange(4)) @ basis.T
        # the first and the last have fewer samples than components
        for n in (3, 131, 2)
    ]
    exact, batched = project(clouds, 4), project(clouds, 4, budget=0)
    for (one, _), (other, text) in zip(exact, batched, strict=True):
        # up to sign; float32
        assert torch.allclose(one.abs(), other.abs(), atol=2e-6)
        assert "100.0% of the variance; fitted in batches" in text
    sizes = [len(batch) for batch in components._batches(clouds, 50)]
    assert sizes == [50, 86]


def test_more_components_than_there_are_is_refused():
    with pytest.raises(EncoderError, match="pca:5 asks .* 6 samples of 4 features .* pca:4 or"):
        otdd.load((points(), [0, 1] * 3), encoder="pca:5")
    with pytest.raises(EncoderError, match="pca:4 asks .* 3 samples .*use pca:3 or fewer"):
        project([points()[:3]], 4)
    with pytest.raises(EncoderError, match="pca:2: all 7 samples are the same .* leave the enc"):
        project([torch.ones(4, 9), torch.ones(3, 9)], 2)


def command(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_tables_of_other_columns_meet_in_their_components():
    both = ("sklearn:wine", "sklearn:breast_cancer")
    result = command("compute", *both, "--encoder", "pca:5", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["converged"] and found["distance"] > 0
    assert [found[side]["d"] for side in ("source", "target")] == [5, 5]
    assert "since the datasets share no features" in result.stderr
    refused(command("compute", *both, "--device", "cpu"), "13", "30", "pca:10")


def test_embed_writes_a_file_that_commands_read_as_the_dataset_itself(work):
    module(work, "counting", COUNTING)
    arrays("a.npz", 1), arrays("b.npz", 2)
    encoded = ("--encoder", "counting:features")
    for name in ("a", "b"):
        result = command("embed", f"{name}.npz", *encoded, "--output", f"{name}.safetensors")
        assert result.exit_code == 0, result.output
    size = Path("b.safetensors").stat().st_size
    assert result.stdout == (
        f"b.safetensors: 30 samples of 3 features (float64) in 3 classes, {size / 1000:.3g} kB\n"
    )
    direct = otdd.load("a.npz", encoder="counting:features")
    read = otdd.load("a.safetensors")
    assert torch.equal(read.points, direct.points) and torch.equal(read.labels, direct.labels)
    assert read.class_names == direct.class_names and read.name == "a.npz"
    assert read.provenance["made from"]["encoder"] == "counting:features"
    plain = command("compute", "a.safetensors", "b.safetensors", "--device", "cpu", "--json")
    again = command("compute", "a.npz", "b.npz", *encoded, "--device", "cpu", "--json")
    assert json.loads(plain.stdout)["squared"] == json.loads(again.stdout)["squared"]


def test_embed_keeps_shapes_names_and_types(work):
    images = torch.randint(0, 255, (4, 3, 5), dtype=torch.uint8)
    given = otdd.LabelledDataset(
        images, [3, 3, 9, 3], name="toy", class_names=[f"c{k}" for k in range(10)],
    )  # fmt: skip
    write_dataset(given, "toy.safetensors")
    read = otdd.load("toy.safetensors")
    assert torch.equal(read.points, given.points) and read.points.dtype == torch.uint8
    assert read.sample_shape == (3, 5) and read.name == "toy"
    assert read.class_names == given.class_names == ("c3", "c9")
    assert torch.equal(read.labels, given.labels)


def test_embed_says_what_is_wrong_before_it_reads_anything(work):
    arrays("a.npz", 1)
    refused(command("embed", "a.npz", "--output", "a.npz"), "must end in .safetensors")
    refused(command("embed", "a.npz", "--output", "no/a.safetensors"), "no directory")
    refused(command("embed", "a.npz"), "--output")
    wrong = command("embed", "a.npz", "--encoder", "sentence:x", "--output", "a.safetensors")
    refused(wrong, "takes texts, the dataset holds arrays")
    assert not Path("a.safetensors").exists()
