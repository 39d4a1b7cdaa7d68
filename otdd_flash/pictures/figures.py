"""What pictures share: figures without global state, files that appear whole, heat maps, names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager, rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from otdd_flash.checks import shown
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.files import written_whole
from otdd_flash.pictures.png import ON_LIGHT, write_png
from otdd_flash.results import printable

DPI = 150
# named ticks on an axis; the names between them are left out
MOST_TICKS = 25
# numbers are written into heat maps of at most this many rows or columns
MOST_NUMBERS = 12
# fonts that hold what matplotlib's own does not, first those that hold most
OTHER_SCRIPTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Source Han Sans",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "Noto Sans Devanagari",
    "Noto Sans Arabic",
    "Noto Emoji",
)
# the luminance of a ground on which black and white are read equally well
HALFWAY = 0.18


def check_kind(
    result: Any,
    kind: type,  # what the picture is of
) -> None:
    """Refuse to draw a result of another kind.

    Raises:
        DataError: naming both.
    """
    if not isinstance(result, kind):
        raise DataError(
            f"{shown(result)} arrived, expected {kind.__name__}; each kind of result has its own "
            "picture"
        )


def drawn(
    draw: Callable[[Figure], None],
    path_or_figure: str | Path | Figure,
    size: tuple[float, float],  # inches, of a figure that is made
    coloured: bool = False,  # whether it shows samples in colour
) -> Figure:
    """Draw into a figure, or into a new one that is written: whole, or not at all.

    Raises:
        SettingsError: a file whose name ends in no kind of picture.
        OSError: the file cannot be written.
    """
    if not isinstance(path_or_figure, Figure):
        kind = Path(path_or_figure).suffix.lstrip(".").lower() or "png"
        if kind not in FigureCanvasAgg.get_supported_filetypes():
            raise SettingsError(
                f"{path_or_figure}: pictures end in .png, .pdf or .svg, not in .{kind}"
            )
    with rc_context({"font.family": _fonts()}):
        if isinstance(path_or_figure, Figure):
            draw(path_or_figure)
            return path_or_figure
        figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
    with written_whole(path_or_figure) as file:
        if kind == "png":
            write_png(figure, file, DPI, coloured)
        else:
            figure.savefig(file, format=kind, dpi=DPI)
    return figure


@cache
def _fonts() -> list[str]:
    """Return the usual font, and those of other scripts that this machine has."""
    known = set(font_manager.get_font_names())
    return [*rcParams["font.family"], *(name for name in OTHER_SCRIPTS if name in known)]


def power_of_1000(values: np.ndarray) -> int:
    """Return 3k such that the largest value is in [1, 1000) times 10^3k, 0 where none is needed."""
    largest = float(np.abs(values).max())
    if not np.isfinite(largest) or largest == 0 or 0.1 <= largest < 1e4:
        return 0
    return 3 * math.floor(math.log10(largest) / 3)


def unit_text(power: int) -> str:
    """Return what a title says of values that are shown in units of a power of 10."""
    return f", in units of $10^{{{power}}}$" if power else ""


def heat_map(
    axes: Axes,
    values: np.ndarray,  # (rows, columns)
    names: tuple[Sequence[str], Sequence[str]],  # of rows and columns
    title: str,
    colours: str,
    number: str,  # how a value is written
) -> None:
    """Draw values as colours, with numbers where there is room for them."""
    image = axes.imshow(values, cmap=colours, aspect="auto", interpolation="nearest")
    axes.set_title(title, fontsize=11)
    name_ticks(axes.xaxis, names[1], rotation=45)
    name_ticks(axes.yaxis, names[0])
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    if max(values.shape) > MOST_NUMBERS:
        return
    grounds = np.asarray(image.cmap(image.norm(values)))[..., :3]
    for (row, column), value in np.ndenumerate(values):
        colour = "white" if _luminance(grounds[row, column]) < HALFWAY else ON_LIGHT
        text = number.format(value)
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)


def _luminance(
    colour: np.ndarray,  # (3,) in [0, 1]
) -> float:
    """Return the relative luminance of a colour, by the formula of WCAG 2."""
    parts = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(parts @ (0.2126, 0.7152, 0.0722))


def name_ticks(axis: Any, names: Sequence[str], rotation: float = 0, width: int = 16) -> None:
    """Name every place, or every k-th where names would overlap."""
    step = -(-len(names) // MOST_TICKS)
    places = list(range(0, len(names), step))
    size = 9 if len(places) <= 12 else 7
    turned = {"rotation": rotation, "ha": "right", "rotation_mode": "anchor"} if rotation else {}
    labels = [short(names[place], width) for place in places]
    axis.set_ticks(places, labels=labels, fontsize=size, **turned)


def faint_grid(axes: Axes) -> None:
    """Draw a grid behind what is shown, a tint of the ink and so faint on any paper."""
    axes.grid(color="black", alpha=0.1, linewidth=0.8)
    axes.set_axisbelow(True)


def short(text: str, width: int) -> str:
    """Return a text cut to ``width`` characters; ``$`` is kept from starting a formula."""
    text = printable(text)
    text = text if len(text) <= width else f"{text[: width - 1]}…"
    return text.replace("$", r"\$")


def array(values: Any) -> np.ndarray:
    """Return a tensor as float64 numbers of numpy."""
    return values.detach().cpu().double().numpy()
