"""Make the embedded samples of MNIST and Fashion-MNIST from the full files.

    python scripts/make_mini_data.py --data-root FOLDER [--output data/otdd_flash_data]

The rows are those of ``load(name, max_samples=2000, seed=0)``, so the arrays are the same every
time; ``manifest.json`` records their checksums, and those of the files they came from.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from otdd_flash.datasets import load, stratified_rows
from otdd_flash.digests import array_digest

PACKAGE = Path(__file__).resolve().parents[1] / "data" / "otdd_flash_data"
SAMPLES = 2000
SEED = 0
ORIGIN: dict[str, dict[str, str]] = {
    "mnist": {
        "source": "MNIST, training set; Yann LeCun, Corinna Cortes, Christopher J.C. Burges",
        "url": "http://yann.lecun.com/exdb/mnist/",
        "licence": "CC BY-SA 3.0",
    },
    "fashion-mnist": {
        "source": "Fashion-MNIST, training set; Zalando SE",
        "url": "https://github.com/zalandoresearch/fashion-mnist",
        "licence": "MIT",
    },
}


def make(name: str, data_root: Path, output: Path) -> dict[str, Any]:
    """Write the sample of one dataset and return its record for the manifest."""
    full = load(name, data_root=data_root)
    rows = stratified_rows(full.labels, SAMPLES, SEED)
    arrays: dict[str, np.ndarray] = {
        "points": full.points[rows].reshape(-1, *full.sample_shape).numpy(),
        "labels": full.labels[rows].numpy().astype(np.uint8),
        "rows": rows.numpy().astype(np.int32),  # in the published training set
    }
    path = output / f"{name.replace('-', '_')}_mini.npz"
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return {
        **ORIGIN[name],
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "of": len(full),
        "seed": SEED,
        "made_from": full.provenance["sha256"],
        "arrays": {
            key: {
                "shape": list(array.shape),
                "dtype": array.dtype.name,
                "sha256": array_digest(array),
            }
            for key, array in arrays.items()
        },
    }


@click.command(help=__doc__)
@click.option("--data-root", type=click.Path(path_type=Path), required=True, help="Full IDX files.")
@click.option(
    "--output", type=click.Path(path_type=Path), default=PACKAGE, help="Folder to write to."
)
def main(data_root: Path, output: Path) -> None:
    """Make both samples and the manifest."""
    output.mkdir(parents=True, exist_ok=True)
    manifest = {f"{name}-mini": make(name, data_root, output) for name in ORIGIN}
    (output / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")
    for name, record in manifest.items():
        size = (output / record["file"]).stat().st_size
        click.echo(f"{name}: {record['file']}, {size:,} bytes")


if __name__ == "__main__":
    main()
