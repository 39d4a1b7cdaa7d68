"""What encoders returned, kept in the user's cache: found again by content, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.embed.written import write_tensors
from otdd_flash.errors import DataError
from otdd_flash.files import user_cache
from otdd_flash.results import bytes_text
from otdd_flash.samples import Arrays, Images, Samples, in_threads
from otdd_flash.samples.decoding import decoded
from otdd_flash.types import Progress

# bytes that the cache holds at most: what was not used for longest goes first
LIMIT = 10 * 10**9
# layout of the files; raised when a reader of the old layout would misread the new one
FORMAT = 1
SUFFIX = ".safetensors"
# names of files that are not whole yet, ours and safetensors'
LEFT = ".*"
# seconds after which what a killed process left half written is no other process's work
STALE = 24 * 3600


@dataclass(frozen=True)
class Entry:
    """One embedding in the cache."""

    path: Path
    size: int  # bytes
    used: float  # when it was last written or read, seconds since 1970
    about: dict[str, Any]  # encoder, dataset, shape, made; empty where the file is damaged


def cache_folder() -> Path:
    """Return the folder of the embeddings."""
    return user_cache() / "embeddings"


def digest_steps(samples: Samples, name: str) -> Generator[Progress, None, str]:
    """Return the sha256 of samples: the same for the same content in the same order.

    Image files count by their bytes, which are not decoded.
    """
    content = hashlib.sha256(f"{type(samples).__name__} {len(samples)}".encode())
    for start, part in samples.chunks():
        yield Progress("digest", start, len(samples), name)
        if isinstance(samples, Arrays):
            content.update(f"{part.dtype} {tuple(part.shape)}".encode())
            content.update(_raw(part))
            continue
        if isinstance(samples, Images):
            named = ((f"{name}: image {row}", image) for row, image in enumerate(part, start))
            pieces = in_threads(_image_bytes, named)
        else:
            pieces = map(_utf8, part)
        for piece in pieces:
            content.update(len(piece).to_bytes(8, "little"))
            content.update(piece)
    yield Progress("digest", len(samples), len(samples), name)
    return content.hexdigest()


def _raw(values: Tensor) -> memoryview:
    # as bytes: numpy has no bfloat16
    flat = values.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _image_bytes(item: tuple[str, Any]) -> bytes:
    where, image = item
    if isinstance(image, Path):
        try:
            return image.read_bytes()
        except OSError as error:
            raise DataError(f"{image}: cannot be read ({error.strerror or error})") from error
    if isinstance(image, bytes):
        return image
    pixels, color = decoded(image, where)
    return f"{color} {tuple(pixels.shape)}".encode() + _raw(pixels)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def cache_key(
    digest: str,  # of the samples
    identity: str,  # of the encoder, its weights, its versions
) -> str:
    """Return the name under which an embedding is kept."""
    return hashlib.sha256(f"{FORMAT} {digest} {identity}".encode()).hexdigest()


def read_cached(key: str) -> tuple[Tensor, dict[str, Any]] | None:
    """Return an embedding (n, d) and what is known of it; None if it is not there whole."""
    from safetensors import SafetensorError, safe_open

    path = cache_folder() / f"{key}{SUFFIX}"
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            features = file.get_tensor("features")
        whole = hashlib.sha256(_raw(features)).hexdigest() == about["sha256"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    if not whole:
        return None
    with suppress(OSError):
        # the order of use, which a cache that may only be read does not need
        os.utime(path)
    return features, about


def write_cached(
    key: str,
    features: Tensor,  # (n, d)
    about: dict[str, Any],
    limit: int = LIMIT,  # bytes
) -> list[str]:
    """Keep an embedding, drop what was not used for longest, and return what to announce of it.

    A disk that is full or closed costs the place in the cache, not the embedding.
    """
    folder, path = cache_folder(), cache_folder() / f"{key}{SUFFIX}"
    size = features.numel() * features.element_size()
    if size > limit:
        return [f"not kept: {bytes_text(size)} are more than the {bytes_text(limit)} of the cache"]
    about = {
        **about,
        "sha256": hashlib.sha256(_raw(features)).hexdigest(),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        dropped = _make_room(limit - size, path)
        write_tensors(path, {"features": features}, {"about": json.dumps(about)})
    except OSError as error:
        return [f"not kept: the cache {folder} cannot be written ({error.strerror or error})"]
    if not dropped:
        return []
    return [
        f"{len(dropped)} embeddings that were not used for longest left the cache "
        f"({bytes_text(sum(entry.size for entry in dropped))}), which holds {bytes_text(limit)}"
    ]


def _make_room(
    limit: int,  # bytes that may stay
    path: Path,  # does not count: it is replaced
) -> list[Entry]:
    """Remove what was not used for longest, and what killed processes left; return the first."""
    for left in cache_folder().glob(LEFT):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
    entries = [entry for entry in cached() if entry.path != path]
    total, dropped = sum(entry.size for entry in entries), []
    for entry in entries:
        if total <= limit:
            break
        entry.path.unlink(missing_ok=True)
        total -= entry.size
        dropped.append(entry)
    return dropped


def cached() -> list[Entry]:
    """Return the embeddings in the cache, what was not used for longest first."""
    from safetensors import SafetensorError, safe_open

    entries = []
    for path in cache_folder().glob(f"*{SUFFIX}"):
        about: dict[str, Any] = {}
        with suppress(FileNotFoundError):
            stat = path.stat()
            with suppress(SafetensorError, OSError, ValueError, KeyError, TypeError):
                with safe_open(path, framework="pt") as file:
                    about = json.loads(file.metadata()["about"])
            entries.append(Entry(path, stat.st_size, stat.st_mtime, about))
    return sorted(entries, key=lambda entry: (entry.used, entry.path))


def clear_cache() -> tuple[int, int]:  # embeddings and bytes that went
    """Remove all embeddings; datasets that were downloaded stay."""
    entries = cached()
    for path in [*(entry.path for entry in entries), *cache_folder().glob(LEFT)]:
        path.unlink(missing_ok=True)
    return len(entries), sum(entry.size for entry in entries)
