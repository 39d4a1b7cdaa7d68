"""How datasets are read and represented: the settings of ``load``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otdd_flash.checks import shown
from otdd_flash.datasets.sampling import check_sampling
from otdd_flash.embed.spec import EncoderSpec, parse_encoder
from otdd_flash.errors import SettingsError
from otdd_flash.settings import check_choice, check_flag, check_integer, is_integer

CHOICES = {
    "color": ("auto", "grey", "rgb", "rgba"),
    "scale": ("auto", "standard", "none"),
    "missing": ("refuse", "drop", "mean", "median"),
}
LABELS = re.compile(r"given|none|(kmeans|quantiles):([1-9]\d{0,6})")


@dataclass(frozen=True)
class LoadSettings:
    """What is read from datasets and how it becomes points: the arguments of ``load``.

    A tuple of labels gives the columns of several datasets, in their order.

    Raises:
        SettingsError: a value outside its range.
    """

    split: str = "train"
    max_samples: int | None = None
    seed: int = 0
    data_root: str | os.PathLike[str] | None = None
    label: str | tuple[str, ...] | None = None
    features: str | tuple[str, ...] | None = None
    labels: str = "given"
    drop_unlabelled: bool = False
    image_size: tuple[int, int] | None = None
    color: str = "auto"
    scale: str = "auto"
    missing: str = "refuse"
    cosine: bool = False
    encoder: str | Callable[[Any], Any] | None = None
    weights: str | os.PathLike[str] | None = None
    batch_size: int = 128
    device: str = "auto"
    cache: bool = True

    def __post_init__(self) -> None:
        check_sampling(self.max_samples, self.seed)
        for key, choices in CHOICES.items():
            check_choice(key, getattr(self, key), choices)
        for key in ("drop_unlabelled", "cosine", "cache"):
            object.__setattr__(self, key, check_flag(key, getattr(self, key)))
        if not isinstance(self.labels, str) or not LABELS.fullmatch(self.labels):
            raise SettingsError(
                f"labels is {shown(self.labels)}, expected given, none, kmeans:K or quantiles:K, "
                "such as kmeans:10"
            )
        check_integer("batch_size", self.batch_size, 1)
        for key in ("split", "device"):
            if not isinstance(getattr(self, key), str):
                raise SettingsError(f"{key} is {shown(getattr(self, key))}, expected a string")
        for key in ("label", "features"):
            value = _strings(getattr(self, key), key)
            object.__setattr__(self, key, value)
        object.__setattr__(self, "image_size", _size(self.image_size))
        spec = self.encoder_spec
        if self.weights is not None and spec.kind not in ("torchvision", "timm"):
            raise SettingsError(
                f"weights are {shown(os.fspath(self.weights))}, but the encoder is {spec}; "
                "weights are for a torchvision: or timm: encoder"
            )
        if self.image_size is not None or self.color != "auto":
            if spec.kind in ("torchvision", "timm", "sentence"):
                raise SettingsError(
                    f"image_size and color do not go with {spec}, which resizes images by its "
                    "own rules; drop them"
                )

    @property
    def encoder_spec(self) -> EncoderSpec:
        """The encoder, read."""
        return parse_encoder(self.encoder)

    @property
    def clusters(self) -> tuple[str, int]:
        """The rule of the labels and its number: ("kmeans", 10), or ("given", 0)."""
        match = LABELS.fullmatch(self.labels)
        assert match is not None
        return (match[1], int(match[2])) if match[1] else (self.labels, 0)

    def label_of(self, k: int, count: int) -> str | None:
        """Return the label column of dataset k of ``count``.

        Raises:
            SettingsError: as many names as there are datasets are neither given nor one for all.
        """
        if self.label is None or isinstance(self.label, str):
            return self.label
        if len(self.label) not in (1, count):
            raise SettingsError(
                f"label names {len(self.label)} columns for {count} datasets; give one for all or "
                "one for each"
            )
        return self.label[k if len(self.label) == count else 0]


def _strings(value: Any, key: str) -> str | tuple[str, ...] | None:
    """Return a name or several of them; a tuple of one is that one."""
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, Path):
        return str(value)
    plain = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    items = tuple(os.fspath(v) for v in value if isinstance(v, (str, Path))) if plain else ()
    if not items or len(items) != len(value):
        raise SettingsError(f"{key} is {shown(value)}, expected a name or a list of names")
    return items[0] if len(items) == 1 else items


def _size(value: Any) -> tuple[int, int] | None:
    """Return height and width."""
    if value is None:
        return None
    sizes = (value, value) if is_integer(value) else value
    plain = isinstance(sizes, (tuple, list)) and len(sizes) == 2
    if not plain or not all(is_integer(s) and 1 <= s <= 65_535 for s in sizes):
        raise SettingsError(
            f"image_size is {shown(value)}, expected a side such as 32, or (height, width)"
        )
    return int(sizes[0]), int(sizes[1])
