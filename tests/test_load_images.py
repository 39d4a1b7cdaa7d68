"""Images: folders, colours, sizes and layouts, unified by rules that are announced."""

import errno
import io
import json
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from idx_files import write_pair
from PIL import Image
from small_sets import announced, holds, noise, refused, together, write_images
from torchvision.transforms.v2 import functional

import otdd_flash as otdd
from otdd_flash import DataError, LabelError, SettingsError, load
from otdd_flash.samples.decoding import layout

Y = [0, 0, 1, 1, 1]


def folder(path, images, suffix=".png", mode=None):
    """Write five images into the classes ant (2) and bee (3)."""
    names = [f"{'ant' if y == 0 else 'bee'}/{k}{suffix}" for k, y in enumerate(Y)]
    write_images(path, dict(zip(names, images, strict=True)), mode)
    return path


@pytest.mark.parametrize("shape", [(6, 7), (6, 7, 3), (6, 7, 4)])
def test_class_folders_keep_every_byte(tmp_path, shape):
    images = noise(5, *shape)
    dataset = load(folder(tmp_path / "set", images))
    stored = images if len(shape) == 2 else images.transpose(0, 3, 1, 2)
    holds(dataset, stored, Y, ("ant", "bee"))
    assert dataset.points.dtype == torch.uint8 and dataset.sample_shape == stored.shape[1:]
    assert dataset.name == "set" and not announced(dataset)


def test_layouts_are_one(tmp_path):
    images = noise(5, 6, 7, 3)
    hwc, chw = together((images, Y), (np.ascontiguousarray(images.transpose(0, 3, 1, 2)), Y))
    assert torch.equal(hwc.points, chw.points) and otdd.distance(hwc, chw).distance == 0
    assert hwc.sample_shape == chw.sample_shape == (3, 6, 7)
    assert "stored as height x width x channels, read as channels first" in announced(hwc)
    a, b = together(folder(tmp_path / "set", images), (images, Y))
    assert torch.equal(a.points, b.points)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 7), ("hw", "grey")), ((1, 6, 7), ("chw", "grey")), ((6, 7, 1), ("hwc", "grey")),
        ((3, 6, 7), ("chw", "rgb")), ((4, 5, 3), ("hwc", "rgb")), ((3, 5, 3), ("chw", "rgb")),
        ((3, 5, 4), ("chw", "rgb")), ((4, 6, 7), ("chw", "rgba")), ((6, 7, 4), ("hwc", "rgba")),
        ((1, 7), None), ((7,), None), ((), None), ((2, 6, 7), None), ((1, 3, 6, 7), None),
    ],
)  # fmt: skip
def test_layouts_are_told_by_their_channels(shape, expected):
    assert layout(shape) == expected


def test_one_grey_one_colour_and_one_transparent_image_of_two_sizes(tmp_path):
    grey, colour, clear = noise(8, 8), noise(8, 8, 3), noise(10, 12, 4)
    path = tmp_path / "set"
    images = {"a/0.png": grey, "a/1.png": colour, "b/0.png": clear}
    write_images(path, images)
    refused(DataError, "set has images of 2 sizes from 8 x 8 to 10 x 12 (grey, rgb, rgba)", path)
    refused(DataError, "bring them to one size with image_size=8 (--image-size 8), or enc", path)
    dataset = load(path, image_size=8)
    assert dataset.sample_shape == (3, 8, 8) and dataset.class_names == ("a", "b")
    assert "1 of 3 images of 2 sizes from 8 x 8 to 10 x 12 resized to 8 x 8" in announced(dataset)
    assert "2 of 3 images made rgb: 1 grey, 1 rgba (transparent parts laid on white)" in announced(
        dataset
    )
    # grey is spread over three channels, colours that fit are untouched
    points = dataset.points.reshape(3, 3, 8, 8)
    assert torch.equal(points[0], torch.from_numpy(grey).expand(3, 8, 8))
    assert torch.equal(points[1], torch.from_numpy(colour).permute(2, 0, 1))
    # the transparent one: laid on white in exact arithmetic, its shorter side 10 fitted to 8
    alpha = clear[..., 3:].astype(np.float64)
    flat = np.floor((clear[..., :3] * alpha + 255 * (255 - alpha)) / 255 + 0.5).astype(np.uint8)
    covering = functional.resize(torch.from_numpy(flat).permute(2, 0, 1), [8, 10], antialias=True)
    assert torch.equal(points[2], covering[:, :, 1:9])


def test_colours_are_made_grey_by_pillows_luma(tmp_path):
    images = noise(5, 6, 7, 3)
    dataset = load(folder(tmp_path / "set", images), color="grey")
    luma = images.astype(np.float64) @ [0.299, 0.587, 0.114]
    # the integer weights sum to 2^16: rounding moves a value by less than one level
    assert np.abs(dataset.points.reshape(5, 6, 7).numpy() - luma).max() < 1
    assert dataset.sample_shape == (6, 7)
    grey = np.repeat(noise(5, 6, 7)[..., None], 3, axis=3)
    holds(load((grey, Y), color="grey"), grey[..., 0], Y)
    white = np.full((5, 2, 2, 3), 255, np.uint8)
    holds(load((white, Y), color="grey"), white[..., 0], Y)
    assert load(tmp_path / "set", color="rgba").points.reshape(5, 4, -1)[:, 3].min() == 255


def test_colour_folders_beside_mnist(tmp_path):
    path = folder(tmp_path / "cifar-like", noise(5, 32, 32, 3))
    with pytest.raises(DataError) as caught:
        together(path, "mnist-mini")
    for piece in (
        "cifar-like has images of 32 x 32 (rgb, 3,072 features)",
        "mnist-mini has images of 28 x 28 (grey, 784 features)", "image_size=28",
    ):  # fmt: skip
        assert piece in str(caught.value)
    a, b = together(path, "mnist-mini", image_size=28, max_samples=40)
    assert a.sample_shape == b.sample_shape == (3, 28, 28) and b.points.dtype == torch.uint8
    assert "5 of 5 images of 32 x 32 resized to 28 x 28" in announced(a)
    assert announced(b) == "40 of 40 images made rgb: 40 grey"
    assert otdd.distance(a, b, normalize="unit").distance > 0
    a, b = together(path, "mnist-mini", image_size=28, color="grey")
    assert "5 of 5 images made grey: 5 rgb" in announced(a) and not announced(b)
    holds(b, load("mnist-mini").points, load("mnist-mini").labels.tolist())


def test_photographs_are_turned_the_right_way_up(tmp_path):
    picture = Image.fromarray(noise(4, 6, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the scene is at the right of the stored pixels
    for name in ("a/0.jpg", "b/0.jpg"):
        (tmp_path / name).parent.mkdir()
        picture.save(tmp_path / name, exif=exif, quality=95)
    dataset = load(tmp_path)
    assert dataset.sample_shape == (3, 6, 4)
    with Image.open(tmp_path / "a/0.jpg") as stored:
        turned = np.asarray(stored).transpose(1, 0, 2)[:, ::-1].transpose(2, 0, 1)
    assert np.array_equal(dataset.points[0].reshape(3, 6, 4).numpy(), turned)


def test_floats_keep_their_values_and_their_scale_is_told():
    x = noise(5, 6, 7) / np.float32(255)
    a, b = together((x, Y), (noise(5, 6, 7), Y))
    holds(a, x, Y)
    assert "pixels are 0 to 0.976471, those of ndarray 0 to 249, and are" in announced(a)
    assert "(--normalize unit)" in announced(a) and not announced(b)
    colour = np.array([1, 0.5, 0.25, 0.5], np.float32)
    rgba = np.ones((5, 4, 3, 6), np.float32) * colour[:, None, None]
    # half transparent on white: (c + 1) / 2
    whole = load((rgba, Y), color="rgb").points.reshape(5, 3, 18)
    assert torch.allclose(whole[0, :, 0], torch.tensor([1.0, 0.75, 0.625]), atol=0, rtol=2**-22)


def test_pixels_of_another_scale_are_told():
    whole, sixteenth = noise(5, 6, 7), (noise(5, 6, 7) // 16).astype(np.uint16)
    whole[0, 0, :2] = 0, 255
    sixteenth[0, 0, :2] = 0, 15
    dark, light = together((sixteenth, Y), (whole, Y))
    assert announced(dark) == (
        "pixels are 0 to 15, those of ndarray 0 to 255, and are compared as they are: scale both "
        "to one range first, or divide samples by their norms with cosine=True (--cosine)"
    )
    assert not announced(light)
    holds(dark, sixteenth, Y)
    holds(light, whole, Y)
    # directions have no scale; half the range is the same scale; one dataset has nothing beside it
    assert "pixels" not in announced(together((sixteenth + 1, Y), (whole + 0, Y), cosine=True)[0])
    assert not announced(together((whole - whole // 2, Y), (whole, Y))[0])
    assert not announced(load((sixteenth, Y)))
    # from -1 to 1 beside 0 to 1, whichever is longer
    unit = whole / np.float32(255)
    for pair in ((2 * unit - 1, unit), (2 * unit - 1, 3 * unit)):
        said = [announced(one) for one in together(*((x, Y) for x in pair))]
        assert sum("shift and scale both to one range first" in text for text in said) == 1
    # standardised features are told by the range that came
    dark, light = together((sixteenth, Y), (whole, Y), scale="standard")
    assert "pixels are 0 to 15, those of ndarray 0 to 255" in announced(dark)


def test_datasets_loaded_one_by_one_are_told_as_those_loaded_together():
    whole, sixteenth = noise(5, 6, 7), (noise(5, 6, 7) // 16).astype(np.uint8)
    unit = whole / np.float32(whole.max())

    def notes(*datasets, **settings):
        return otdd.distance(*datasets, **settings).notes

    pair = (sixteenth, Y), (whole, Y)
    dark, light = together(*pair)
    said = announced(dark)
    assert said.startswith("pixels are 0 to 15, those of ndarray 0 to")
    assert notes(*(load(one) for one in pair)) == (f"ndarray: {said}",)
    by_hand = [otdd.LabelledDataset(*one) for one in pair]
    assert notes(*by_hand) == (f"dataset: {said.replace('of ndarray', 'of dataset')}",)
    assert otdd.explain(*by_hand).notes == otdd.value(*by_hand).notes == notes(*by_hand)
    # among many, each is compared with the widest
    assert otdd.matrix([by_hand[1], *by_hand]).notes == notes(*by_hand)
    # said once: not again of sets loaded together, nor of their subsets, nor at a second loading
    assert not notes(dark, light) and not notes(dark.subset(torch.arange(4)), light)
    assert announced(together(dark, light)[0]) == said
    # what normalisation brings to one range is in one, and directions have no scale
    assert notes(load((unit, Y)), load((whole, Y)))
    assert not notes(load((unit, Y)), load((whole, Y)), normalize="unit")
    assert not notes(*(load((x + 1, y), cosine=True) for x, y in pair))
    # numbers that are no images have no pixels
    assert not notes(*(otdd.LabelledDataset(x.reshape(5, -1), y) for x, y in pair))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "bad.png: the file is empty; replace it with a good copy, or delete it"),
        (b"<html>404</html>", "bad.png: no image that Pillow knows"),
        (None, "bad.png: is damaged (image file is truncated"),
    ],
)
def test_damaged_images_name_themselves(tmp_path, content, message):
    path = folder(tmp_path / "set", noise(5, 30, 30))
    whole = (path / "ant" / "0.png").read_bytes()
    (path / "ant" / "bad.png").write_bytes(whole[:200] if content is None else content)
    refused(DataError, message, path)


def test_more_than_eight_bits_are_refused(tmp_path):
    path = folder(tmp_path / "set", noise(5, 6, 7).astype(np.uint16) * 200)
    refused(DataError, "pixels of mode I;16, expected 8 bits a channel; convert it", path)


def test_what_is_left_out_is_announced(tmp_path):
    path = folder(tmp_path / "set", noise(5, 6, 7))
    (path / "ant" / "notes.md").write_text("x")
    (path / "ant" / ".hidden.png").write_bytes(b"")
    (path / "empty").mkdir()
    write_images(path, {"beside.png": noise(6, 7)})
    dataset = load(path)
    holds(dataset, noise(5, 6, 7), Y)
    assert "1 files left out that are no images" in announced(dataset)
    assert "folders left out that hold no images: empty" in announced(dataset)
    assert "images beside the class folders left out" in announced(dataset)


def test_folders_of_splits_and_folders_without_classes(tmp_path):
    folder(tmp_path / "set" / "train", noise(5, 6, 7))
    folder(tmp_path / "set" / "val", noise(5, 6, 7, seed=1))
    holds(load(tmp_path / "set"), noise(5, 6, 7), Y)
    for name in ("val", "validation", "dev"):
        holds(load(f"{tmp_path}/set@{name}"), noise(5, 6, 7, seed=1), Y)
    refused(SettingsError, "has no split 'test'; it has train, val", tmp_path / "set", split="test")
    refused(SettingsError, "has no split 'test'", tmp_path / "set" / "val", split="test")
    write_images(tmp_path / "flat", {f"{k}.png": noise(6, 7, seed=k) for k in range(4)})
    refused(LabelError, "flat: has no labels; name their column", tmp_path / "flat")
    assert load(tmp_path / "flat", labels="none").class_names == ("all",)
    (tmp_path / "nothing").mkdir()
    refused(
        DataError, "nothing: no images or .txt files in class sub-folders", tmp_path / "nothing"
    )


def test_folders_of_texts(tmp_path):
    for name in ("good/1.txt", "good/2.txt", "bad/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"it is {name}", "utf-8")
    refused(DataError, "holds texts, which need an encoder: encoder='sentence:MODEL'", tmp_path)

    def lengths(texts):
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    holds(load(tmp_path, encoder=lengths), [[15], [16], [16]], [0, 1, 1], ("bad", "good"))
    (tmp_path / "bad" / "2.txt").write_bytes("é".encode("latin-1"))
    refused(DataError, "2.txt: is no UTF-8 text; convert it", tmp_path, encoder=lengths)


def test_folders_of_idx_files(tmp_path):
    images, labels = write_pair(tmp_path / "set", n=30)
    holds(load(tmp_path / "set"), images, labels, "0123456789")
    assert load(tmp_path / "set", max_samples=10).sample_shape == (28, 28)
    refused(SettingsError, "has no split 'test'; it is one set", f"{tmp_path}/set@test")
    (tmp_path / "set" / "train-labels-idx1-ubyte").unlink()
    refused(DataError, "found without train-labels-idx1-ubyte[.gz] beside it", tmp_path / "set")


def test_a_table_may_name_the_images_of_a_folder(tmp_path):
    images = noise(3, 6, 7)
    write_images(tmp_path, {f"{k}.png": images[k] for k in range(3)})
    (tmp_path / "metadata.csv").write_text("file_name,label\n2.png,b\n0.png,a\n")
    holds(load(tmp_path), images[[2, 0]], [1, 0], ("a", "b"))
    holds(load(tmp_path / "metadata.csv"), images[[2, 0]], [1, 0], ("a", "b"))
    (tmp_path / "metadata.csv").unlink()
    rows = [{"file_name": "1.png", "label": "b"}, {"file_name": "0.png", "label": "a"}]
    lines = tmp_path / "metadata.jsonl"
    lines.write_text("\n".join(map(json.dumps, rows)) + "\n")
    holds(load(tmp_path), images[[1, 0]], [1, 0], ("a", "b"))
    lines.write_text('{"file_name": ')
    refused(DataError, "metadata.jsonl: not a whole JSON lines file", tmp_path)
    lines.write_text(json.dumps({"file_name": "9.png", "label": "a"}))
    refused(DataError, "9.png: no such file", tmp_path)


def test_a_draw_comes_before_decoding(tmp_path, monkeypatch):
    path = folder(tmp_path / "set", noise(5, 6, 7))
    kept = load(path, max_samples=2)
    assert len(kept) == 2 and kept.provenance["sampled"]["of"] == 5
    # the others may be damaged: nobody looks at them
    used = {tuple(row) for row in kept.points.tolist()}
    for k, y in enumerate(Y):
        if tuple(noise(5, 6, 7)[k].reshape(-1).tolist()) not in used:
            (path / ("ant" if y == 0 else "bee") / f"{k}.png").write_bytes(b"")
    assert torch.equal(load(path, max_samples=2).points, kept.points)
    refused(DataError, "the file is empty", path)


def test_options_of_images_need_images(tmp_path):
    refused(DataError, "sklearn:wine: holds no images", "sklearn:wine", image_size=8)
    refused(
        DataError, "its samples of shape (4,) are no images", (np.ones((2, 4)), [0, 1]), color="rgb"
    )
    for size in (0, (3,), "8", (8, 70_000), True):
        refused(
            SettingsError,
            "expected a side such as 32, or (height, width)",
            "digits",
            image_size=size,
        )


def test_encoded_images_in_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = []
    for image in noise(3, 6, 7, 3):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "png")
        cells.append(file.getvalue())
    pq.write_table(pa.table({"image": cells, "label": [0, 1, 1]}), tmp_path / "a.parquet")
    holds(load(tmp_path / "a.parquet"), noise(3, 6, 7, 3).transpose(0, 3, 1, 2), [0, 1, 1])
    pq.write_table(pa.table({"image": [cells[0], None], "label": [0, 1]}), tmp_path / "b.parquet")
    refused(DataError, "row 1 has no image; drop that row first", tmp_path / "b.parquet")


def test_colours_of_sixteen_bits_are_refused(tmp_path):
    """Pillow would drop the lower half of each number without a word."""
    rows = [b"\0" + noise(6 * 3).tobytes() for _ in range(3)]

    def chunk(name, content):
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    path = folder(tmp_path / "set", noise(5, 3, 3, 3))
    (path / "ant" / "wide.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 3, 16, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"".join(rows)))
        + chunk(b"IEND", b"")
    )
    refused(DataError, "wide.png: pixels of mode RGB of 16 bits, expected 8 bits", path)


def test_of_images_of_several_frames_the_first_is_taken(tmp_path):
    images = noise(5, 6, 7)
    frames = [Image.fromarray(image) for image in images]
    for name in ("a.gif", "b.png", "c.tif"):
        path = tmp_path / name.partition(".")[2] / "ant" / name
        path.parent.mkdir(parents=True)
        frames[0].save(path, save_all=True, append_images=frames[1:])
        dataset = load(path.parents[1], color="grey")
        # a palette of greys keeps every value
        holds(dataset, images[:1], [0])
        assert "1 images of several frames: the first one is taken" in announced(dataset)


def test_links_that_lead_back_are_not_followed(tmp_path):
    path = folder(tmp_path / "set", noise(5, 6, 7))
    (path / "ant" / "self").symlink_to(path / "ant")
    (path / "bee" / "up").symlink_to(path)
    write_images(tmp_path, {f"other/{k}.png": noise(6, 7, seed=k) for k in (7,)})
    (path / "cat").symlink_to(tmp_path / "other")
    dataset = load(path, labels="none")
    # bee finds ant's two images over its link, which is the folder's own doing
    counts = load(path).labels.bincount().tolist()
    assert len(dataset) == sum(counts) and counts[0] == 2 and counts[2] == 1


def test_images_that_a_table_names_must_be_there(tmp_path):
    write_images(tmp_path, {"set/a.png": noise(6, 7)})
    table = tmp_path / "set" / "metadata.csv"
    table.write_text("file_name,label\na.png,x\nb.png,y\n")
    refused(DataError, "b.png: no such file", table.parent)
    given = {"encoder": "torchvision:resnet18"}
    refused(DataError, "b.png: cannot be read (No such file", table.parent, **given)
    table.write_text("file_name,label\na.png,x\n,y\n")
    refused(DataError, "column 'file_name': row 1 has no image", table.parent)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64])
def test_integers_that_are_no_bytes_have_no_white(dtype):
    for channels, color in ((3, "grey"), (4, "rgb"), (1, "rgba")):
        images = torch.ones(5, channels, 6, 7, dtype=dtype)
        message = f"pixels of {dtype} cannot be made {color}: which number is white"
        refused(DataError, message, (images, Y), color=color)
    images = torch.arange(5 * 42).reshape(5, 6, 7).to(dtype)
    holds(load((images, Y), color="rgb"), images.unsqueeze(1).expand(5, 3, 6, 7), Y)


def test_folders_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    """The user of tests may read everything: the system call is made to refuse."""
    path = folder(tmp_path / "set", noise(5, 6, 7))
    scan = os.scandir

    def closed(place):
        if str(place).endswith("bee"):
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scan(place)

    monkeypatch.setattr("os.scandir", closed)
    refused(DataError, "bee: cannot be read (Permission denied); mend its permissions", path)
