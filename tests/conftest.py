"""Fixtures that several test files share."""

from __future__ import annotations

import os
import urllib.error
from importlib.util import find_spec
from pathlib import Path

import pytest

FILES = [
    f"{name}/{part}-ubyte.gz"
    for name in ("mnist", "fashion-mnist")
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
]


@pytest.fixture(scope="session")
def full_data_root() -> Path:
    """Return the folder of the full MNIST and Fashion-MNIST files, or skip."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    given = os.environ.get("OTDD_DATA")
    for root in ([Path(given)] if given else []) + [beside]:
        if all((root / file).is_file() for file in FILES):
            return root
    pytest.skip("skipped: no full MNIST")


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """Cut off every place but the ones a test makes, and the network; return the user cache."""
    from otdd_flash.datasets import places, torchvision_sets

    def no_network(*args, **kwargs):
        raise urllib.error.URLError("no network in tests")

    monkeypatch.delenv("OTDD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "checkout_data", lambda: None)
    monkeypatch.setattr(places, "DEBIAN", tmp_path / "debian")
    real = torchvision_sets.construct
    monkeypatch.setattr(
        torchvision_sets,
        "construct",
        lambda entry, split, root, download: (no_network if download else real)(
            entry, split, root, download
        ),
    )
    return tmp_path / "cache" / "otdd-flash"


@pytest.fixture
def poisoned(monkeypatch):
    """Fill every fresh float buffer with NaN, and cut stored costs into small blocks."""
    import torch

    from otdd_flash_kernels import cpu

    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor):
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    monkeypatch.setattr(cpu, "BLOCK_ENTRIES", 2500)
    if find_spec("triton"):
        from otdd_flash_kernels import stored

        monkeypatch.setattr(stored, "CHUNK_ENTRIES", 2500)
        monkeypatch.setattr(stored, "ALONG", (32, 64))
        monkeypatch.setattr(stored, "ACROSS", (64, 32))


def pytest_configure(config) -> None:
    """Interpret Triton kernels where no GPU can run them; set before anything imports Triton."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
