"""Text models of sentence-transformers: a folder, offline, or a name of the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from otdd_flash.embed.encoder import Encoder, needed
from otdd_flash.embed.precision import Mixed
from otdd_flash.embed.spec import EncoderSpec
from otdd_flash.errors import EncoderError, reason
from otdd_flash.samples.network import hub_or_cache
from otdd_flash.timing import versions

OWNER = "sentence-transformers"  # of the models whose names have no owner


class SentenceEncoder(Encoder):
    """Encodes texts by a model of sentence-transformers, pooled and normalised as it says.

    A model of the hub whose commit is in the hub's cache is read from there at that commit.

    Raises:
        EncoderError: no such folder.
        DeviceError: a device that is not there.
    """

    takes = ("texts",)

    def __init__(self, spec: EncoderSpec, device: str) -> None:
        self.name = spec.argument
        self.title = str(spec)
        self.mixed = Mixed(device)
        self.precision = self.mixed.name
        self.model: Any = None
        self.cut = 0  # texts that are longer than the model reads
        folder = Path(self.name).expanduser()
        self.folder = folder if folder.is_dir() else None
        if self.folder is None and (self.name[0] in "./~" or self.name.count("/") > 1):
            raise EncoderError(f"{spec}: there is no folder {folder}")

    def identity(self) -> str | None:
        """Return what decides the features: every file of a folder, or the hub's commit."""
        if self.folder is not None:
            weights = _folder_digest(self.folder)
        else:
            if self._commit() is None:
                # not in the hub's cache yet: the download says which commit it is
                self.start()
            commit = self._commit()
            if commit is None:
                return None
            weights = f"{self.name} {commit}"
        used = versions("sentence-transformers", "transformers", "tokenizers")
        return json.dumps(["sentence", weights, self.precision, used])

    def _commit(self) -> str | None:
        """Return the commit of a model in the hub's cache; the network is not asked."""
        from huggingface_hub import try_to_load_from_cache

        # names without an owner are sentence-transformers' own models, or the oldest ones
        owned = [self.name] if "/" in self.name else [f"{OWNER}/{self.name}", self.name]
        place = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        for name in owned:
            found = try_to_load_from_cache(name, "modules.json", cache_dir=place)
            if found is not None and not isinstance(found, str):
                # known not to be there: a model of transformers, pooled by the mean
                found = try_to_load_from_cache(name, "config.json", cache_dir=place)
            if isinstance(found, str):
                return Path(found).parent.name
        return None

    def start(self) -> None:
        """Load the model unless it is there."""
        self.cut = self.mixed.repeated = 0
        if self.model is not None:
            return
        needed("sentence_transformers", f"sentence:{self.name}")
        try:
            with _quiet():
                self.model = self._loaded()
        except Exception as error:  # a foreign folder fails in as many ways as it likes
            raise EncoderError(
                f"sentence:{self.name}: cannot be loaded ({reason(error)}); check the name and the "
                "network, or give the folder of a model that sentence-transformers saved"
            ) from error

    def _loaded(self) -> Any:
        from sentence_transformers import SentenceTransformer

        device = str(self.mixed.device)
        if self.folder is not None:
            return SentenceTransformer(str(self.folder), device=device)
        if (commit := self._commit()) is not None:
            # whole in the hub's cache: no network; not whole: its download is finished below
            with suppress(OSError, ValueError, RuntimeError):
                return SentenceTransformer(
                    self.name, device=device, revision=commit, local_files_only=True
                )
        with hub_or_cache():
            return SentenceTransformer(self.name, device=device, revision=commit)

    def encode(self, batch: list[str]) -> Tensor:  # (k, d) float32
        """Return the embeddings, in the order of the texts."""
        limit, tokenizer = self.model.max_seq_length, getattr(self.model, "tokenizer", None)
        # models that look words up have no limit, and another kind of tokenizer
        if limit and callable(tokenizer):
            tokens = tokenizer(batch, truncation=False, verbose=False)["input_ids"]
            self.cut += sum(len(one) > limit for one in tokens)
        return self.mixed.run(
            lambda: self.model.encode(
                batch, batch_size=len(batch), convert_to_tensor=True, show_progress_bar=False
            )
        )

    def notes(self) -> list[str]:
        """Say how many texts the model did not read to their end."""
        said = self.mixed.notes("texts")
        if self.cut:
            said.append(
                f"{self.cut:,} texts read up to their first {self.model.max_seq_length} tokens only"
            )
        return said


def _folder_digest(folder: Path) -> str:
    """Return the sha256 of the names and bytes of all files."""
    content = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            content.update(hashlib.file_digest(file, "sha256").digest())
    return content.hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep bars, and the retries of a network that is not there, off stderr."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    on, level = logging.is_progress_bar_enabled(), hub.get_verbosity()
    logging.disable_progress_bar()
    hub.set_verbosity_error()
    try:
        yield
    finally:
        hub.set_verbosity(level)
        if on:
            logging.enable_progress_bar()
