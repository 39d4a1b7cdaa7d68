"""What torchvision does for us: downloads into the user cache, and decoding of its archives."""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import shutil
import socket
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.datasets.places import Place, named_folders
from otdd_flash.datasets.registry import ArchiveEntry, TorchvisionEntry
from otdd_flash.errors import DataError, DatasetNotFoundError, reason
from otdd_flash.files import user_cache
from otdd_flash.types import LabelledDataset

STAGING_PREFIX = ".download-"
STALE_SECONDS = 24 * 3600.0
NETWORK_TIMEOUT = 30.0  # seconds without an answer
# stdout, stderr and the timeout are the process's: one download at a time swaps them
_DOWNLOADING = threading.Lock()


def construct(entry: TorchvisionEntry, split: str, root: Path, download: bool) -> Any:
    """Return torchvision's dataset object, downloading into ``root`` when asked."""
    # importing torchvision takes a second: only who needs it pays
    from torchvision import datasets as torchvision_datasets

    make = getattr(torchvision_datasets, entry.torchvision_class)
    return make(root=str(root), download=download, **entry.keywords(split))


def download(entry: TorchvisionEntry, split: str) -> Place:
    """Download a split into the user cache; torchvision checks the md5 of every file.

    The files arrive in a scratch folder of the cache, which is renamed in one step when they are
    complete: a download that is killed leaves nothing that a later run would read. Downloads of
    several threads run one after the other.

    Raises:
        DatasetNotFoundError: no network, a file that fails its check, or no room to write.
    """
    with _DOWNLOADING:
        return _download(entry, split)


def _download(entry: TorchvisionEntry, split: str) -> Place:
    cache = user_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        _remove_stale(cache)
        with tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=cache) as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            with _quiet_unless_terminal(), _network_timeout():
                construct(entry, split, fresh, download=True)
            target = cache / entry.cache_folder(split)
            if target.exists():
                # incomplete, or another process was faster: the scratch folder takes it away
                os.replace(target, Path(scratch) / "old")
            os.replace(fresh, target)
    except (OSError, RuntimeError, EOFError, http.client.HTTPException) as error:
        raise DatasetNotFoundError(f"the download failed ({reason(error)})") from error
    except (tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetNotFoundError(f"the download is damaged ({reason(error)})") from error
    return Place(cache, "user cache")


def _remove_stale(cache: Path) -> None:
    """Remove the scratch folders of downloads that were killed more than a day ago."""
    for scratch in cache.glob(f"{STAGING_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - scratch.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    """Keep torchvision's messages off stdout, and off stderr when that is not a terminal."""
    # stderr is None where the process was started with it closed
    progress = sys.stderr if sys.stderr and sys.stderr.isatty() else io.StringIO()
    with contextlib.redirect_stdout(progress), contextlib.redirect_stderr(progress):
        yield


@contextlib.contextmanager
def _network_timeout() -> Iterator[None]:
    """Give up on a network that does not answer; torchvision itself would wait for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def find_archive(place: Place, entry: ArchiveEntry, split: str) -> Path | None:
    """Return the root for torchvision's class when a split's files are below a place."""
    marker = dict(entry.markers)[split]
    folders = [*named_folders(place.root, entry.folders(split)), place.root]
    return next((folder for folder in folders if (folder / marker).is_file()), None)


def load_archive(root: Path, place: Place, entry: ArchiveEntry, split: str) -> LabelledDataset:
    """Load a split as uint8 points, images grey (rows, columns) or (3, rows, columns).

    Raises:
        DataError: torchvision finds the files incomplete or damaged.
    """
    marker = root / dict(entry.markers)[split]
    try:
        _check_md5(entry, split, marker)
        dataset = construct(entry, split, root, download=False)
    except (RuntimeError, OSError, EOFError, ValueError, LookupError) as error:
        raise DataError(
            f"{marker}: {entry.name} is incomplete or damaged there ({reason(error)}); "
            "delete the files so that a later place or a download is used"
        ) from error
    points = np.asarray(dataset.data)
    if points.ndim == 4 and points.shape[-1] == 3:
        points = np.ascontiguousarray(points.transpose(0, 3, 1, 2))
    labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
    return LabelledDataset(
        points,
        np.asarray(labels).astype(np.int64),
        name=entry.name,
        class_names=entry.class_names or getattr(dataset, "classes", None),
        provenance={"source": str(marker), "place": place.why, "split": split},
    )


def _check_md5(entry: ArchiveEntry, split: str, marker: Path) -> None:
    """Check the files that torchvision itself reads unchecked (USPS)."""
    from torchvision import datasets as torchvision_datasets
    from torchvision.datasets.utils import check_integrity

    if entry.torchvision_class == "USPS":
        _, _, md5 = torchvision_datasets.USPS.split_list[split]
        if not check_integrity(str(marker), md5):
            raise RuntimeError("its md5 is not the published one")
