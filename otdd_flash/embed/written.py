"""Files of points: safetensors that appear whole, with what is known of them in the header."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from otdd_flash.archive import plain
from otdd_flash.files import written_whole
from otdd_flash.types import LabelledDataset

METADATA = "otdd_flash"  # key of our part of a header


def write_dataset(dataset: LabelledDataset, path: str | Path) -> None:
    """Write points, labels, names and provenance, which ``load`` reads back; weights are not.

    Raises:
        OSError: the file cannot be written; what was there before stays.
    """
    about = {
        "name": dataset.name,
        "class_names": list(dataset.class_names),
        "sample_shape": list(dataset.sample_shape),
        "provenance": plain(dataset.provenance),
    }
    tensors = {"points": dataset.points, "labels": dataset.labels}
    write_tensors(path, tensors, {METADATA: json.dumps(about)})


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], header: dict[str, str]) -> None:
    """Write tensors as a safetensors file, whole or not at all; none is copied.

    Raises:
        OSError: the file cannot be written; what was there before stays.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written_whole(path) as file:
        try:
            save_file(kept, file.name, header)
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
        # a private file of the library's is there now in place of the open one
        os.chmod(file.name, stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        with open(file.name, "rb") as whole:
            os.fsync(whole.fileno())
