"""What an encoder is called: ``pixels``, ``pca:50``, ``torchvision:resnet18``, ``module:name``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from otdd_flash.checks import shown
from otdd_flash.errors import SettingsError

FORMS = (
    "pixels, pca:50, torchvision:resnet18, timm:vit_small_patch16_224, sentence:MODEL, or "
    "module:callable of your own"
)


@dataclass(frozen=True)
class EncoderSpec:
    """A kind of encoder and what follows the colon."""

    kind: str  # pixels | pca | torchvision | timm | sentence | own
    argument: str = ""
    call: Callable[[Any], Any] | None = None  # a callable that was passed itself

    def __str__(self) -> str:
        if self.kind in ("pixels", "own"):
            return self.argument or self.kind
        return f"{self.kind}:{self.argument}"

    @property
    def components(self) -> int:
        """Number of components of ``pca:K``."""
        return int(self.argument)


def parse_encoder(
    encoder: Any,  # None, a string, or a callable
) -> EncoderSpec:
    """Read what a user calls an encoder; nothing is imported yet.

    Raises:
        SettingsError: no such form.
    """
    if encoder is None:
        return EncoderSpec("pixels")
    if callable(encoder):
        name = getattr(encoder, "__qualname__", type(encoder).__qualname__)
        return EncoderSpec("own", f"{encoder.__module__}:{name}", encoder)
    if not isinstance(encoder, str):
        raise SettingsError(f"encoder is {shown(encoder)}, expected {FORMS}")
    kind, colon, argument = (part.strip() for part in encoder.partition(":"))
    if kind == "pixels" and not colon:
        return EncoderSpec("pixels")
    if kind == "pca":
        if not re.fullmatch(r"[1-9]\d{0,6}", argument):
            raise SettingsError(
                f"encoder is {shown(encoder)}, expected pca:K with K >= 1, such as pca:50"
            )
        return EncoderSpec(kind, argument)
    if not argument:
        raise SettingsError(f"encoder is {shown(encoder)}, expected {FORMS}")
    if kind in ("torchvision", "timm", "sentence"):
        return EncoderSpec(kind, argument)
    return EncoderSpec("own", f"{kind}:{argument}")
