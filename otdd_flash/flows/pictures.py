"""Pictures of a recorded flow: its curve, the same particles at each kept step, a film of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw
from torch import Tensor

from otdd_flash.files import written_whole
from otdd_flash.flows.record import COLUMNS, Kept
from otdd_flash.pictures.figures import short
from otdd_flash.pictures.png import SOURCE_COLOUR, TARGET_COLOUR, write_png
from otdd_flash.pictures.sheets import is_channels_first, white_level
from otdd_flash.types import LabelledDataset

DPI = 110
# classes and particles of each in a grid, and of each in the film strip
MOST_CLASSES, PARTICLES, STRIP_PARTICLES = 20, 12, 2
MOST_COLUMNS = 11  # kept steps in the strip
LEAST_SIDE = 56  # pixels of a picture of one sample, which is enlarged by a whole factor
CAPTION, GAP = 16, 2  # pixels above a grid and between its pictures
LETTER, LONGEST_NAME = 7, 12  # pixels of a letter, letters of a class name beside the strip
PAUSE, LAST_PAUSE = 180, 2000  # milliseconds of a frame of the film
SCATTER = 1000  # points in a scatter


@dataclass(frozen=True)
class Cast:
    """The particles that pictures show: the same ones in the same places at every step."""

    rows: Tensor  # (classes, k) int64, -1 where a class has too few samples
    shape: tuple[int, ...]  # of a sample
    low: float  # value shown black
    high: float  # and white

    @staticmethod
    def of(src: LabelledDataset, tgt: LabelledDataset, particles: int) -> Cast:
        """Choose the first particles of each of the first classes of the source."""
        rows = torch.full((min(src.classes, MOST_CLASSES), particles), -1, dtype=torch.int64)
        for c in range(len(rows)):
            found = (src.labels == c).nonzero()[:particles, 0].cpu()
            rows[c, : len(found)] = found
        if src.points.dtype == tgt.points.dtype == torch.uint8:
            white = max(white_level(src), white_level(tgt))
            return Cast(rows, src.sample_shape, 0.0, white)
        ends = [float(f(d.points.double())) for d in (src, tgt) for f in (torch.min, torch.max)]
        return Cast(rows, src.sample_shape, min(ends), max(ends))

    def pictures(
        self,
        kept: Kept,
        least_side: int = LEAST_SIDE,  # smaller pictures are enlarged by a whole factor
    ) -> np.ndarray:  # (classes, k, h, w, 3) uint8, white where none
        """Return the particles at a kept step."""
        there = self.rows.reshape(-1) >= 0
        points = kept.rows(self.rows.reshape(-1)[there]).double()
        span = max(self.high - self.low, np.finfo(float).tiny)
        shown = (255 * (points - self.low) / span).round().clamp(0, 255).to(torch.uint8).numpy()
        shown = shown.reshape(len(shown), *self.shape)
        if shown.ndim == 3:
            shown = shown[..., None]
        elif is_channels_first(self.shape):
            shown = np.moveaxis(shown, 1, -1)
        # one channel is spread over three; an alpha channel is left out
        shown = np.broadcast_to(shown[..., :3], (*shown.shape[:3], 3))
        side = max(1, -(-least_side // max(shown.shape[1:3])))
        shown = shown.repeat(side, axis=1).repeat(side, axis=2)
        out = np.full((there.numel(), *shown.shape[1:]), 255, np.uint8)
        out[there.numpy()] = shown
        return out.reshape(*self.rows.shape, *shown.shape[1:])


def grid_picture(cast: Cast, kept: Kept) -> Image.Image:
    """Return the particles of a step, a class a row."""
    return _captioned(_tiles(cast.pictures(kept)), f"step {kept.step}   S = {kept.value:.4g}")


def some_of(kept: Sequence[Kept]) -> list[Kept]:
    """Return evenly spread steps, the first and the last among them."""
    places = np.linspace(0, len(kept) - 1, min(len(kept), MOST_COLUMNS))
    return [kept[k] for k in sorted({round(place) for place in places})]


def film_strip(cast: Cast, kept: Sequence[Kept], class_names: Sequence[str]) -> Image.Image:
    """Return particles of every class from step to step, a step a column."""
    chosen = some_of(kept)
    columns = [cast.pictures(step) for step in chosen]
    classes, count, height, width = columns[0].shape[:4]
    stacked = np.stack(columns, axis=2).reshape(classes * count, len(columns), height, width, 3)
    tiles = _tiles(stacked)
    names = [name[:LONGEST_NAME] for name in class_names[:classes]]
    margin = 8 + LETTER * max(map(len, names))
    picture = Image.new("RGB", (margin + tiles.shape[1], CAPTION + len(tiles)), "white")
    picture.paste(Image.fromarray(tiles), (margin, CAPTION))
    draw = ImageDraw.Draw(picture)
    for column, step in enumerate(chosen):
        draw.text((margin + column * (width + GAP) + 3, 2), str(step.step), fill="black")
    for c, name in enumerate(names):
        middle = CAPTION + count * (height + GAP) * (c + 0.5)
        draw.text((4, middle - CAPTION / 2), name, fill="black")
    return picture


def _tiles(pictures: np.ndarray) -> np.ndarray:  # (rows, columns, h, w, 3) -> (height, width, 3)
    """Put pictures side by side with white gaps."""
    rows, columns, height, width = pictures.shape[:4]
    framed = np.full((rows, columns, height + GAP, width + GAP, 3), 255, np.uint8)
    framed[:, :, :height, :width] = pictures
    return framed.swapaxes(1, 2).reshape(rows * (height + GAP), columns * (width + GAP), 3)


def _captioned(tiles: np.ndarray, text: str) -> Image.Image:
    picture = Image.new("RGB", (tiles.shape[1], CAPTION + len(tiles)), "white")
    picture.paste(Image.fromarray(tiles), (0, CAPTION))
    ImageDraw.Draw(picture).text((3, 2), text, fill="black")
    return picture


@dataclass(frozen=True, eq=False)
class Plane:
    """The plane of the first two principal components of both datasets, where nothing is a picture.

    Features of one dimension have a second axis of zeros.
    """

    centre: Tensor  # (d,)
    directions: Tensor  # (d, 2)
    rows: Tensor  # (k,) particles that are shown
    target: np.ndarray  # (l, 2)
    limits: tuple[float, float, float, float]

    @staticmethod
    def of(src: LabelledDataset, tgt: LabelledDataset) -> Plane:
        """Choose every k-th particle, and the plane that both datasets spread in most."""
        rows = [torch.arange(0, len(d), -(-len(d) // SCATTER)) for d in (src, tgt)]
        points = [d.points.cpu()[r].double() for d, r in zip((src, tgt), rows, strict=True)]
        both = torch.cat(points)
        centre = both.mean(0)
        axes = torch.linalg.svd(both - centre, full_matrices=False)[2][:2].mT
        directions = torch.zeros((both.shape[1], 2), dtype=torch.float64)
        directions[:, : axes.shape[1]] = axes
        shown = ((both - centre) @ directions).numpy()
        low, high = shown.min(0), shown.max(0)
        room = 0.05 * (high - low).max() or 1.0
        limits = (low[0] - room, high[0] + room, low[1] - room, high[1] + room)
        target = ((points[1] - centre) @ directions).numpy()
        return Plane(centre, directions, rows[0], target, limits)

    def picture(self, kept: Kept) -> Image.Image:
        """Return the particles of a step among the target's samples, coloured by class."""
        figure = Figure(figsize=(6.4, 5.4), dpi=DPI, layout="constrained")
        canvas = FigureCanvasAgg(figure)
        self.draw(figure.add_subplot(), kept)
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])

    def draw(self, axes: Axes, kept: Kept) -> None:
        """Draw the particles of a step."""
        x = ((kept.rows(self.rows).double() - self.centre) @ self.directions).numpy()
        axes.scatter(
            self.target[:, 0],
            self.target[:, 1],
            s=12,
            c="0.75",
            marker="x",
            linewidths=0.8,
            label="target",
        )
        labels = kept.labels()[self.rows].numpy()
        for c, name in enumerate(kept.class_names):
            if (labels == c).any():
                label = short(name, 16) if c < MOST_CLASSES else None
                part = x[labels == c]
                axes.scatter(part[:, 0], part[:, 1], s=10, alpha=0.7, label=label)
        axes.axis(self.limits)
        axes.set_title(f"step {kept.step}, S = {kept.value:.4g}", fontsize=11)
        axes.legend(fontsize=8, loc="best")


def save_picture(picture: Image.Image, path: Path) -> None:
    """Write a PNG, grey where it has no colours."""
    bands = np.asarray(picture)
    if (bands == bands[..., :1]).all():
        picture = picture.convert("L")
    with written_whole(path) as file:
        picture.save(file, format="png", optimize=True)


def save_film(frames: Iterator[Image.Image], path: Path) -> None:
    """Write a GIF that rests on its last frame and begins again."""
    shown = [frame.convert("P", palette=Image.Palette.ADAPTIVE, colors=128) for frame in frames]
    pauses = [PAUSE] * (len(shown) - 1) + [LAST_PAUSE]
    with written_whole(path) as file:
        shown[0].save(
            file,
            format="gif",
            save_all=True,
            append_images=shown[1:],
            duration=pauses,
            loop=0,
            optimize=True,
        )


def save_curve(curve: Sequence[Sequence[float]], title: str, path: Path) -> None:
    """Write value and marginal error by step."""
    figure = Figure(figsize=(7.0, 4.6), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    draw_curve(figure, curve, title)
    with written_whole(path) as file:
        write_png(figure, file, DPI, False)


def draw_curve(figure: Figure, curve: Sequence[Sequence[float]], title: str = "") -> None:
    """Draw value and marginal error by step."""
    columns = dict(zip(COLUMNS, np.array(curve, dtype=float).T, strict=True))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    upper.plot(columns["step"], columns["value"], color=SOURCE_COLOUR, label="S")
    if (columns["objective"] != columns["value"]).any():
        label = "S + potential + interaction"
        upper.plot(columns["step"], columns["objective"], color="0.4", linestyle="--", label=label)
        upper.legend(fontsize=9)
    if (columns["value"] > 0).all():
        upper.set_yscale("log")
    upper.set_title(title, fontsize=11)
    upper.set_ylabel("squared distance S")
    # an error of 0 has no place on a logarithmic axis
    error = np.where(columns["marginal_error"] > 0, columns["marginal_error"], np.nan)
    lower.plot(columns["step"], error, color=TARGET_COLOUR)
    lower.set_yscale("log")
    lower.set_ylabel("marginal error")
    lower.set_xlabel("step")
    lower.xaxis.get_major_locator().set_params(integer=True)
