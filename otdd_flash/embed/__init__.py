"""Encoders: from images, texts and arrays to features, kept in the user's cache."""

from __future__ import annotations

import os

from otdd_flash.embed.encode import encode_steps
from otdd_flash.embed.encoder import Encoder
from otdd_flash.embed.spec import EncoderSpec, parse_encoder

__all__ = ["Encoder", "EncoderSpec", "encode_steps", "make_encoder", "parse_encoder"]


def make_encoder(spec: EncoderSpec, weights: str | os.PathLike[str] | None, device: str) -> Encoder:
    """Return the encoder of a spec; models are loaded when they are needed.

    Raises:
        EncoderError: no such model, weights file or module, or a package that is not installed.
        DeviceError: a device that is not there.
    """
    if spec.kind == "sentence":
        from otdd_flash.embed.sentences import SentenceEncoder

        return SentenceEncoder(spec, device)
    if spec.kind == "own":
        from otdd_flash.embed.own import OwnEncoder

        return OwnEncoder(spec)
    from otdd_flash.embed.vision import TimmEncoder, TorchvisionEncoder

    kinds = {"torchvision": TorchvisionEncoder, "timm": TimmEncoder}
    return kinds[spec.kind](spec, weights, device)
