"""Image models of torchvision and timm: their features before the head, their preprocessing."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from otdd_flash.embed.encoder import Encoder, needed
from otdd_flash.embed.precision import Mixed
from otdd_flash.embed.spec import EncoderSpec
from otdd_flash.embed.weights import fill, read_weights
from otdd_flash.errors import EncoderError, reason
from otdd_flash.ranges import APART
from otdd_flash.samples import Samples, in_threads
from otdd_flash.samples.decoding import decoded, header_of, layout
from otdd_flash.samples.forms import Form, convert, frames_note
from otdd_flash.samples.network import hub_or_cache
from otdd_flash.timing import versions


class ImageEncoder(Encoder):
    """What both libraries share: images become RGB, the model's own transforms do the rest.

    Raises:
        EncoderError: no such model or weights file, or a package that is not installed.
        DeviceError: a device that is not there.
    """

    takes = ("images", "arrays")

    def __init__(self, spec: EncoderSpec, file: Path | None, device: str) -> None:
        self.name = spec.argument
        self.title = str(spec) if file is None else f"{spec} ({file.name})"
        self.mixed = Mixed(device)
        self.precision = self.mixed.name
        self.file = file
        self.model: nn.Module | None = None
        self.transform: Callable[[Any], Tensor]
        self.rounded, self.moving, self.brightest = False, 0, 0

    @abstractmethod
    def load(self) -> tuple[nn.Module, Callable[[Any], Tensor]]:
        """Return the model without its head, and what prepares a Pillow image for it.

        Raises:
            EncoderError: weights that are not to be had, or of another model.
        """

    def start(self) -> None:
        """Load the model unless it is there."""
        self.rounded, self.moving, self.brightest = False, 0, 0
        self.mixed.repeated = 0
        if self.model is None:
            model, self.transform = self.load()
            self.model = model.to(self.mixed.device).eval()

    def batches(self, samples: Samples, size: int, name: str) -> Iterator[list[Tensor]]:
        """Yield images as the model wants them, decoded and prepared in threads."""
        each = (
            (f"{name}: image {row}", image)
            for start, part in samples.chunks(size)
            for row, image in enumerate(part, start)
        )
        batch: list[Tensor] = []
        for ready, brightest, moves in in_threads(self._prepared, each):
            self.brightest = max(self.brightest, brightest)
            self.moving += moves
            batch.append(ready)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _prepared(self, item: tuple[str, Any]) -> tuple[Tensor, int, bool]:
        """Return what the model takes (3, h, w), the largest byte, whether frames are left out."""
        from PIL import Image

        where, image = item
        if isinstance(image, Tensor):
            moves, (pixels, color) = False, self._array(image, where)
        else:
            moves, (pixels, color) = header_of(image, where)[2], decoded(image, where)
        rgb = convert(pixels, color, Form((pixels.shape[-2], pixels.shape[-1]), "rgb"))
        ready = self.transform(Image.fromarray(rgb.permute(1, 2, 0).numpy()))
        return ready, int(rgb.max()), moves

    def _array(
        self, sample: Tensor, where: str
    ) -> tuple[Tensor, str]:  # (c, h, w) bytes, and their colour
        found = layout(sample.shape)
        if found is None:
            raise EncoderError(
                f"{where}: an array of shape {tuple(sample.shape)} is no image, {self.title} takes "
                "(h, w), (c, h, w) or (h, w, c) with 1, 3 or 4 channels"
            )
        if sample.is_floating_point():
            low, high = float(sample.min()), float(sample.max())
            # written so that NaN fails too
            if not (low >= 0 and high <= 1):
                raise EncoderError(
                    f"{where}: float pixels of {low:.3g} to {high:.3g}, {self.title} takes 0 to 1, "
                    "or bytes; undo the normalisation first"
                )
            sample, self.rounded = (sample * 255).round().to(torch.uint8), True
        elif sample.dtype != torch.uint8:
            raise EncoderError(
                f"{where}: pixels of {sample.dtype}, {self.title} takes bytes (uint8), or floats "
                "of 0 to 1"
            )
        sample = sample.cpu()
        if found[0] == "hwc":
            return sample.permute(2, 0, 1), found[1]
        return (sample.unsqueeze(0) if found[0] == "hw" else sample), found[1]

    def encode(self, batch: list[Tensor]) -> Tensor:  # (k, d) float32
        """Return the features before the head."""
        model = self.model
        assert model is not None
        inputs = torch.stack(batch).to(self.mixed.device)
        return self.mixed.run(lambda: model(inputs).flatten(1))

    def notes(self) -> list[str]:
        """Say what happened to the pixels."""
        said = ["images made RGB and prepared as the model was trained"]
        if self.moving:
            said.append(frames_note(self.moving))
        if self.rounded:
            said.append("float pixels rounded to 8 bits")
        if self.brightest * APART < 255:
            said.append(
                f"no pixel is brighter than {self.brightest} of 255, so that the model sees dark "
                "images: where they have another range, scale them to bytes of 0 to 255 or floats "
                "of 0 to 1 first"
            )
        return [*said, *self.mixed.notes("images")]


class TorchvisionEncoder(ImageEncoder):
    """A classifier of torchvision without its last layer."""

    def __init__(self, spec: EncoderSpec, weights: str | os.PathLike[str] | None, device: str):
        from torchvision import models

        known = models.list_models(module=models)
        if spec.argument not in known:
            raise _unknown("torchvision", spec.argument, known)
        names: Any = models.get_model_weights(spec.argument).__members__
        asked = None if weights is None else os.fspath(weights)
        # for weights of a file images are prepared as for the best published ones
        self.published = names.get(asked, names["DEFAULT"])
        hint = f", and torchvision's weights for it are called {', '.join(names)}"
        super().__init__(spec, None if asked in names else _file_of(spec, asked, hint), device)
        if self.file is None:
            self.title += f" ({self.published.name})"

    def identity(self) -> str:
        """Return what decides the features; the address of published weights has their hash."""
        weights = self.published.url if self.file is None else _digest(self.file)
        used = versions("torchvision", "pillow")
        return json.dumps(["torchvision", self.name, weights, self.precision, used])

    def load(self) -> tuple[nn.Module, Callable[[Any], Tensor]]:
        """Load the model; published weights come from torch's cache or the network."""
        from torchvision import models

        weights = self.published if self.file is None else None
        try:
            model = models.get_model(self.name, weights=weights, progress=False)
        except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
            raise _not_loaded(self.title, error) from error
        head = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1]
        model.set_submodule(head, nn.Identity())
        if self.file is not None:
            fill(model, read_weights(self.file), [head], self.title)
            # googlenet and inception scale inputs as their published weights were trained
            if hasattr(model, "transform_input"):
                model.transform_input = True
        return model, self.published.transforms()


class TimmEncoder(ImageEncoder):
    """A model of timm, pooled, without its classifier."""

    def __init__(self, spec: EncoderSpec, weights: str | os.PathLike[str] | None, device: str):
        self.timm = needed("timm", str(spec))
        if not self.timm.is_model(spec.argument):
            raise _unknown("timm", spec.argument, self.timm.list_models())
        super().__init__(spec, _file_of(spec, weights, ""), device)

    def identity(self) -> str:
        """Return what decides the features; a tag of timm names one set of weights."""
        config = self.timm.get_pretrained_cfg(self.name)
        weights = str(config) if self.file is None else _digest(self.file)
        used = versions("timm", "torchvision", "pillow")
        return json.dumps(["timm", self.name, weights, self.precision, used])

    def load(self) -> tuple[nn.Module, Callable[[Any], Tensor]]:
        """Load the model; pretrained weights come from the cache of the hub or the network."""
        try:
            with hub_or_cache():
                model = self.timm.create_model(
                    self.name, pretrained=self.file is None, num_classes=0
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise _not_loaded(self.title, error) from error
        if self.file is not None:
            heads = model.pretrained_cfg.get("classifier") or ()
            heads = (heads,) if isinstance(heads, str) else heads
            fill(model, read_weights(self.file), heads, self.title)
        config = self.timm.data.resolve_model_data_config(model)
        return model, self.timm.data.create_transform(**config, is_training=False)


def _file_of(spec: EncoderSpec, weights: str | os.PathLike[str] | None, hint: str) -> Path | None:
    """Return the file of weights, None where none is asked for."""
    if weights is None:
        return None
    file = Path(weights).expanduser()
    if not file.is_file():
        raise EncoderError(f"{spec}: there is no weights file {file}{hint}")
    return file


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _unknown(library: str, name: str, known: Sequence[str]) -> EncoderError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"such as {', '.join(known[:5])}"
    return EncoderError(f"{library} has no image model {name!r}; {hint}")


def _not_loaded(title: str, error: Exception) -> EncoderError:
    return EncoderError(
        f"{title}: its weights cannot be loaded ({reason(error)}); check the network, or "
        "give a file with weights (--weights FILE)"
    )
