"""The page of an explanation: what makes the distance, class by class and sample by sample."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from otdd_flash.many.findings import CostSplit, Explanation, SamplePair, check_samples, extremes
from otdd_flash.pictures.plots import SAMPLES
from otdd_flash.pictures.sheets import is_image, sample_pictures, stacked
from otdd_flash.report.distance import LABEL_COST
from otdd_flash.report.page import Card, Column, Page
from otdd_flash.report.parts import MOST_PAIRS, class_tables, datasets_table, ending, headline
from otdd_flash.results import conventions
from otdd_flash.types import DatasetSummary, LabelledDataset

# samples that are shown at either end of a list
EXTREMES = 2 * SAMPLES


def explanation_page(
    result: Explanation, src: LabelledDataset | None, tgt: LabelledDataset | None
) -> Page:
    """Return the page of an explanation.

    Raises:
        DataError: datasets that the explanation is not of.
    """
    source, target = result.source, result.target
    check_samples(src, source)
    check_samples(tgt, target)
    page = Page(
        f"Why {source.name} and {target.name} are apart",
        f"{source.n:,} and {target.n:,} samples, {source.d:,} features",
    )
    headline(page, result.value, result.settings)
    page.heading("Features, labels, entropy")
    _split(page, result)
    page.heading("Classes")
    _entropies(page, source, target, result.class_mass, result.row_entropy)
    caption, number, name = LABEL_COST
    tables = [
        ("Share of the transport cost, %,", 100 * result.class_cost, "{:.2f}", "% of the cost"),
        (caption, result.label_cost, number, name),
    ]
    class_tables(page, source, target, result.class_mass, tables)
    page.heading("Samples")
    images = None
    if src is not None and tgt is not None and is_image(src) and is_image(tgt):
        images = (src, tgt)
    _sample_pairs(page, result, images)
    for role, data, summary, foreign, numbers in (
        ("source", src, source, result.source_foreign, result.source_rows),
        ("target", tgt, target, result.target_foreign, result.target_rows),
    ):
        _extremes(page, (role, summary), data, images is not None, (foreign, numbers))
    page.heading("Datasets")
    datasets_table(page, (("source", source), ("target", target)))
    page.heading("Evidence")
    page.facts(_evidence(result))
    machine = [("seconds", f"{result.seconds['total']:.2f}"), ("device", result.device)]
    ending(page, result.settings, machine, result.versions)
    return page


def _split(page: Page, result: Explanation) -> None:
    total = result.split.total
    if total > 0:
        parts = (("features", result.split.features), ("labels", result.split.labels))
        told = ", ".join(f"{name} {part / total:.1%}" for name, part in parts)
        page.paragraph(
            f"Of the squared distance: {told}, entropy {result.split.entropy / total:.1%}."
        )
    terms = [("source to target", result.cross)]
    if result.settings.debias:
        terms += [
            ("source to itself", result.source_self),
            ("target to itself", result.target_self),
        ]
    columns = [Column("term")]
    columns += [Column(name, "{:.6g}") for name in ("features", "labels", "entropy", "total")]
    page.table(
        "What each term is made of, in units of the cost",
        columns,
        [_row(name, part) for name, part in (*terms, ("squared distance", result.split))],
        note="squared distance = source to target, less half of what each dataset costs itself",
    )


def _row(name: str, part: CostSplit) -> tuple[str, float, float, float, float]:
    return name, part.features, part.labels, part.entropy, part.total


def _entropies(
    page: Page,
    source: DatasetSummary,
    target: DatasetSummary,
    mass: Tensor,  # (Vx, Vy)
    entropy: Tensor,  # (Vx,) bits
) -> None:
    columns = [
        Column("source class"),
        Column("goes most to"),
        Column("% of its mass", "{:.1f}"),
        Column("entropy, bits", "{:.3f}"),
    ]
    best = mass.argmax(1).tolist()
    rows = [
        (
            name,
            target.class_names[best[c]],
            100 * float(mass[c, best[c]] / mass[c].sum()),
            float(entropy[c]),
        )
        for c, name in enumerate(source.class_names[:MOST_PAIRS])
    ]
    most = len(target.class_names)
    note = f"0 bits: one target class; {float(np.log2(most)):.2f}: all {most} alike"
    if len(rows) < len(source.class_names):
        note += f"; the first {len(rows):,} of {len(source.class_names):,} classes"
    page.table("Where each class goes", columns, rows, note=note)


def _sample_pairs(
    page: Page,
    result: Explanation,
    images: tuple[LabelledDataset, LabelledDataset] | None,
) -> None:
    """Add the pairs of samples that pay the most."""
    if not result.pairs:
        return
    if images is not None:
        page.paragraph(
            "The sample pairs that carry the most of the cost: source above, target below."
        )
        page.small_cards(_pair_card(result, pair, images) for pair in result.pairs)
    columns = [
        Column("source class"),
        Column("target class"),
        *(Column(name, "{:d}") for name in ("source row", "target row")),
        Column("mass", "{:.3g}"),
        Column("cost of a unit", "{:.4g}"),
        Column("% of the cost", "{:.3g}"),
    ]
    rows = [
        (
            result.source.class_names[pair.source_class],
            result.target.class_names[pair.target_class],
            int(result.source_rows[pair.source]),
            int(result.target_rows[pair.target]),
            *(pair.mass, pair.cost, 100 * pair.share),
        )
        for pair in result.pairs
    ]
    page.table("Sample pairs", columns, rows)


def _pair_card(
    result: Explanation, pair: SamplePair, images: tuple[LabelledDataset, LabelledDataset]
) -> Card:
    pictures = [
        sample_pictures(data, torch.tensor([row]))
        for data, row in zip(images, (pair.source, pair.target), strict=True)
    ]
    names = (
        result.source.class_names[pair.source_class],
        result.target.class_names[pair.target_class],
    )
    return Card(stacked(*pictures), " → ".join(names), f"{pair.share:.3%} of the cost")


def _extremes(
    page: Page,
    side: tuple[str, DatasetSummary],  # source or target
    data: LabelledDataset | None,
    images: bool,  # whether its samples are shown
    samples: tuple[Tensor, Tensor],  # (n,) higher: more foreign; (n,) rows of the whole dataset
) -> None:
    """Add the samples that are nearest to the other dataset, and those most foreign to it."""
    role, name = side[0], side[1].name
    foreign, numbers = samples
    ends = dict(zip(("nearest", "most foreign"), extremes(foreign, EXTREMES), strict=True))
    if data is not None and images:
        page.strip(
            Card(
                np.concatenate(list(sample_pictures(data, rows)), axis=1),
                f"Samples of the {role} that are {kind}",
                name,
            )
            for kind, rows in ends.items()
        )
    columns = [
        Column("which"),
        Column("class"),
        Column("row", "{:d}"),
        Column("potential", "{:.5g}"),
    ]
    rows = [
        (
            f"{kind} {k + 1}",
            None if data is None else data.class_names[int(data.labels[row])],
            int(numbers[row]),
            float(foreign[row]),
        )
        for kind, chosen in ends.items()
        for k, row in enumerate(chosen.tolist())
    ]
    note = "the debiased potential: what more mass at a sample adds to the squared distance"
    page.table(f"Samples of the {role}, {name}", columns, rows, note=note)


def _evidence(result: Explanation) -> list[tuple[str, str]]:
    transport = result.value.transport
    return [
        ("transport", f"lower {transport.lower:.7g} <= OT <= upper {transport.upper:.7g}"),
        ("entropic", f"{transport.entropic:.7g}, of the regularised plan"),
        ("epsilon", f"{result.epsilon:.5g} (mean cost {result.value.mean_cost:.5g})"),
        ("passes", f"{result.value.passes}"),
        ("where", conventions(result.settings)),
        *(("note", note) for note in result.notes),
    ]
