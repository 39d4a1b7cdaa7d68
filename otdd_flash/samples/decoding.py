"""Image files by Pillow: headers, pixels the right way up, and which arrays are images."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import DataError

GREY, ALPHA = ("L", "1"), ("LA", "La", "PA", "RGBA", "RGBa")
COLOURED = ("RGB", "P", "CMYK", "YCbCr", "LAB", "HSV", "RGBX")
# Pillow reads the orientation of others only by decoding them
TURNED = ("JPEG", "MPO", "TIFF", "WEBP")
ORIENTATION, SIDEWAYS = 0x0112, (5, 6, 7, 8)
WIDE = re.compile(r";16[BLN]")
REPAIR = "replace it with a good copy, or delete it"


def opened(image: Any, where: str) -> Any:
    """Open a path, encoded bytes or a Pillow image; only its header is read."""
    from PIL import Image, UnidentifiedImageError

    name = str(image) if isinstance(image, Path) else where
    if isinstance(image, Image.Image):
        return image
    try:
        return Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)
    except FileNotFoundError as error:
        raise DataError(f"{name}: no such file") from error
    except UnidentifiedImageError as error:
        size = len(image) if isinstance(image, bytes) else image.stat().st_size
        what = "no image that Pillow knows" if size else "the file is empty"
        raise DataError(f"{name}: {what}; {REPAIR}") from error
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{name}: cannot be read ({error}); {REPAIR}") from error


def color_of(picture: Any, where: str) -> str:
    """Return the colour of an opened image.

    Raises:
        DataError: more than 8 bits a channel.
    """
    mode = picture.mode
    wide = any(WIDE.search(str(tile[-1])) for tile in getattr(picture, "tile", ()))
    if wide and mode in (*COLOURED, *ALPHA):
        # Pillow drops the lower half of 16 bits, which only the way it decodes them tells
        mode += " of 16 bits"
    elif mode in ALPHA or (mode in ("L", "P", "RGB", "1") and "transparency" in picture.info):
        return "grey with alpha" if mode in ("L", "1", "LA", "La") else "rgba"
    if mode in GREY:
        return "grey"
    if mode in COLOURED:
        return "rgb"
    raise DataError(
        f"{where}: pixels of mode {mode}, expected 8 bits a channel; convert it to 8 bits, or save "
        "arrays of the values as .npz"
    )


def header_of(image: Any, where: str) -> tuple[tuple[int, int], str, bool]:
    """Return size, colour and whether there are further frames; no pixel is decoded.

    The size is height and width, the right way up.

    Raises:
        DataError: no image, or more than 8 bits a channel.
    """
    picture = opened(image, where)
    try:
        color = color_of(picture, str(image) if isinstance(image, Path) else where)
        width, height = picture.size
        turned = picture.format in TURNED and picture.getexif().get(ORIENTATION) in SIDEWAYS
        # beside a photograph there may be its preview
        moves = picture.format != "MPO" and getattr(picture, "is_animated", False)
        return ((width, height) if turned else (height, width)), color, moves
    finally:
        if picture is not image:
            picture.close()


def decoded(image: Any, where: str) -> tuple[Tensor, str]:
    """Return an image as bytes (c, h, w), the right way up, and its colour.

    Raises:
        DataError: a file that is cut off or no image.
    """
    from PIL import ImageOps

    picture = opened(image, where)
    name = str(image) if isinstance(image, Path) else where
    color = color_of(picture, name)
    try:
        if picture.format in TURNED:
            picture = ImageOps.exif_transpose(picture)
        wanted = {"grey": "L", "grey with alpha": "LA", "rgb": "RGB", "rgba": "RGBA"}[color]
        pixels = np.array(picture.convert(wanted))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{name}: is damaged ({error}); {REPAIR}") from error
    finally:
        if picture is not image:
            picture.close()
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(pixels).permute(2, 0, 1), color


def layout(shape: Sequence[int]) -> tuple[str, str] | None:
    """Return the layout (hw, chw or hwc) and colour of arrays that are images, None for others."""
    if len(shape) == 2 and min(shape) > 1:
        return "hw", "grey"
    if len(shape) != 3:
        return None
    # channels come first, as torch has them, where both ends could be channels; four are rare
    for colors in ({1: "grey", 3: "rgb"}, {4: "rgba"}):
        for order, channels in (("chw", shape[0]), ("hwc", shape[2])):
            if channels in colors:
                return order, colors[channels]
    return None
