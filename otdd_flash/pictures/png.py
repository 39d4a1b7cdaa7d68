"""Small PNG files of figures that use the package's colours."""

from __future__ import annotations

import io
from typing import BinaryIO

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from scipy.spatial import cKDTree

# colour-blind-safe and even in lightness: cost and mass are told apart by their map
COST_MAP, MASS_MAP = "cividis", "viridis"
SOURCE_COLOUR, TARGET_COLOUR = "#0072b2", "#d55e00"
# text on a light ground of its own; pure black is the ink of the paper, which a dark page inverts
ON_LIGHT = "#0f0f0f"


def write_png(
    figure: Figure,
    file: BinaryIO,
    dpi: int,
    coloured: bool,  # whether it shows samples in colour
) -> None:
    """Write a figure with 256 colours, one byte a pixel: a third of the size of full colour."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    with Image.open(drawn) as opened:
        picture = opened.convert("RGB")
    palette = _palette(picture if coloured else None)
    pixels = np.asarray(picture).reshape(-1, 3).astype(np.int32)
    codes, inverse = np.unique(pixels @ (65536, 256, 1), return_inverse=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    # pillow's own mapping tells colours apart in steps of 4 and turns white into light grey
    _, nearest = cKDTree(palette.astype(np.float64)).query(colours)
    indices = np.asarray(nearest, dtype=np.uint8)[inverse].reshape(picture.height, picture.width)
    few = Image.fromarray(indices).convert("P")
    few.putpalette(palette.tobytes())
    few.save(file, format="png", optimize=True, dpi=(dpi, dpi))


def _palette(
    picture: Image.Image | None,  # with coloured samples; None: all else is grey
) -> np.ndarray:  # (at most 256, 3) uint8
    """Return greys, shades of the two maps, and tints of the lines or of the samples."""
    greys, steps = (52, 84) if picture is None else (26, 50)
    shades = [np.linspace(0, 1, greys)[:, None].repeat(3, axis=1)]
    shades += [colormaps[name](np.linspace(0, 1, steps))[:, :3] for name in (COST_MAP, MASS_MAP)]
    if picture is None:
        tint = np.linspace(0, 1, 18)[:, None]
        shades += [
            1 - tint * (1 - np.array(to_rgb(name))) for name in (SOURCE_COLOUR, TARGET_COLOUR)
        ]
    else:
        chosen = picture.quantize(130).getpalette() or []
        shades.append(np.reshape(chosen, (-1, 3)) / 255)
    return np.rint(255 * np.concatenate(shades)[:256]).astype(np.uint8)
