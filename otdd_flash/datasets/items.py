"""Samples that come one by one, with or without their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import dense_points
from otdd_flash.datasets.columns import LABEL_NAMES
from otdd_flash.datasets.named_arrays import POINTS, tidy_labels
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError, LabelError, SettingsError
from otdd_flash.samples import Arrays, Images, Texts


def split_item(
    item: Any,  # (x, y), {"image": x, "label": y}, or x
    name: str,
    settings: LoadSettings,
    label: str | None,
) -> tuple[Any, Any, bool]:  # the sample, its label, whether it has one
    """Tell the sample and the label of an item apart.

    Raises:
        DataError, LabelError: a tuple of another length, a mapping whose keys do not tell.
    """
    if isinstance(item, (tuple, list)):
        if len(item) == 1:
            return item[0], None, False
        if len(item) != 2:
            raise DataError(
                f"{name}: its items are tuples of {len(item)}, expected pairs (sample, label); map "
                "them to pairs first"
            )
        return item[0], item[1], True
    if not isinstance(item, Mapping):
        return item, None, False
    keys = ", ".join(map(repr, item))
    found = [k for k in item if str(k).lower() in LABEL_NAMES] if label is None else [label]
    if len(found) > 1:
        raise LabelError(
            f"{name}: the keys {found} all look like labels; choose one with label={found[0]!r}"
        )
    if found and found[0] not in item:
        raise LabelError(f"{name}: its items have no {found[0]!r}, they have {keys}")
    rest = [k for k in item if k not in found]
    if settings.features is not None:
        rest = [k for k in rest if k == settings.features]
    elif len(rest) > 1:
        rest = [k for k in rest if str(k).lower() in (*POINTS, "image", "img", "text", "sentence")]
    if len(rest) != 1:
        raise DataError(
            f"{name}: its items have the keys {keys}; name the one of the samples with features"
        )
    return item[rest[0]], item[found[0]] if found else None, bool(found)


class Gather:
    """Samples of one kind as they come; arrays go straight into one block of memory."""

    def __init__(self, count: int | None, name: str) -> None:
        self.count, self.name, self.seen = count, name, 0
        self.parts: list[Any] = []
        self.block: Tensor | None = None

    def add(self, sample: Any) -> None:
        """Take one more sample."""
        from PIL.Image import Image

        self.seen += 1
        if isinstance(sample, (str, Image)):
            self.parts.append(sample)
            return
        point = dense_points(sample, self.name)
        if self.count is None:
            self.parts.append(point.clone())
            return
        if self.block is None:
            self.block = torch.empty((self.count, *point.shape), dtype=point.dtype)
        if point.shape != self.block.shape[1:] or point.dtype != self.block.dtype:
            raise DataError(
                f"{self.name}: sample {self.seen - 1} is {point.dtype} {tuple(point.shape)}, those "
                f"before it {self.block.dtype} {tuple(self.block.shape[1:])}; all samples must "
                "have one shape and dtype"
            )
        if self.seen > len(self.block):
            # a sampler may draw more items than there are
            self.block = torch.cat([self.block, torch.empty_like(self.block)])
        self.block[self.seen - 1] = point

    def samples(self) -> Any:
        """Return what came.

        Raises:
            DataError: nothing, or samples of several kinds.
        """
        if not self.seen:
            raise DataError(f"{self.name}: no samples arrived")
        if self.block is not None and not self.parts:
            return Arrays.of(self.block[: self.seen])
        rows, parts = np.arange(self.seen), self.parts
        kinds = {"text" if isinstance(p, str) else type(p).__name__ for p in parts}
        if "Tensor" in kinds and len(kinds) == 1:
            return Arrays.of(dense_points(parts, self.name))
        if self.block is not None or len(kinds & {"text", "Tensor"}) and len(kinds) > 1:
            raise DataError(f"{self.name}: samples are of several kinds, expected one")
        kind = Texts if kinds == {"text"} else Images
        return kind(lambda chosen: [parts[k] for k in chosen], rows)


def gathered(
    items: Iterable[Any],
    count: int | None,  # how many, None if it is not known
    name: str,
    settings: LoadSettings,
    label: str | None,
    **provenance: Any,
) -> RawDataset:
    """Read items to their end."""
    gather, labels = Gather(count, name), []
    known = 0
    for item in items:
        if not gather.seen and isinstance(item, Mapping):
            provenance = {**provenance, "label": label, "features": settings.features}
        sample, value, labelled = split_item(item, name, settings, label)
        gather.add(sample)
        labels.append(value)
        known += labelled
    samples = gather.samples()
    values = tidy_labels(labels, len(samples), name) if known else None
    return RawDataset(name, samples, values, provenance={"source": name, **provenance})


def streamed(
    items: Iterable[Any],  # without a known end
    name: str,
    settings: LoadSettings,
    label: str | None,
) -> RawDataset:
    """Read the first items of a stream, as many as the cap says.

    Raises:
        SettingsError: no cap.
    """
    if settings.max_samples is None:
        raise SettingsError(
            f"{name}: has no known end; say with max_samples how many samples to take from it"
        )
    raw = gathered(islice(items, int(settings.max_samples)), None, name, settings, label)
    said = f"the first {len(raw):,} samples of a stream"
    return replace(raw, announced=(*raw.announced, said))


def unbatched(
    batches: Iterable[Any],  # what a loader yields: samples and labels of several items
) -> Iterator[Any]:
    """Yield the items of batches one by one."""
    for batch in batches:
        if isinstance(batch, Mapping):
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))
        elif isinstance(batch, (tuple, list)) and batch and not isinstance(batch[0], str):
            yield from zip(*batch, strict=True)
        else:
            yield from batch
