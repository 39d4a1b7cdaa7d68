"""The page of a matrix: all distances, a map and a tree, what vouches for each pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from otdd_flash.confidence import LEVEL
from otdd_flash.errors import DataError
from otdd_flash.many.findings import MatrixResult
from otdd_flash.pictures.maps import plot_map, plot_tree
from otdd_flash.pictures.sheets import class_sheet, is_image
from otdd_flash.report.page import Card, Cells, Column, Page
from otdd_flash.report.parts import datasets_table, ending, heat_table
from otdd_flash.results import conventions, floor_text
from otdd_flash.types import LabelledDataset

# a page shows the whole table of at most this many datasets, and this many pairs
MOST_DATASETS, MOST_PAIRS = 50, 200
# classes and samples of each that a picture of a dataset shows
CLASSES, EACH = 5, 2


def matrix_page(result: MatrixResult, datasets: Sequence[LabelledDataset]) -> Page:
    """Return the page of a matrix; samples are shown of datasets that are given.

    Raises:
        DataError: datasets that the matrix is not of.
    """
    count = len(result.names)
    if datasets and [len(data) for data in datasets] != [side.n for side in result.datasets]:
        raise DataError(
            f"{len(datasets)} datasets arrived, the matrix is of {count}; give the same ones in "
            "the same order, or none"
        )
    page = Page(
        f"Distances among {count} datasets",
        f"Optimal transport dataset distances at one eps, {result.datasets[0].d:,} features",
    )
    pairs = _pairs(result)
    _headline(page, result, pairs)
    page.heading("Distances")
    if count <= MOST_DATASETS:
        names = ("dataset", result.names, result.names)
        heat_table(page, "Distance between the datasets", names, result.distance, "{:.4g}")
    _drawings(page, result)
    page.heading("Pairs")
    _pair_table(page, result, pairs)
    page.heading("Datasets")
    _samples(page, result, datasets)
    sides = tuple(zip(result.names, result.datasets, strict=True))
    datasets_table(page, sides)
    page.heading("Evidence")
    page.facts(_evidence(result))
    stages = ", ".join(f"{name} {value:.2f}" for name, value in result.seconds.items())
    ending(page, result.settings, [("seconds", stages), ("device", result.device)], result.versions)
    return page


def _pairs(result: MatrixResult) -> list[tuple[int, int]]:
    """Return all pairs, the nearest first."""
    rows, columns = torch.triu_indices(len(result.names), len(result.names), offset=1)
    order = result.squared[rows, columns].argsort(stable=True)
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


def _headline(page: Page, result: MatrixResult, pairs: list[tuple[int, int]]) -> None:
    def told(pair: tuple[int, int]) -> str:
        return " and ".join(result.names[k] for k in pair)

    good = bool(result.converged.all())
    nearest, farthest = pairs[0], pairs[-1]
    page.headline(
        f"least distance: {told(nearest)}",
        f"{float(result.distance[nearest]):.7g}",
        f"The largest of {len(pairs):,}: {float(result.distance[farthest]):.7g}, {told(farthest)}",
        f"{'Converged' if good else 'NOT CONVERGED'}: L1 error of the marginals at most "
        f"{float(result.marginal_error.max()):.1e}, tolerance {result.settings.tol:g}",
        good=good,
    )


def _drawings(page: Page, result: MatrixResult) -> None:
    figure = Figure(figsize=(7.5, 5.5), layout="constrained")
    plot_map(result, figure)
    page.figure(figure, "A plane in which the datasets lie about as far apart as they are")
    figure = Figure(figsize=(7.5, 1.4 + 0.3 * len(result.names)), layout="constrained")
    plot_tree(result, figure)
    page.figure(figure, "A joint lies at the mean distance of what it joins")


def _pair_table(page: Page, result: MatrixResult, pairs: list[tuple[int, int]]) -> None:
    """Add the pairs with their bounds and evidence, the nearest first."""
    shown = [
        ("distance", result.distance, "{:.6g}"),
        ("squared", result.squared, "{:.6g}"),
        ("at least", result.squared_lower, "{:.6g}"),
        ("at most", result.squared_upper, "{:.6g}"),
        ("+- by resamples", result.half_width, "{:.2g}"),
        ("transport, at least", result.transport_lower, "{:.6g}"),
        ("transport, at most", result.transport_upper, "{:.6g}"),
        ("mean cost", result.mean_cost, "{:.5g}"),
        ("marginal error", result.marginal_error, "{:.1e}"),
    ]
    known = [(name, values, number) for name, values, number in shown if values is not None]
    columns = [Column("dataset"), Column("and")]
    columns += [Column(name, number) for name, _, number in known]
    columns += [Column("converged")]
    rows: list[Cells] = [
        (
            result.names[i],
            result.names[j],
            *(float(values[i, j]) for _, values, _ in known),
            "yes" if bool(result.converged[i, j]) else "NO",
        )
        for i, j in pairs[:MOST_PAIRS]
    ]
    whole = len(rows) == len(pairs)
    note = "" if whole else f"the nearest {len(rows):,} of {len(pairs):,}"
    page.table("Pairs of datasets", columns, rows, note=note)


def _samples(page: Page, result: MatrixResult, datasets: Sequence[LabelledDataset]) -> None:
    """Add the first samples of the first classes of each dataset of images."""
    shown = [(k, data) for k, data in enumerate(datasets[:MOST_DATASETS]) if is_image(data)]
    cards = []
    for k, data in shown:
        sheet = class_sheet(data, CLASSES, EACH)
        cards.append(Card(sheet, result.names[k], f"{len(data):,} samples"))
    if cards:
        page.cards(cards)


def _evidence(result: MatrixResult) -> list[tuple[str, str]]:
    rows = [
        ("epsilon", f"{result.epsilon:.5g}, the same for all pairs"),
        ("where", conventions(result.settings)),
    ]
    if result.half_width is not None:
        resamples = f"{result.resamples} resamples, seed {result.seed}"
        rows.append(("bootstrap", f"{LEVEL:.0%} intervals of squared, {resamples}"))
    floors = zip(result.names, result.noise_floor, strict=False)
    rows += [("noise", f"floor of {name}: {floor_text(floor)}") for name, floor in floors]
    return [*rows, *(("note", note) for note in result.notes)]
