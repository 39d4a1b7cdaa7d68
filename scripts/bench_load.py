"""Measure the memory and time that ``load`` takes for a dataset of bytes, a format each.

For example ``bench_load.py --samples 1000000 --out load.json`` writes 784 MB a format into a
scratch folder, one after the other. Each is loaded in a process of its own, whose peak resident set
(``VmHWM`` of Linux) is reported, beside that of a process which only imports the package. It counts
the pages of a mapped file that were touched, which the system takes back when it needs them;
``RssAnon``, what the process holds itself, does not. With ``--max-samples`` a draw is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

FEATURES, CLASSES = 784, 10
BLOCK = 50_000  # samples that are made at once


def blocks(samples: int) -> Any:
    """Yield (first, points (k, 784) uint8, labels (k,) int64)."""
    generator = np.random.default_rng(0)
    for first in range(0, samples, BLOCK):
        count = min(BLOCK, samples - first)
        points = generator.integers(0, 256, (count, FEATURES), dtype=np.uint8)
        yield first, points, np.arange(first, first + count) % CLASSES


def write_npy(folder: Path, samples: int) -> tuple[str, dict[str, Any]]:
    """Write points.npy and labels.npy."""
    path = folder / "points.npy"
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (samples, FEATURES))
    for first, points, _ in blocks(samples):
        array[first : first + len(points)] = points
    array.flush()
    np.save(folder / "labels.npy", np.arange(samples) % CLASSES)
    return str(path), {"label": "labels.npy"}


def write_safetensors(folder: Path, samples: int) -> tuple[str, dict[str, Any]]:
    """Write points and labels into one file."""
    from safetensors.numpy import save_file

    path = folder / "points.safetensors"
    points = np.empty((samples, FEATURES), dtype=np.uint8)
    for first, part, _ in blocks(samples):
        points[first : first + len(part)] = part
    save_file({"points": points, "labels": np.arange(samples) % CLASSES}, path)
    return str(path), {}


def tables(samples: int) -> Any:
    """Yield Arrow tables of a column of vectors and a column of labels."""
    import pyarrow as pa

    for _, points, labels in blocks(samples):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), FEATURES)
        yield pa.table({"points": vectors, "label": labels})


def write_parquet(folder: Path, samples: int) -> tuple[str, dict[str, Any]]:
    """Write a row group a block."""
    import pyarrow.parquet as pq

    path, writer = folder / "points.parquet", None
    for table in tables(samples):
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return str(path), {}


def write_arrow(folder: Path, samples: int) -> tuple[str, dict[str, Any]]:
    """Write a file of record batches, a batch a block."""
    import pyarrow as pa

    path, writer = folder / "points.arrow", None
    for table in tables(samples):
        writer = writer or pa.ipc.new_file(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return str(path), {}


FORMATS: dict[str, Callable[[Path, int], tuple[str, dict[str, Any]]]] = {
    "npy": write_npy,
    "safetensors": write_safetensors,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def memory(key: str) -> int:
    """Return what the system says of this process's memory, in bytes."""
    # not ru_maxrss, which a process inherits from the one that started it
    status = Path("/proc/self/status").read_text("ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if key in line)


def measure(spec: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Load in this process and return what it took."""
    import otdd_flash
    from otdd_flash.datasets import description

    if spec is None:
        return {"peak_bytes": memory("VmHWM"), "own_bytes": memory("RssAnon")}
    begin = time.perf_counter()
    dataset = otdd_flash.load(spec, **options)
    seconds, loaded, own = time.perf_counter() - begin, memory("VmHWM"), memory("RssAnon")
    found = description(dataset)
    return {
        "samples": len(dataset),
        "features": dataset.dimension,
        "dtype": found["dtype"],
        "mean": found["mean"],
        "seconds": seconds,
        "peak_bytes": loaded,
        "own_bytes": own,
        "peak_bytes_after_a_pass": memory("VmHWM"),
    }


def in_a_process(spec: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Measure in a new process."""
    command = [sys.executable, __file__, "--measure", json.dumps([spec, options])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@click.command()
@click.option("--samples", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--max-samples", type=click.IntRange(min=1), help="Measure a draw of so many.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the report as JSON.")
@click.option("--measure", "task", hidden=True)
def main(samples: int, max_samples: int | None, out: Path | None, task: str | None) -> None:
    """Measure what loading takes, format by format."""
    if task is not None:
        print(json.dumps(measure(*json.loads(task))))
        return
    import torch

    from otdd_flash.timing import machine

    report: dict[str, Any] = {"samples": samples, "max_samples": max_samples}
    report["import"] = in_a_process(None, {})
    for name, write in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            spec, options = write(Path(folder), samples)
            report[name] = in_a_process(spec, {**options, "max_samples": max_samples})
        print(name, json.dumps(report[name]), flush=True)
    report["machine"] = machine(torch.device("cpu"), "pyarrow", "safetensors")
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
