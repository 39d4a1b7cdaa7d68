"""Rules that bring images to one size and one colour, and the transforms that do it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

# channels of an image of a colour
CHANNELS = {"grey": 1, "grey with alpha": 2, "rgb": 3, "rgba": 4}
# luma of Pillow in 1/65536: they add up to one, so that grey in three channels stays what it was
LUMA = (19595, 38470, 7471)


@dataclass(frozen=True)
class Form:
    """What images are brought to."""

    size: tuple[int, int]  # height, width
    color: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample: (h, w) when grey, else (c, h, w)."""
        return self.size if self.color == "grey" else (CHANNELS[self.color], *self.size)


@dataclass
class Look:
    """What the images of a dataset look like before any conversion."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  # (height, width): images
    colors: Counter[str] = field(default_factory=Counter)
    moving: int = 0  # images of several frames

    def __str__(self) -> str:
        said = [*sorted(self.colors)]
        if len(self.sizes) == len(self.colors) == 1:
            (height, width), color = next(iter(self.sizes)), said[0]
            said.append(f"{CHANNELS[color] * height * width:,} features")
        return f"{self.extents()} ({', '.join(said)})"

    def extents(self) -> str:
        """Say which sizes there are."""
        least, largest = min(self.sizes), max(self.sizes)
        if len(self.sizes) == 1:
            return f"{least[0]} x {least[1]}"
        return (
            f"{len(self.sizes)} sizes from {least[0]} x {least[1]} to {largest[0]} x {largest[1]}"
        )

    def announce(self, form: Form) -> list[str]:
        """Say what was converted."""
        said = []
        if self.moving:
            said.append(frames_note(self.moving))
        if other := sum(n for size, n in self.sizes.items() if size != form.size):
            said.append(
                f"{other:,} of {self.sizes.total():,} images of {self.extents()} resized to "
                f"{form.size[0]} x {form.size[1]}: the shorter side fitted (bilinear, "
                "antialiased), the middle cut out"
            )
        changed = {color: n for color, n in self.colors.items() if color != form.color}
        if changed:
            found = ", ".join(f"{n:,} {color}" for color, n in sorted(changed.items()))
            blends = form.color in ("grey", "rgb") and any(CHANNELS[c] in (2, 4) for c in changed)
            said.append(
                f"{sum(changed.values()):,} of {self.colors.total():,} images made {form.color}: "
                f"{found}{' (transparent parts laid on white)' if blends else ''}"
            )
        return said


def frames_note(count: int) -> str:
    """Say that images hold more than what is taken of them."""
    return f"{count:,} images of several frames: the first one is taken"


def common_color(
    asked: str,  # auto | grey | rgb | rgba
    found: Iterable[str],
) -> str:
    """Return the colour for all images: what they have, grey or RGB where they differ."""
    colors = set(found)
    if asked != "auto":
        return asked
    if len(colors) == 1 and colors != {"grey with alpha"}:
        return colors.pop()
    return "grey" if colors <= {"grey", "grey with alpha"} else "rgb"


def convert(
    images: Tensor,  # (..., c, h, w) bytes, or floats whose white is `white`
    color: str,  # of the images
    form: Form,
    white: float = 255.0,
) -> Tensor:  # (..., c', h', w'), same dtype
    """Return images in the colour and size of a form."""
    if color != form.color:
        images = _recolored(images, form.color, white)
    if images.shape[-2:] != form.size:
        from torchvision.transforms.v2 import functional as transforms

        height, width = images.shape[-2:]
        factor = max(form.size[0] / height, form.size[1] / width)
        covering = [
            max(side, round(factor * extent))
            for side, extent in zip(form.size, (height, width), strict=True)
        ]
        images = transforms.resize(images, covering, antialias=True)
        images = transforms.center_crop(images, list(form.size))
    return images


def _recolored(images: Tensor, color: str, white: float) -> Tensor:
    channels = images.shape[-3]
    if channels in (2, 4):
        images, alpha = images[..., :-1, :, :], images[..., -1:, :, :]
        if color != "rgba":
            images = _on_white(images, alpha, white)
    elif color == "rgba":
        alpha = torch.full_like(images[..., :1, :, :], white)
    if color == "grey":
        return _luma(images) if images.shape[-3] == 3 else images
    if images.shape[-3] == 1:
        images = images.expand(*images.shape[:-3], 3, *images.shape[-2:])
    return torch.cat([images, alpha], dim=-3) if color == "rgba" else images


def _on_white(images: Tensor, alpha: Tensor, white: float) -> Tensor:
    if images.is_floating_point():
        return (images * alpha + white * (white - alpha)) / white
    mixed = images.int() * alpha + 255 * (255 - alpha.int())
    return torch.div(mixed + 127, 255, rounding_mode="floor").to(images.dtype)


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(-3)
    if images.is_floating_point():
        grey = sum(c * k / 65536 for c, k in zip((red, green, blue), LUMA, strict=True))
        return torch.as_tensor(grey).unsqueeze(-3).to(images.dtype)
    # torchvision truncates here: white would become 254
    total = sum(c.int() * k for c, k in zip((red, green, blue), LUMA, strict=True))
    return ((torch.as_tensor(total) + 32768) >> 16).unsqueeze(-3).to(images.dtype)
