"""Images of all datasets in one form: files decoded in threads, arrays taken as they are."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError
from otdd_flash.samples import Arrays, Images, in_threads
from otdd_flash.samples.decoding import decoded, header_of, layout
from otdd_flash.samples.forms import Form, Look, common_color, convert
from otdd_flash.types import Progress

# images that are fetched, and arrays that are converted, at once
CHUNK = 256


def look_steps(raw: RawDataset) -> Generator[Progress, None, Look | None]:
    """Return what the images of a dataset look like, from headers; None for other samples."""
    look = Look()
    if isinstance(raw.samples, Arrays):
        found = layout(raw.samples.one().shape)
        if found is None:
            return None
        shape = tuple(raw.samples.one().shape)
        height, width = {"hw": shape, "chw": shape[1:], "hwc": shape[:2]}[found[0]]
        look.sizes[(height, width)] += len(raw)
        look.colors[found[1]] += len(raw)
        return look
    if not isinstance(raw.samples, Images):
        return None

    def head(item: tuple[int, Any]) -> tuple[tuple[int, int], str, bool]:
        return header_of(item[1], f"{raw.name}: image {item[0]}")

    for row, (size, color, moves) in enumerate(in_threads(head, _numbered(raw.samples))):
        look.sizes[size] += 1
        look.colors[color] += 1
        look.moving += moves
        if row % CHUNK == 0:
            yield Progress("headers", row, len(raw), raw.name)
    yield Progress("headers", len(raw), len(raw), raw.name)
    return look


def _numbered(samples: Images) -> Iterator[tuple[int, Any]]:
    for start, part in samples.chunks(CHUNK):
        yield from enumerate(part, start)


def common_form(found: Sequence[tuple[RawDataset, Look]], settings: LoadSettings) -> Form:
    """Return the form that all images are brought to.

    Raises:
        DataError: images of several sizes and no size to bring them to.
    """
    sizes = {size for _, look in found for size in look.sizes}
    color = common_color(settings.color, (c for _, look in found for c in look.colors))
    if settings.image_size is not None:
        return Form(settings.image_size, color)
    if len(sizes) > 1:
        side = min(min(size) for size in sizes)
        listed = " and ".join(f"{raw.name} has images of {look}" for raw, look in found[:4])
        raise DataError(
            f"{listed}; bring them to one size with image_size={side} (--image-size {side}), or "
            "encode them with encoder='torchvision:resnet18' (--encoder torchvision:resnet18)"
        )
    return Form(sizes.pop(), color)


def pixel_steps(
    raw: RawDataset, look: Look, form: Form
) -> Generator[Progress, None, tuple[RawDataset, Tensor]]:
    """Return a dataset's images (n, h, w) or (n, c, h, w) in a form, and what to announce.

    Arrays that have the form already are not touched: bytes stay bytes, floats stay floats.
    """
    said = look.announce(form)
    samples = raw.samples
    if isinstance(samples, Arrays):
        found = layout(samples.one().shape)
        assert found is not None
        if found[0] == "hwc":
            said.insert(0, "stored as height x width x channels, read as channels first")
        if not said:
            return raw, samples.all().reshape(len(raw), *form.shape)
        dtype = samples.one().dtype
        exact = dtype == torch.uint8 or dtype.is_floating_point
        if not exact and found[1] != form.color and (found[1], form.color) != ("grey", "rgb"):
            raise DataError(
                f"{raw.name}: {found[1]} pixels of {dtype} cannot be made {form.color}: which "
                "number is white is not known; pass bytes (uint8) or floats of 0 to 1"
            )
        white = 255.0
        if found[1] == "rgba" and samples.one().is_floating_point():
            white = 1.0 if max(float(p.max()) for _, p in samples.chunks()) <= 1 else 255.0
        parts = []
        for start, part in samples.chunks(CHUNK):
            yield Progress("images", start, len(raw), raw.name)
            parts.append(_stored(part, *found, form, white))
        points = torch.cat(parts)
    else:
        points = torch.empty((len(raw), *form.shape), dtype=torch.uint8)

        def work(item: tuple[int, Any]) -> tuple[int, Tensor]:
            pixels, color = decoded(item[1], f"{raw.name}: image {item[0]}")
            return item[0], convert(pixels, color, form)

        for row, pixels in in_threads(work, _numbered(samples)):  # type: ignore[arg-type]
            points[row] = pixels.reshape(form.shape)
            if row % CHUNK == 0:
                yield Progress("images", row, len(raw), raw.name)
    yield Progress("images", len(raw), len(raw), raw.name)
    return raw.noted(*said), points


def _stored(part: Tensor, order: str, color: str, form: Form, white: float) -> Tensor:
    """Convert a chunk of array images."""
    if order == "hw":
        part = part.unsqueeze(1)
    elif order == "hwc":
        part = part.permute(0, 3, 1, 2)
    return convert(part, color, form, white).reshape(len(part), *form.shape)
