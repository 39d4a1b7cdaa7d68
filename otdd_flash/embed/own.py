"""Encoders of the user's own: ``module:callable``, or a callable."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor

from otdd_flash.embed.encoder import Encoder
from otdd_flash.embed.spec import EncoderSpec
from otdd_flash.errors import EncoderError, OTDDError, reason
from otdd_flash.timing import versions


class OwnEncoder(Encoder):
    """Calls the user's function with a batch.

    It gets a list of strings for texts, else a tensor (k, ...) of the samples in their shape
    (images as bytes (k, h, w) or (k, c, h, w), tables after scaling), and returns (k, d) numbers.

    Its embeddings are kept under the content of the module's file, which is read and not imported
    where they are found; what else the function depends on is not seen. A callable that was passed
    itself is kept under its attribute ``cache_key``, and not at all without one.

    Raises:
        EncoderError: no such module.
    """

    takes = ("texts", "arrays")

    def __init__(self, spec: EncoderSpec) -> None:
        self.title = str(spec)
        self.call = spec.call
        self.module, _, self.name = spec.argument.rpartition(":")
        self.file = _file_of(self.module, spec) if spec.call is None else None

    def identity(self) -> str | None:
        """Return what decides its output, None if that is not known."""
        if self.file is not None:
            key: Any = hashlib.sha256(self.file.read_bytes()).hexdigest()
        else:
            key = getattr(self.call, "cache_key", None)
        return None if key is None else json.dumps(["own", self.title, str(key), versions()])

    def start(self) -> None:
        """Import the function."""
        if self.call is not None:
            return
        with _folder_named():
            try:
                found: Any = import_module(self.module)
            except (Exception, SystemExit) as error:  # whatever the user's module raises
                raise EncoderError(
                    f"encoder {self.title}: {self.module} does not load ({_named(error)})"
                ) from error
        for part in self.name.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            what = "there is no" if found is None else "not callable:"
            raise EncoderError(f"encoder {self.title}: {what} {self.name} in {self.module}")
        self.call = found

    def encode(self, batch: Any) -> Any:
        """Call the function with a batch of its own, which it may change.

        Raises:
            EncoderError: it raised, whatever it was.
        """
        assert self.call is not None
        batch = batch.clone() if isinstance(batch, Tensor) else list(batch)
        try:
            with _folder_named():
                return self.call(batch)
        except OTDDError:
            raise
        except (Exception, SystemExit) as error:
            raise EncoderError(
                f"encoder {self.title} failed on a batch of {len(batch):,} samples "
                f"({_named(error)}); repair it"
            ) from error


def _named(error: BaseException) -> str:
    kind = type(error).__name__
    return f"{kind}: {reason(error)}" if str(error) else kind


def _file_of(module: str, spec: EncoderSpec) -> Path | None:
    """Return the file of a module that is not imported for it; None for what has none."""
    with _folder_named():
        try:
            found = find_spec(module)
        except (ImportError, ValueError):
            found = None
        except Exception as error:  # of a package that the module lies in
            raise EncoderError(f"encoder {spec}: does not load ({_named(error)})") from error
    if found is None:
        raise EncoderError(
            f"encoder {spec}: there is no module {module!r}; give module:callable, the module "
            "installed or in the working directory, or one of pixels, pca, torchvision, timm, "
            "sentence"
        )
    return Path(found.origin) if found.has_location and found.origin else None


@contextmanager
def _folder_named() -> Iterator[None]:
    """Look for modules in the working directory first, as ``python -m`` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
