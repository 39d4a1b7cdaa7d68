"""Make what README and notebooks show: one command for all, and one each.

python scripts/make_figures.py all               all of them; measurements stay as they are kept
python scripts/make_figures.py picture           the picture of the README
python scripts/make_figures.py tables            prints the README's tables of measurements
python scripts/make_figures.py notebooks [NAME]  runs notebooks and keeps their outputs
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import click
from PIL import Image

TOP = Path(__file__).resolve().parents[1]
RESULTS = TOP / "scripts" / "results"
PICTURE = RESULTS / "mnist-mini_fashion-mnist-mini.png"
# what a notebook is kept with: no versions or names of the machine that ran it
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@click.group()
def main() -> None:
    """Make what README and notebooks show."""


@main.command()
def picture() -> None:
    """Draw the picture of the README."""
    from otdd_flash import distance, load, plot_result

    src, tgt = load("mnist-mini"), load("fashion-mnist-mini")
    plot_result(distance(src, tgt, normalize="unit", device="cpu"), PICTURE, src, tgt)
    click.echo(f"{PICTURE.relative_to(TOP)}: {PICTURE.stat().st_size:,} bytes")


@main.command()
@click.option("--check", is_flag=True, help="Print only the lines that the README has not.")
def tables(check: bool) -> None:
    """Print the tables of measurements of the README, in Markdown."""
    sections = json.loads((RESULTS / "bench_gpu_h200.json").read_text())["sections"]
    lines = [*peers_table(sections), "", *own_table(sections)]
    if not check:
        click.echo("\n".join(lines))
        return
    readme = (TOP / "README.md").read_text("utf-8").splitlines()
    if stale := [line for line in lines if line not in readme]:
        raise click.ClickException("not in README.md:\n" + "\n".join(stale))


def peers_table(sections: dict[str, Any]) -> list[str]:
    """Return the lines of the table beside other packages."""
    peers, own = sections["peers"], sections["pass"]["n = m = 60,000"]
    tf32, fp32, unlabelled = (
        peers[f"flash-sinkhorn symmetric, {kind}, 60,000"]
        for kind in ("labels, TF32", "labels, fp32", "no labels, TF32")
    )
    geomloss = peers["GeomLoss scaling 0.5, 60,000"]
    ott = peers["OTT-JAX stored, labels, 60,000"]
    # a dense float64 check of 60,000 x 60,000 does not fit beside its costs
    geomloss_error = peers["GeomLoss scaling 0.5, 20,000"]["cost_error"]
    solver = sections["solver"]
    one, half = (solver[f"{eps}: S, default budget"] for eps in ("eps 1%", "eps 0.1, half costs"))
    slowest = max(
        row["first_call_seconds"] for title, row in peers.items() if "flash-sinkhorn" in title
    )
    cross = solver["eps 1%: cross to 0.001"]
    alone = peers["flash-sinkhorn alternating, no labels, TF32, 60,000"]["seconds_to_0.001"]
    rows = [
        ("what", "here", "flash-sinkhorn 0.4.1", "GeomLoss 0.3.1", "OTT-JAX 0.6.0, cost stored"),
        (
            "one marginal update, labels",
            f"**{own['ms']:.1f} ms**",
            f"{tf32['ms_per_update']:.0f} ms (TF32), {fp32['ms_per_update']:.0f} ms (fp32)",
            f"{geomloss['ms_per_update']:.0f} ms",
            f"{ott['ms_per_update']:.0f} ms",
        ),
        (
            "cost error, of the mean cost",
            power(own["cost_error"]),
            f"{power(tf32['cost_error'])} (TF32), {power(fp32['cost_error'])} (fp32)",
            power(geomloss_error),
            "float32",
        ),
        (
            "L1 marginal error after its default schedule",
            power(cross["marginal_error_float64"], 0),
            *(f"{row['marginal_error_float64']:.2f}" for row in (tf32, geomloss)),
            power(ott["marginal_error_float64"], 0),
        ),
        (
            "cross term to an L1 error of 1e-3, default `eps`",
            f"**{cross['seconds']:.2f} s**",
            f"{tf32['seconds_to_0.001']:.0f} s; without labels, alternating {alone:.1f} s",
            "not reached",
            f"{ott['seconds']:.1f} s",
        ),
        (
            "debiased distance with bounds, default `eps`",
            f"**{one['seconds']:.2f} s**",
            *["no bounds"] * 3,
        ),
        (
            "the same at `eps = 0.1`, half costs",
            f"**{half['seconds']:.2f} s**",
            *["no bounds"] * 3,
        ),
        (
            "extra memory",
            f"{one['extra_bytes'] / 1e9:.2f} GB",
            f"{tf32['extra_bytes'] / 1e9:.2f} GB",
            f"{geomloss['extra_bytes'] / 1e9:.0f} GB",
            f"{ott['peak_bytes'] / 1e9:.0f} GB",
        ),
        (
            "first call",
            f"{one['first_call_seconds']:.1f} s",
            f"{unlabelled['first_call_seconds']:.0f} to {slowest:.0f} s without labels "
            "(autotuning)",
            f"{geomloss['first_call_seconds']:.1f} s",
            f"{ott['first_call_seconds']:.1f} s",
        ),
    ]
    return markdown(rows)


def own_table(sections: dict[str, Any]) -> list[str]:
    """Return the lines of the table of further measurements."""
    command = sections["command"]
    cold = command["cold kernel cache"]["seconds"]
    warm = [row["seconds"] for title, row in command.items() if "warm" in title]
    two, three = (sections["floats"][f"d = 512, {count} slices"] for count in (2, 3))
    stored = sections["floats"]["d = 512, stored, 2 slices"]
    small = ", ".join(f"{sections['small'][f'd = {d}']['ms']:.1f}" for d in (3, 16, 64))
    rows = [
        ("also", ""),
        (
            "the whole command, process start to printed JSON",
            f"{min(warm):.1f} to {max(warm):.1f} s, {cold:.1f} s with a cold kernel cache",
        ),
        *(
            (
                f"{n} a side, three passes",
                f"{row['three_passes_seconds']:.{digits}f} s, {row['peak_bytes'] / 1e9:.1f} GB",
            )
            for n, digits in (("250,000", 2), ("1,000,000", 1))
            for row in [sections["large"][f"n = m = {n}"]]
        ),
        (
            "floats, d = 512, 16 bits a coordinate",
            f"{two['ms']:.1f} ms a pass streamed, {stored['ms']:.1f} to "
            f"{stored['ms_transposed']:.1f} ms with the cost stored",
        ),
        (
            "floats, d = 512, 24 bits",
            f"{three['ms']:.1f} ms a pass streamed, cost error {power(three['cost_error'])}",
        ),
        ("d = 3, 16, 64", f"{small} ms a pass"),
        (
            "class laws and label costs, 2 x 60,000 x 784",
            f"{sections['laws']['2 x 60,000 x 784']['seconds']:.2f} s",
        ),
        (
            "label costs of 1,000 x 1,000 classes, d = 512",
            ", ".join(
                f"{row['seconds']:.0f} s ({row['samples']:,} samples a class)"
                for row in sections["matrix"].values()
            ),
        ),
    ]
    return markdown(rows)


def markdown(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table whose first row names its columns."""
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def power(value: float, digits: int = 1) -> str:
    """Return a small number as people write it: 2.1e-7."""
    mantissa, exponent = f"{value:.{digits}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


@main.command()
@click.argument("names", nargs=-1)
def notebooks(names: tuple[str, ...]) -> None:
    """Run notebooks, all of them or those named, and keep their outputs, small."""
    paths = sorted((TOP / "notebooks").glob("*.ipynb"))
    unknown = set(names) - {path.stem for path in paths}
    if unknown:
        raise click.UsageError(f"no notebooks/{sorted(unknown)[0]}.ipynb")
    for path in paths:
        if not names or path.stem in names:
            refresh(path)
            click.echo(f"{path.relative_to(TOP)}: {path.stat().st_size:,} bytes")


def refresh(path: Path) -> None:
    """Run one notebook in an empty folder and write it with its new outputs."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        run = NotebookClient(book, timeout=600, record_timing=False, coalesce_streams=True)
        run.resources = {"metadata": {"path": folder}}
        run.execute()
    book.metadata = METADATA
    for cell in book.cells:
        cell.metadata = {}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = fewer_colours(output.data["image/png"])
    nbformat.write(book, path)


@main.command("all")
@click.pass_context
def everything(context: click.Context) -> None:
    """Make picture and notebooks, and print the tables."""
    context.invoke(picture)
    context.invoke(notebooks, names=())
    context.invoke(tables, check=False)


def fewer_colours(
    picture: str,  # a PNG in base64
) -> str:
    """Return a picture with 256 colours, which takes less than half."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(picture))) as opened:
        opened.convert("RGB").quantize(256, kmeans=2).save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    main()
