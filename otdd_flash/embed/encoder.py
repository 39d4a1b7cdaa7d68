"""What turns samples into features: the base of all encoders, and the packages some need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from otdd_flash.errors import EncoderError
from otdd_flash.samples import Samples


class Encoder(ABC):
    """An encoder of one dataset after the other; it loads nothing before :meth:`start`."""

    title: str  # shown, and stored in results
    takes: tuple[str, ...]  # of arrays, images and texts
    precision = ""  # announced; empty: the encoder's own affair

    @abstractmethod
    def identity(self) -> str | None:
        """Return all that decides its output: name, weights, versions; None if that is not known.

        Where it can be told without loading a model or asking the network, neither is done.
        """

    @abstractmethod
    def start(self) -> None:
        """Load the model unless it is there; what was counted for the last dataset is forgotten."""

    @abstractmethod
    def encode(self, batch: Any) -> Any:
        """Return features (k, ...) of a batch of k samples."""

    def batches(self, samples: Samples, size: int, name: str) -> Iterator[Any]:
        """Yield what :meth:`encode` takes, ``size`` samples at a time: a tensor, or a list."""
        return (part for _, part in samples.chunks(size))

    def notes(self) -> list[str]:
        """Return what a user should hear of the samples since :meth:`start`."""
        return []


def needed(package: str, who: str) -> Any:
    """Import a package that only some encoders need.

    Raises:
        EncoderError: it is not there, or does not load.
    """
    try:
        return import_module(package)
    except ImportError as error:
        name = package.replace("_", "-")
        raise EncoderError(
            f"{who} needs the package {name}, which does not load ({error}); install it with "
            f"pip install {name}"
        ) from error
