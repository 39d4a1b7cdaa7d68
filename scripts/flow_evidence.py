"""Do flowed datasets stand in for their target? Classifiers say so, or not.

For example ``flow_evidence.py --data DATA --output evidence.json`` (2,000 samples a side, ten
minutes on a CPU), or with ``--samples 60000 --device cuda``. Two pairs: MNIST to Fashion-MNIST,
whose classes have nothing to do with one another, and scikit-learn's digits to MNIST brought to
8 x 8, where the right correspondence is known. For each mode of a flow:

* accuracy by step, on the moving samples, of a network that was trained on all of the target's
  real training set. A source class counts as the target class that most of its plan mass goes to
  at the end (in `attached` also: whose law is nearest); `augmented` has read the labels itself;
* accuracy on the target's real test set of networks trained on the flowed set with those labels,
  on the source as it was with the same labels (and its own, where they are known to be right), on
  the target samples that the flow was given, and on a few real samples a class, alone and after
  training on the source, flowed and not.

The flow has seen target samples with their labels. So the honest rival of the flowed set is not the
unflowed source but those samples themselves, which is a row of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn

from otdd_flash.datasets import load
from otdd_flash.datasets.sampling import sample
from otdd_flash.flows import FlowSettings, FlowState, flow
from otdd_flash.laws.bures import gaussian_w2
from otdd_flash.laws.gaussians import class_laws
from otdd_flash.ops import resolve_device
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import machine
from otdd_flash.types import LabelledDataset

HIDDEN, BATCH, RATE = 256, 128, 1e-3
# updates of a training and of what follows it on a few samples; a whole set gets more
UPDATES, FEW_UPDATES, ALL_UPDATES = 1500, 300, 6000
SEEDS = (0, 1, 2)
FEW = 10  # real samples a class
MODES = ("attached", "features", "augmented")


def network(data: LabelledDataset, classes: int, seed: int, device: torch.device) -> nn.Module:
    """Return a small network with weights of a seed."""
    torch.manual_seed(seed)
    layers = (nn.Linear(data.dimension, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes))
    return nn.Sequential(*layers).to(device)


def train(
    net: nn.Module,
    x: Tensor,  # (n, d) in [0, 1]
    labels: Tensor,  # (n,) int64
    updates: int,
    seed: int,
) -> nn.Module:
    """Train on random batches and return the network."""
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(updates):
        rows = torch.randint(0, len(x), (BATCH,), generator=draw).to(x.device)
        loss = nn.functional.cross_entropy(net(x[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def guesses(net: nn.Module, x: Tensor) -> Tensor:  # (n,) int64
    """Return the classes that a network sees."""
    with torch.no_grad():
        return torch.cat([net(part).argmax(1) for part in x.split(1 << 13)])


def share(right: Tensor) -> float:
    """Return the share that is true, to four digits."""
    return round(float(right.double().mean()), 4)


def spread(values: list[float]) -> dict[str, float]:
    """Return mean, least and largest over the seeds."""
    return {
        "mean": round(sum(values) / len(values), 4),
        "least": min(values),
        "largest": max(values),
    }


class Pair:
    """A source, the target samples that a flow gets, and the target's real data."""

    def __init__(
        self,
        name: str,
        source: LabelledDataset,
        target: LabelledDataset,  # all of the training set
        test: LabelledDataset,
        samples: int,
        top: float,  # the largest value of a coordinate
        device: torch.device,
        known: bool,  # whether class c of the source is class c of the target
    ) -> None:
        self.name, self.known, self.top, self.device = name, known, top, device
        self.source, self.given = sample(source, samples, 0), sample(target, samples, 0)
        self.train = self.tensors(target)
        self.test = self.tensors(test)
        self.classes = target.classes
        self.few = self.tensors(sample(target, FEW * target.classes, 1))
        self.judge = train(network(target, self.classes, 0, device), *self.train, ALL_UPDATES, 0)

    def tensors(self, data: LabelledDataset) -> tuple[Tensor, Tensor]:
        """Return points in [0, 1] and labels on the device."""
        return self.scaled(data.points), data.labels.to(self.device)

    def scaled(self, points: Tensor) -> Tensor:
        """Return points in [0, 1], rounded as a flowed set is when it is written."""
        levels = points.to(self.device).float().round().clamp(0, self.top)
        return levels / self.top

    def accuracy(self, make: Callable[[int], nn.Module]) -> dict[str, float]:
        """Return the accuracy on the real test set, over seeds."""
        x, labels = self.test
        return spread([share(guesses(make(seed), x) == labels) for seed in SEEDS])


def correspondence(state: FlowState, pair: Pair, mode: str) -> dict[str, list[int]]:
    """Return the target class of each source class, by mass at the end and by nearest law."""
    assert state.class_mass is not None
    out = {"by_mass": state.class_mass.argmax(1).tolist()}
    if mode == "attached":
        given = pair.given
        flowed = state.dataset(pair.source)
        laws = [
            class_laws(d.points.cpu(), d.labels.cpu(), d.weights.cpu()) for d in (flowed, given)
        ]
        out["by_law"] = gaussian_w2(*laws).argmin(1).tolist()
    return out


def run_flow(pair: Pair, settings: FlowSettings, every: int) -> tuple[dict[str, Any], FlowState]:
    """Flow and return what the judge says of the moving samples, by step."""
    seen: dict[int, Tensor] = {}
    values = []
    for state in flow(pair.source, pair.given, settings):
        values.append(state.value)
        if state.step % every == 0 or state.step == settings.steps:
            seen[state.step] = guesses(pair.judge, pair.scaled(state.points))
    found = correspondence(state, pair, settings.mode)
    labels = pair.source.labels.to(pair.device)
    meant = {name: torch.tensor(c, device=pair.device)[labels] for name, c in found.items()}
    if settings.mode == "augmented":
        meant["read"] = state.labels.to(pair.device)
    if pair.known:
        meant["same digit"] = labels
    report = {
        "values": [values[0], values[-1]],
        "fall": round(1 - values[-1] / values[0], 4),
        "correspondence": found,
        "target_classes_reached": len(set(found["by_mass"])),
        "judge_accuracy_by_step": {
            name: {step: share(seen[step] == classes) for step in seen}
            for name, classes in meant.items()
        },
        "judge_class_shares_at_the_end": [
            share(seen[settings.steps] == k) for k in range(pair.classes)
        ],
    }
    if pair.known:
        right = [int(a == b) for a, b in enumerate(found["by_mass"])]
        report["classes_that_found_their_own"] = sum(right)
    chosen = meant["read"] if settings.mode == "augmented" else meant["by_mass"]
    report["trained_on"] = trainings(pair, pair.scaled(state.points), chosen)
    return report, state


def trainings(pair: Pair, flowed: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return test accuracies of networks trained on the flowed set and on its rivals."""
    source, own = pair.tensors(pair.source)

    def fresh(seed: int, classes: int = pair.classes) -> nn.Module:
        return network(pair.source, classes, seed, pair.device)

    def on(x: Tensor, y: Tensor, few: bool = False) -> Callable[[int], nn.Module]:
        def make(seed: int) -> nn.Module:
            net = train(fresh(seed), x, y, UPDATES, seed)
            return train(net, *pair.few, FEW_UPDATES, seed) if few else net

        return make

    # where classes are known to be the same, the source as it is is a training set of the target
    known = {"source with its own labels": pair.accuracy(on(source, own))} if pair.known else {}
    return {
        "flowed set": pair.accuracy(on(flowed, labels)),
        **known,
        "source with the same labels": pair.accuracy(on(source, labels)),
        "source with the same labels, then a few real": pair.accuracy(on(source, labels, few=True)),
        "flowed set, then a few real": pair.accuracy(on(flowed, labels, few=True)),
        "source with its own labels, then a few real": pair.accuracy(on(source, own, few=True)),
        "a few real alone": pair.accuracy(
            lambda seed: train(fresh(seed), *pair.few, FEW_UPDATES, seed)
        ),
        "target samples that the flow saw": pair.accuracy(on(*pair.tensors(pair.given))),
    }


def eight_by_eight(data: LabelledDataset) -> LabelledDataset:
    """Return MNIST as scikit-learn's digits are: what fills the frame, in levels of 0 to 16.

    MNIST's digits lie in a box of 20 x 20 pixels, those of scikit-learn fill theirs.
    """
    images = data.points.reshape(-1, 1, 28, 28)[:, :, 4:24, 4:24].float()
    small = nn.functional.interpolate(images, size=(8, 8), mode="area")
    return LabelledDataset(
        (small[:, 0] * (16 / 255)).round().to(torch.uint8),
        data.labels,
        class_names=data.class_names,
        sample_shape=(8, 8),
        name=f"{data.name} 8x8",
    )


def pairs(data: str | None, samples: int, device: torch.device) -> dict[str, Callable[[], Pair]]:
    """Return what makes each pair."""

    def fashion() -> Pair:
        source = load("mnist", data_root=data)
        target, test = (load("fashion-mnist", data_root=data, split=s) for s in ("train", "test"))
        return Pair("mnist to fashion-mnist", source, target, test, samples, 255, device, False)

    def digits() -> Pair:
        target, test = (
            eight_by_eight(load("mnist", data_root=data, split=s)) for s in ("train", "test")
        )
        source = load("digits")
        return Pair("digits to mnist 8x8", source, target, test, samples, 16, device, True)

    return {"fashion": fashion, "digits": digits}


@click.command(help=__doc__)
@click.option("--data", metavar="DIR", help="Folder with the IDX files.  [default: OTDD_DATA]")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="JSON to write.")
@click.option("--samples", default=2000, show_default=True, help="Samples a side of the flows.")
@click.option("--steps", default=100, show_default=True)
@click.option("--every", default=10, show_default=True, help="Steps between two judgements.")
@click.option("--modes", default=",".join(MODES), show_default=True)
@click.option("--only", default="digits,fashion", show_default=True, help="Pairs.")
@click.option("--device", default="auto", show_default=True)
def main(
    data: str | None,
    output: Path,
    samples: int,
    steps: int,
    every: int,
    modes: str,
    only: str,
    device: str,
) -> None:
    """Run all flows, print the main numbers and write the JSON after each."""
    where = resolve_device(device)
    data = data or os.environ.get("OTDD_DATA")
    report: dict[str, Any] = {
        **machine(where),
        "network": f"{HIDDEN} hidden units, Adam {RATE:g}, {UPDATES} batches of {BATCH}",
        "few": f"{FEW} real samples a class, {FEW_UPDATES} batches",
        "seeds": list(SEEDS),
        "pairs": {},
    }
    for name, make in pairs(data, samples, where).items():
        if name not in only.split(","):
            continue
        pair = make()
        x, labels = pair.test
        entry: dict[str, Any] = {
            "samples": [len(pair.source), len(pair.given)],
            "judge_test_accuracy": share(guesses(pair.judge, x) == labels),
            "modes": {},
        }
        report["pairs"][pair.name] = entry
        click.echo(f"\n{pair.name}: judge {entry['judge_test_accuracy']:.1%} on real test data")
        for mode in modes.split(","):
            law = "diagonal" if mode == "augmented" else "gaussian"
            solver = OTDDSettings(tol=1e-2, device=str(where), label_distance=law)
            settings = FlowSettings(mode=mode, steps=steps, solver=solver)
            found, _ = run_flow(pair, settings, every)
            entry["modes"][mode] = found
            output.write_text(json.dumps(report, indent=1))
            show(mode, found)


def show(mode: str, found: dict[str, Any]) -> None:
    """Print what came of one flow."""
    click.echo(f"{mode}: S falls by {found['fall']:.1%}")
    for name, steps in found["judge_accuracy_by_step"].items():
        row = ", ".join(f"{step}: {value:.1%}" for step, value in steps.items())
        click.echo(f"  judge, labels {name}: {row}")
    for name, value in found["trained_on"].items():
        click.echo(f"  {name:<46}{value['mean']:.1%} ({value['least']:.1%}-{value['largest']:.1%})")


if __name__ == "__main__":
    main()
