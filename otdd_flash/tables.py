"""Matrices, rankings, explanations and values as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from otdd_flash.confidence import LEVEL
from otdd_flash.many.findings import (
    CostSplit,
    Explanation,
    MatrixResult,
    PairValue,
    Ranking,
    Values,
    extremes,
)
from otdd_flash.results import TABLE_ROWS, clipped, conventions, floor_text, sampled
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import DatasetSummary, NoiseFloor

LABEL = 13  # width of the first column
NAME = 24  # characters of a dataset's name
WIDE = 8  # datasets whose matrix is printed; of more, the nearest of each
HEADS = 72  # characters of the names above a matrix, all together, where they are many
LISTED = 10  # samples, pairs and class pairs in a text


def _rows(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<{LABEL}}{text}" for name, text in rows)


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table: numbers to the right, the first column and what holds words to the left."""
    columns = list(zip(head, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    left = [k == 0 or any(cell[:1].isalpha() for cell in c[1:]) for k, c in enumerate(columns)]
    lines = []
    for row in (head, *body):
        cells = (
            f"{cell:<{width}}" if to_left else f"{cell:>{width}}"
            for cell, width, to_left in zip(row, widths, left, strict=True)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _asked(settings: OTDDSettings, epsilon: float, scope: str) -> list[tuple[str, str]]:
    share = isinstance(settings.epsilon, str) and settings.epsilon.strip().endswith("%")
    how = f"{str(settings.epsilon).strip()} of {scope}" if share else "given"
    return [("epsilon", f"{epsilon:.5g} ({how})"), ("where", conventions(settings))]


def _ended(errors: Sequence[float], converged: bool, settings: OTDDSettings) -> tuple[str, str]:
    verdict = "converged" if converged else "NOT CONVERGED"
    return ("marginals", f"L1 error <= {max(errors):.1e} (tol {settings.tol:g}), {verdict}")


def _last(seconds: dict[str, float], device: str, notes: Sequence[str]) -> list[tuple[str, str]]:
    stages = ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
    return [("seconds", f"{stages}, on {device}"), *(("note", note) for note in notes)]


def _drawn(datasets: Iterable[DatasetSummary]) -> list[tuple[str, str]]:
    found = [(d.name, sampled(d.provenance)) for d in datasets]
    return [("sampled", f"{name}: {text}") for name, text in dict.fromkeys(found) if text]


def _whole_rows(datasets: Iterable[tuple[DatasetSummary, Tensor]]) -> list[tuple[str, str]]:
    """Say what row numbers count where samples were left out."""
    names = [
        clipped(dataset.name, NAME)
        for dataset, rows in datasets
        if not torch.equal(rows, torch.arange(len(rows)))
    ]
    return [
        ("rows", f"count all samples of {name}, drawn or not, from 0")
        for name in dict.fromkeys(names)
    ]


def _floors(names: Sequence[str], floors: Sequence[NoiseFloor]) -> list[tuple[str, str]]:
    return [
        ("noise floor", f"{clipped(name, NAME)}: {floor_text(floor)}")
        for name, floor in zip(names, floors, strict=False)
    ]


def matrix_text(result: MatrixResult) -> str:
    """Return a matrix for people; of many datasets, the nearest ones of each."""
    names = [clipped(name, NAME) for name in result.names]
    count = len(names)
    if count <= WIDE:
        body = [
            [name, *(f"{value:.4g}" for value in row)]
            for name, row in zip(names, result.distance.tolist(), strict=True)
        ]
        head = max(12, HEADS // count)
        table = grid(["distance", *(clipped(name, head) for name in names)], body)
    else:
        body = []
        for k, row in enumerate(result.distance.tolist()):
            near = sorted((j for j in range(count) if j != k), key=row.__getitem__)[:3]
            body.append([names[k], *(f"{names[j]} {row[j]:.4g}" for j in near)])
        table = grid(["dataset", "nearest", "second", "third"], body)
    gap = (result.squared_upper - result.squared_lower).max()
    rows = [
        ("bounds", f"of the squared distances, at most {float(gap):.2g} apart"),
        _ended([float(result.marginal_error.max())], bool(result.converged.all()), result.settings),
        *_asked(result.settings, result.epsilon, "the mean cost of all pairs"),
    ]
    if result.half_width is not None:
        width = f"squared +- {float(result.half_width.max()):.2g} at most"
        resamples = f"{result.resamples} resamples, seed {result.seed}"
        rows.append(("bootstrap", f"{width} ({LEVEL:.0%} of {resamples})"))
    rows += _floors(result.names, result.noise_floor)
    rows += _drawn(result.datasets) + _last(result.seconds, result.device, result.notes)
    return f"{table}\n\n{_rows(rows)}"


def ranking_text(result: Ranking) -> str:
    """Return a ranking for people."""
    scored = any(source.score is not None for source in result.sources)
    head = ["source", "distance", "between", "and"] + ["score"] * scored
    body = []
    for source in result.sources:
        low, high = source.value.distance_interval or source.value.distance_bounds
        row = [
            clipped(source.name, NAME),
            *(f"{v:.6g}" for v in (source.value.distance, low, high)),
        ]
        if scored:
            row.append("-" if source.score is None else f"{source.score:.6g}")
        body.append(row)
    first = result.sources[0].value.interval
    kind = "bounds of the solve"
    if first is not None:
        kind = f"{first.level:.0%} of {first.resamples} resamples, seed {first.seed}"
    target = f"{clipped(result.target.name, NAME)} ({result.target.n:,} samples)"
    rows = [("target", target), ("between", kind)]
    for name, found in (("Pearson", result.pearson), ("Spearman", result.spearman)):
        if found is not None:
            rows.append((name, f"{found[0]:.4f} of distance and score (p = {found[1]:.2g})"))
    values = [source.value for source in result.sources]
    rows += [
        _ended(
            [v.marginal_error for v in values], all(v.converged for v in values), result.settings
        ),
        *_asked(result.settings, result.epsilon, "the mean cost of all sources"),
        *_floors([result.target.name], result.noise_floor),
        *_drawn([result.target, *(s.dataset for s in result.sources)]),
        *_last(result.seconds, result.device, result.notes),
    ]
    return f"{grid(head, body)}\n\n{_rows(rows)}"


def _value_rows(value: PairValue) -> list[tuple[str, str]]:
    low, high = value.squared_bounds
    return [
        ("distance", f"{value.distance:.7g} = sqrt(squared)"),
        ("squared", f"{value.squared:.7g}, between {low:.7g} and {high:.7g}"),
    ]


def explanation_text(result: Explanation) -> str:
    """Return an explanation for people."""
    parts = [_rows(_value_rows(result.value)), _split_text(result), _classes_text(result)]
    source, target = result.source.class_names, result.target.class_names
    if result.pairs:
        body = [
            [
                str(int(result.source_rows[pair.source])),
                clipped(source[pair.source_class], NAME),
                str(int(result.target_rows[pair.target])),
                clipped(target[pair.target_class], NAME),
                f"{pair.cost:.5g}",
                f"{pair.share:.2%}",
            ]
            for pair in result.pairs[:LISTED]
        ]
        head = ["source row", "class", "target row", "class", "cost", "of <P, C>"]
        parts.append(grid(head, body))
    rows = []
    for name, score, numbers in (
        ("source", result.source_foreign, result.source_rows),
        ("target", result.target_foreign, result.target_rows),
    ):
        near, far = (_listed(numbers[found]) for found in extremes(score, 5))
        rows.append((name, f"nearest rows {near}; most foreign {far}"))
    rows += [
        _ended([result.value.marginal_error], result.value.converged, result.settings),
        *_asked(result.settings, result.epsilon, "the mean cost"),
        *_drawn([result.source, result.target]),
        *_whole_rows([(result.source, result.source_rows), (result.target, result.target_rows)]),
        *_last(result.seconds, result.device, result.notes),
    ]
    return "\n\n".join([*parts, _rows(rows)])


def _listed(rows: Tensor) -> str:
    return ", ".join(map(str, rows.tolist()))


def _split_text(result: Explanation) -> str:
    def line(name: str, split: CostSplit) -> list[str]:
        parts = (split.features, split.labels, split.entropy, split.total)
        return [name, *(f"{part:.6g}" for part in parts)]

    body = [line("squared", result.split), line("source to target", result.cross)]
    if result.settings.debias:
        body += [
            line("source to itself", result.source_self),
            line("target to itself", result.target_self),
        ]
    return grid(["made of", "features", "labels", "entropy", "total"], body)


def _classes_text(result: Explanation) -> str:
    """Return where each source class goes, most mass first, and how spread out."""
    body, names = [], result.source.class_names
    for c, name in enumerate(names[:TABLE_ROWS]):
        mass = result.class_mass[c]
        total = float(mass.sum())
        order = mass.argsort(descending=True)[:3].tolist()
        goes = ", ".join(
            f"{clipped(result.target.class_names[k], 16)} {float(mass[k]) / total:.0%}"
            for k in order
            if total > 0
        )
        paid = float(result.class_cost[c].sum())
        body.append(
            [clipped(name, NAME), f"{float(result.row_entropy[c]):.2f}", f"{paid:.1%}", goes]
        )
    table = grid(["source class", "bits", "of <P, C>", "goes to"], body)
    rest = len(names) - len(body)
    return f"{table}\n... and {rest:,} classes more (all are in --json)" if rest else table


def values_text(result: Values) -> str:
    """Return the worst samples for people."""
    names = result.source.class_names
    parts = []
    for score, title in (
        (result.value, "most foreign"),
        (result.label, "label fits least"),
    ):
        body = [
            [
                str(int(result.rows[row])),
                clipped(_class_name(result, row, names), NAME),
                *(
                    f"{float(part[row]):.4g}"
                    for part in (result.value, result.features, result.class_part, result.label)
                ),
            ]
            for row in extremes(score, LISTED)[1].tolist()
        ]
        parts.append(grid([title, "class", "value", "features", "class part", "label"], body))
    low, high = result.squared_bounds
    rows = [
        ("squared", f"{result.squared:.7g}, between {low:.7g} and {high:.7g}"),
        _ended([result.marginal_error], result.converged, result.settings),
        *_asked(result.settings, result.epsilon, "the mean cost"),
        *_drawn([result.source, result.target]),
        *_whole_rows([(result.source, result.rows)]),
        *_last(result.seconds, result.device, result.notes),
    ]
    return "\n\n".join([*parts, _rows(rows)])


def _class_name(result: Values, row: int, names: Sequence[str]) -> str:
    return names[int(result.labels[row])]
