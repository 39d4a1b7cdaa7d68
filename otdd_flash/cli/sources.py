"""Options of what is read from datasets and how it becomes points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from otdd_flash.cli.options import group
from otdd_flash.cli.params import Sides

if TYPE_CHECKING:
    from otdd_flash.datasets import LoadSettings

# what the help says of datasets
SPECS = """\b
A dataset is one of
  mnist-mini, cifar10, ...     a name of `otdd datasets`
  hf:owner/name:config         of the Hugging Face hub
  sklearn:wine                 of scikit-learn
  table.csv                    or .tsv, .jsonl, .parquet, .arrow: a row a sample
  arrays.npz                   or .npy, .safetensors, .pt: points and labels
  folder                       of class folders of images or texts, IDX files, or saved by datasets
with @test behind it for another split.
"""

data_root_option = click.option(
    "--data-root",
    type=click.Path(),
    metavar="DIR",
    help="Folder with dataset files, searched before OTDD_DATA and the caches.",
)

# which samples
sample_options = group(
    click.option(
        "--split",
        default="train",
        show_default=True,
        metavar="NAME",
        help="Split of all datasets, such as train or test; SPEC@NAME for one of them.",
    ),
    click.option(
        "--max-samples",
        type=click.IntRange(min=1),
        metavar="N",
        help="Keep at most N of each, stratified by class, drawn before decoding.  [default: all]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of the subsample; one dataset gives one sample on both sides.",
    ),
    data_root_option,
    click.option(
        "--label",
        multiple=True,
        metavar="NAME",
        help="Column or array of the labels; given again, one for each dataset.",
    ),
    click.option(
        "--features",
        multiple=True,
        metavar="NAME",
        help="Column or array of the points; again for more, pixel* for many.",
    ),
    click.option(
        "--labels",
        default="given",
        show_default=True,
        metavar="given|none|kmeans:K|quantiles:K",
        help="Classes as they are given, one class, K clusters, or K ranges of a number.",
    ),
    click.option("--drop-unlabelled", is_flag=True, help="Drop samples without a label."),
)

# how they become points
point_options = group(
    click.option(
        "--image-size",
        type=Sides(),
        metavar="N|HxW",
        help="Bring images to one size: the shorter side fitted, the middle cut out.",
    ),
    click.option(
        "--color",
        type=click.Choice(["auto", "grey", "rgb", "rgba"]),
        default="auto",
        show_default=True,
        help="Bring images to one colour; auto: RGB where they differ.",
    ),
    click.option(
        "--scale",
        type=click.Choice(["auto", "standard", "none"]),
        default="auto",
        show_default=True,
        help="Mean 0 and variance 1 over all datasets; auto: for the numbers of tables alone.",
    ),
    click.option(
        "--missing",
        type=click.Choice(["refuse", "drop", "mean", "median"]),
        default="refuse",
        show_default=True,
        help="Missing entries of tables: an error, drop their rows, or fill them.",
    ),
    click.option("--cosine", is_flag=True, help="Divide each sample by its norm."),
    click.option(
        "--encoder",
        metavar="NAME",
        help="pixels, pca:50, torchvision:resnet18, timm:MODEL, sentence:MODEL, or your own "
        "module:callable.  [default: pixels]",
    ),
    click.option(
        "--weights",
        metavar="FILE",
        help="Weights of a torchvision or timm encoder, or torchvision's name for them.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
        metavar="N",
        help="Samples that an encoder gets at once.",
    ),
    click.option("--no-cache", is_flag=True, help="Encode again, and keep nothing of it."),
)

dataset_options = group(sample_options, point_options)


def load_settings(options: dict[str, Any]) -> LoadSettings:
    """Return the settings that the options of datasets give."""
    from otdd_flash.datasets import LoadSettings

    names = (
        "split max_samples seed data_root labels drop_unlabelled image_size color scale missing "
        "cosine encoder weights batch_size"
    )
    return LoadSettings(
        **{name: options[name] for name in names.split()},
        label=options["label"] or None,
        features=options["features"] or None,
        device=options["device"],
        cache=not options["no_cache"],
    )
