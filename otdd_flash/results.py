"""Results as JSON, as a file, and as a table for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from otdd_flash.archive import plain, read_archive, write_archive
from otdd_flash.checks import shown
from otdd_flash.errors import DataError
from otdd_flash.many.findings import Explanation, MatrixResult, Ranking, Values
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import Interval, NoiseFloor, OTDDResult

# what a file can hold, by the name in its header
KINDS: dict[str, type] = {
    "distance": OTDDResult,
    "matrix": MatrixResult,
    "explanation": Explanation,
    "values": Values,
    "ranking": Ranking,
}
# source classes listed in the table; the rest is in the JSON
TABLE_ROWS = 30
# width of the first column of the table
LABEL = 11


def to_json(result: OTDDResult) -> dict[str, Any]:
    """Return a result as one object of plain JSON types, without the potentials.

    ``label_cost`` and ``class_mass`` are lists of Vx rows of Vy numbers, in the order of
    ``source.class_names`` and ``target.class_names``. A number that is not finite becomes None.
    """
    keys = (
        "source target distance squared squared_bounds transport epsilon mean_cost marginal_error "
        "converged passes self_passes label_cost class_mass quantization_error seconds "
        "peak_memory_bytes device settings versions notes "
        "interval noise_floor"
    )
    return {key: plain(getattr(result, key)) for key in keys.split()}


def save(result: Any, path: str | Path) -> None:
    """Write a result of any kind as an npz file that is read without pickle.

    Its tensors are arrays of the file, for a distance ``label_cost``, ``class_mass``, ``f`` and
    ``g`` (float64); everything else, settings and versions included, is JSON text in the 0-d array
    ``header``.

    Raises:
        DataError: no result of these kinds, such as a step of a flow.
        OSError: the file cannot be written; what was there before stays.
    """
    kind = next((name for name, made in KINDS.items() if isinstance(result, made)), None)
    if kind is None:
        raise DataError(
            f"{shown(result)} arrived, expected a result of distance, matrix, explain, value or "
            "rank; flows are kept by `otdd flow --out`"
        )
    write_archive(result, kind, path)


def load_result(path: str | Path) -> Any:
    """Read a result that :func:`save` wrote, as what it was.

    Raises:
        DataError: no such file, or a file that is not a whole result.
    """
    return read_archive(path, KINDS)


def conventions(settings: OTDDSettings) -> str:
    """Say in one line what the cost is and what ``eps`` is measured in."""
    terms = []
    if settings.lambda_x:
        terms.append(_scaled(settings.lambda_x, "||x - y||^2"))
    if settings.lambda_y:
        law = {"gaussian": "W2", "diagonal": "W2 (diagonal)", "means": "means"}
        terms.append(_scaled(settings.lambda_y, f"{law[settings.label_distance]}[lx, ly]"))
    cost = " + ".join(terms)
    if settings.cost_scale != 1:
        cost = f"{settings.cost_scale:g} ({cost})"
    points = {
        "none": "; points as they are",
        "unit": "; points in [0, 1]",
        "mnist": "; points standardised",
    }
    return f"C = {cost}{points[settings.normalize]}; eps in units of C"


def _scaled(factor: float, term: str) -> str:
    return term if factor == 1 else f"{factor:g} {term}"


def sampled(provenance: dict[str, Any]) -> str:
    """Say how a subsample was drawn, or nothing when the dataset is whole."""
    note = provenance.get("sampled")
    if not note:
        return ""
    return f"{note['kept']:,} of {note['of']:,} samples, stratified by class, seed {note['seed']}"


def preparation(provenance: dict[str, Any]) -> list[str]:
    """Say how a dataset was drawn, and what was chosen or converted when it was loaded."""
    drawn = sampled(provenance)
    return [*([drawn] if drawn else []), *provenance.get("announced", ())]


def summary(result: OTDDResult) -> str:
    """Return the table that the command prints, without a final line break."""
    values, machine = (
        [f"{name:<{LABEL}}{text}" for name, text in rows]
        for rows in (evidence(result), machine_facts(result))
    )
    parts = [_datasets(result), values, _classes(result), machine]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _datasets(result: OTDDResult) -> list[str]:
    sides = (("source", result.source), ("target", result.target))
    width = max(12, *(len(clipped(side.name, 32)) for _, side in sides))
    lines = [f"{'':<{LABEL}}{'dataset':<{width}}  {'n':>9}  {'d':>6}  {'classes':>7}"]
    for role, side in sides:
        line = f"{role:<{LABEL}}{clipped(side.name, 32):<{width}}  {side.n:>9,}  {side.d:>6,}"
        lines.append(f"{line}  {side.classes:>7,}")
    for role, side in sides:
        if sampled(side.provenance):
            lines.append(f"{'sampled':<{LABEL}}{role}: {sampled(side.provenance)}")
    return lines


def evidence(result: OTDDResult) -> list[tuple[str, str]]:
    """Return the values of a result and what vouches for them, each with its name."""
    low, high = result.squared_bounds
    transport = result.transport
    settings = result.settings
    relative = isinstance(settings.epsilon, str) and settings.epsilon.strip().endswith("%")
    given = f"{settings.epsilon.strip()} of" if relative else "given;"  # type: ignore[union-attr]
    verdict = "converged" if result.converged else "NOT CONVERGED"
    own = " + ".join(str(count) for count in result.self_passes)
    kind = "debiased" if settings.debias else "not debiased"
    rows = [
        ("distance", f"{result.distance:.7g} = sqrt(squared)"),
        ("squared", f"{result.squared:.7g} ({kind}), between {low:.7g} and {high:.7g}"),
        ("transport", f"lower {transport.lower:.7g} <= OT <= upper {transport.upper:.7g}"),
        ("entropic", f"{transport.entropic:.7g}, of the regularised plan"),
        ("epsilon", f"{result.epsilon:.5g} ({given} the mean cost {result.mean_cost:.5g})"),
        (
            "marginals",
            f"L1 error {result.marginal_error:.1e} (tol {settings.tol:g}), {verdict} after "
            f"{result.passes} passes (self terms {own})",
        ),
    ]
    if result.quantization_error:
        rows.append(
            ("stored as", f"integers, which moves OT by <= {result.quantization_error:.1e}")
        )
    if result.interval is not None:
        rows += interval_rows(result.squared, result.interval)
    rows += [
        ("noise", f"floor of {side.name}: {floor_text(floor)}")
        for side, floor in zip((result.source, result.target), result.noise_floor, strict=False)
    ]
    rows.append(("where", conventions(settings)))
    return rows + [("note", note) for note in result.notes]


def interval_rows(squared: float, interval: Interval) -> list[tuple[str, str]]:
    """Return what resamples say of a value, as rows of a table."""
    low, high = (max(end, 0.0) ** 0.5 for end in (interval.lower, interval.upper))
    root = f"distance {max(squared, 0.0) ** 0.5:.5g} +- {(high - low) / 2:.2g}"
    drawn = f"{interval.level:.0%} of {interval.resamples} resamples, seed {interval.seed}"
    return [("bootstrap", f"{root}, squared +- {interval.half_width:.2g} ({drawn})")]


def floor_text(floor: NoiseFloor) -> str:
    """Return a noise floor for people."""
    return (
        f"distance {max(floor.squared, 0.0) ** 0.5:.5g}, squared {floor.squared:.5g} between two "
        f"halves of {floor.n:,}, seed {floor.seed}"
    )


def _classes(result: OTDDResult) -> list[str]:
    mass = result.class_mass.detach().cpu().double()
    names = [clipped(name, 28) for name in result.source.class_names]
    width = max(12, *(len(name) for name in names[:TABLE_ROWS]))
    other = max(12, *(len(clipped(name, 28)) for name in result.target.class_names))
    lines = [f"{'source class':<{width}}  {'nearest class':<{other}}  {'share':>6}"]
    for row, name in enumerate(names[:TABLE_ROWS]):
        total = float(mass[row].sum())
        best = int(mass[row].argmax())
        target = clipped(result.target.class_names[best], 28) if total > 0 else "-"
        share = f"{float(mass[row, best]) / total:.1%}" if total > 0 else "-"
        lines.append(f"{name:<{width}}  {target:<{other}}  {share:>6}")
    if len(names) > TABLE_ROWS:
        lines.append(f"... and {len(names) - TABLE_ROWS} classes more (all are in --json)")
    return lines


def machine_facts(result: OTDDResult) -> list[tuple[str, str]]:
    """Return what a result took, and where, each with its name."""
    stages = ", ".join(f"{name} {value:.2f}" for name, value in result.seconds.items())
    memory = bytes_text(result.peak_memory_bytes)
    return [("seconds", stages), ("memory", f"{memory} at the peak, on {result.device}")]


def bytes_text(count: float) -> str:
    """Return a number of bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def printable(text: str) -> str:
    """Return a text without line breaks, tabs and marks that turn the direction of writing."""
    return "".join(c if c.isprintable() else " " for c in text)


def clipped(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters on one line."""
    text = printable(text)
    return text if len(text) <= width else text[: width - 3] + "..."
