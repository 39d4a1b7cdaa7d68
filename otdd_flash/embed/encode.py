"""Samples through an encoder: in batches, checked, once for the same content."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.embed.cache import cache_key, digest_steps, read_cached, write_cached
from otdd_flash.embed.encoder import Encoder
from otdd_flash.errors import EncoderError
from otdd_flash.samples import Arrays, Images, Rows, Samples, Texts
from otdd_flash.types import Progress

KINDS = {Arrays: "arrays", Images: "images", Texts: "texts", Rows: "tables"}


def encode_steps(
    samples: Samples,
    encoder: Encoder,
    name: str,
    batch_size: int,
    keep: bool,  # whether the cache is read and written
) -> Generator[Progress, None, tuple[Tensor, list[str]]]:
    """Return features (n, d) of samples and what to announce; from the cache where they are.

    Memory: the features, and a few batches of samples.

    Raises:
        EncoderError: samples that it cannot take, or what it returns are no features.
    """
    kind = KINDS[type(samples)]
    if kind not in encoder.takes:
        raise EncoderError(
            f"{name}: {encoder.title} takes {' or '.join(encoder.takes)}, the dataset holds "
            f"{kind}; choose another encoder"
        )
    key = None
    if keep and (identity := encoder.identity()) is not None:
        digest = yield from digest_steps(samples, name)
        key = cache_key(digest, identity)
        if (found := read_cached(key)) is not None:
            features, about = found
            first, *rest = about["said"]
            return features, [f"{first} (from the cache, made {about['made']})", *rest]
    encoder.start()
    features = yield from _feature_steps(samples, encoder, name, batch_size)
    way = f", {encoder.precision}" if encoder.precision else ""
    said = [f"encoded by {encoder.title}, {features.shape[1]:,} features{way}", *encoder.notes()]
    if key is None:
        return features, said
    about = {"encoder": encoder.title, "dataset": name, "shape": list(features.shape), "said": said}
    return features, [*said, *write_cached(key, features, about)]


def _feature_steps(
    samples: Samples, encoder: Encoder, name: str, batch_size: int
) -> Generator[Progress, None, Tensor]:  # (n, d)
    """Encode all samples."""
    n, done = len(samples), 0
    out: Tensor | None = None
    broken = []
    for batch in encoder.batches(samples, batch_size, name):
        with torch.no_grad():
            part = _matrix(encoder.encode(batch), len(batch), encoder, name)
        if out is None:
            out = torch.empty((n, part.shape[1]), dtype=part.dtype)
        if part.shape[1] != out.shape[1]:
            raise EncoderError(
                f"{name}: {encoder.title} returned {part.shape[1]:,} features from sample {done} "
                f"on and {out.shape[1]:,} before; it must return as many for every sample"
            )
        out[done : done + len(part)] = part
        broken.append(done + (~torch.isfinite(part).all(dim=1)).nonzero()[:, 0])
        done += len(part)
        yield Progress("encode", done, n, name)
    assert out is not None and done == n
    if len(rows := torch.cat(broken)):
        raise EncoderError(
            f"{name}: {encoder.title} returned NaN or infinity for {len(rows):,} of {n:,} samples, "
            f"sample {int(rows[0])} first; repair or drop them"
        )
    return out


def _matrix(
    features: Any,  # what the encoder returned
    count: int,  # samples of the batch
    encoder: Encoder,
    name: str,
) -> Tensor:  # (k, d) float32, or float64 where that came, on the CPU
    """Return features as a matrix.

    Raises:
        EncoderError: no numbers, or not one row a sample.
    """
    if not isinstance(features, Tensor):
        try:
            features = torch.as_tensor(np.asarray(features))
        except (TypeError, ValueError, RuntimeError) as error:
            raise EncoderError(
                f"{name}: {encoder.title} returned a {type(features).__name__}, expected an array "
                "or tensor of numbers"
            ) from error
    if features.is_complex():
        raise EncoderError(f"{name}: {encoder.title} returned complex numbers, expected real ones")
    if features.ndim < 2 or len(features) != count or features.numel() == 0:
        raise EncoderError(
            f"{name}: {encoder.title} returned shape {tuple(features.shape)} for {count} samples, "
            f"expected ({count}, d): a row of features for each"
        )
    features = features.detach().reshape(count, -1).cpu()
    return features if features.dtype == torch.float64 else features.to(torch.float32)
