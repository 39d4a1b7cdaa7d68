"""From raw samples to points of one space: pixels, table columns, encoders, geometry."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from otdd_flash.datasets.images import common_form, look_steps, pixel_steps
from otdd_flash.datasets.labelling import clustered
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.scaling import standardised, table_points
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.shared import pca_hint, same_columns
from otdd_flash.errors import DataError
from otdd_flash.ranges import range_notes
from otdd_flash.samples import Arrays, Images, Rows, Texts
from otdd_flash.types import LabelledDataset, Progress

Points = tuple[RawDataset, Tensor]  # a dataset and its points (n, ...)


def represent_steps(
    raws: Sequence[RawDataset],  # labels settled, samples drawn
    settings: LoadSettings,
) -> Generator[Progress, None, list[LabelledDataset]]:
    """Return datasets whose points lie in one space, yielding progress.

    Raises:
        DataError: samples of different spaces, or that an encoder cannot take.
    """
    kind = settings.encoder_spec.kind
    if kind in ("pixels", "pca"):
        found = yield from _base_steps(raws, settings)
    else:
        found = yield from _encoded_steps(raws, settings)
    if kind == "pca":
        from otdd_flash.embed.components import project

        projected = project([points for _, points in found], settings.encoder_spec.components)
        found = _into_one_space(found, projected)
    check_spaces(found)
    return [_finished(raw, points, settings) for raw, points in found]


def _encoded_steps(
    raws: Sequence[RawDataset], settings: LoadSettings
) -> Generator[Progress, None, list[Points]]:
    """Encode each dataset on its own; an encoder of the user's gets the points of the base."""
    from otdd_flash.embed import encode_steps, make_encoder

    given: list[RawDataset] = list(raws)
    if settings.encoder_spec.kind == "own" and not any(isinstance(r.samples, Texts) for r in raws):
        based = yield from _base_steps(raws, settings)
        given = [replace(raw, samples=Arrays.of(points)) for raw, points in based]
    encoder = make_encoder(settings.encoder_spec, settings.weights, settings.device)
    out = []
    for raw in given:
        points, said = yield from encode_steps(
            raw.samples, encoder, raw.name, settings.batch_size, settings.cache
        )
        out.append((raw.noted(*said, encoder=encoder.title), points))
    return out


def _base_steps(
    raws: Sequence[RawDataset], settings: LoadSettings
) -> Generator[Progress, None, list[Points]]:
    """Bring samples to points without an encoder: tables by tables, images by images."""
    found: dict[int, Points] = {}
    for raw in raws:
        if isinstance(raw.samples, Texts):
            raise DataError(
                f"{raw.name}: holds texts, which need an encoder: encoder='sentence:MODEL' "
                "(--encoder sentence:MODEL), MODEL being a folder or a name of the hub"
            )
    tables = [k for k, raw in enumerate(raws) if isinstance(raw.samples, Rows)]
    mixed = 0 < len(tables) < len(raws)
    if mixed and settings.scale == "auto":
        other = next(raw for raw in raws if not isinstance(raw.samples, Rows))
        raise DataError(
            f"{raws[tables[0]].name} is a table, whose columns are standardised, {other.name} is "
            "not one; choose scale='none' or scale='standard' for both (--scale none)"
        )
    groups = [tables] if tables else []
    if settings.encoder_spec.kind == "pca" and not same_columns([raws[k] for k in tables]):
        groups = [[k] for k in tables]
    # beside arrays, tables are scaled with these
    own = replace(settings, scale="none") if mixed else settings
    for group in groups:
        done, clouds = table_points([raws[k] for k in group], own, alone=len(raws) == 1)
        found.update(zip(group, zip(done, clouds, strict=True), strict=True))
    pictures = yield from _image_steps(raws, settings)
    found.update(pictures)
    for k, raw in enumerate(raws):
        if k not in found:
            found[k] = (raw, raw.samples.all())
    out = [found[k] for k in range(len(raws))]
    rest = [k for k in range(len(raws)) if mixed or k not in tables]
    if settings.scale == "standard" and rest:
        scaled, said = standardised([out[k][1].reshape(len(out[k][0]), -1) for k in rest])
        shaped = [
            (points.reshape(out[k][1].shape), said) for k, points in zip(rest, scaled, strict=True)
        ]
        for k, one in zip(rest, _into_one_space([out[k] for k in rest], shaped), strict=True):
            out[k] = one
    return out


def _into_one_space(
    before: Sequence[Points],
    after: Sequence[tuple[Tensor, str]],  # (n, ...) of each, and what to announce
) -> list[Points]:
    """Put points in the place of others; distances compare the mark of what was done together."""
    space = None
    if len({points[0].numel() for _, points in before}) == 1:
        mark = hashlib.sha256()
        for points, _ in after:
            # samples that another scaling or projection would have put elsewhere
            mark.update(points[:64].contiguous().numpy().data)
        space = mark.hexdigest()
    return [
        (raw.noted(said, space=space), points)
        for (raw, _), (points, said) in zip(before, after, strict=True)
    ]


def _image_steps(
    raws: Sequence[RawDataset], settings: LoadSettings
) -> Generator[Progress, None, dict[int, Points]]:
    """Bring images to one form; arrays that look like images take part only where others do."""
    asked = settings.image_size is not None or settings.color != "auto"
    found = {}
    for k, raw in enumerate(raws):
        if isinstance(raw.samples, (Arrays, Images)):
            look = yield from look_steps(raw)
            if look is not None:
                found[k] = look
            elif asked:
                raise DataError(
                    f"{raw.name}: its samples of shape {tuple(raw.samples.one().shape)} are no "  # type: ignore[union-attr]
                    "images, image_size and color do not apply; expected (h, w), (c, h, w) or "
                    "(h, w, c)"
                )
    if asked and len(found) < len(raws):
        other = next(raw for k, raw in enumerate(raws) if k not in found)
        raise DataError(f"{other.name}: holds no images, image_size and color do not apply")
    if not found:
        return {}
    out: dict[int, Points] = {}
    form = common_form([(raws[k], look) for k, look in found.items()], settings)
    for k, look in found.items():
        out[k] = yield from pixel_steps(raws[k], look, form)
    notes = range_notes([(raw.name, points) for raw, points in out.values()], settings.cosine)
    for (k, (raw, points)), note in zip(out.items(), notes, strict=True):
        if note and note not in raw.announced:
            # distances do not say it again
            out[k] = raw.noted(note, pixels="told"), points
    return out


def check_spaces(found: Sequence[Points]) -> None:
    """Refuse datasets of different numbers of features.

    Raises:
        DataError: naming two datasets, both counts, and what brings them together.
    """
    for raw, points in found[1:]:
        first, other = found[0][1].shape[1:], points.shape[1:]
        if first.numel() != other.numel():
            raise DataError(
                f"{found[0][0].name} has {first.numel():,} features a sample {tuple(first)}, "
                f"{raw.name} has {other.numel():,} {tuple(other)}; encode both alike, for example "
                f"with {pca_hint(first.numel(), other.numel())}"
            )


def unit_length(points: Tensor, name: str) -> Tensor:  # (n, d) floats
    """Divide each sample by its norm: squared distances become 2 (1 - cosine).

    Raises:
        DataError: samples that are zero, which have no direction.
    """
    flat = points.reshape(points.shape[0], -1)
    flat = flat if flat.dtype == torch.float64 else flat.to(torch.float32)
    norms = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    zero = int((norms == 0).sum())
    if zero:
        raise DataError(
            f"{name}: {zero:,} of {len(flat):,} samples are zero and have no direction; drop them, "
            "or leave cosine off"
        )
    return (flat / norms[:, None]).to(flat.dtype)


def _finished(raw: RawDataset, points: Tensor, settings: LoadSettings) -> LabelledDataset:
    """Return the dataset, its clusters found and its lengths made one where asked."""
    said = list(raw.announced)
    shape = tuple(points.shape[1:])
    if settings.cosine:
        points = unit_length(points, raw.name)
        said.append("samples divided by their norms: squared distances are 2 (1 - cosine)")
        raw = raw.noted(cosine=True)
    elif raw.origin is not None:
        return raw.origin
    rule, count = settings.clusters
    labels, names, provenance = raw.labels, raw.class_names, dict(raw.provenance)
    if rule == "kmeans":
        flat = points.reshape(points.shape[0], -1)
        labels = clustered(flat, count, settings.seed, raw.name).numpy()
        names = tuple(f"cluster {k}" for k in range(count))
        said.append(f"labels are {count} clusters found by k-means, seed {settings.seed}")
        provenance["labels"] = settings.labels
    if said:
        provenance["announced"] = said
    return LabelledDataset(
        points,
        labels,
        weights=raw.weights,
        name=raw.name,
        class_names=None if labels is None else names,
        sample_shape=shape or None,
        provenance=provenance,
        rows=raw.rows,
    )
