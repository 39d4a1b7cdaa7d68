"""Files with the weights of a model, read as tensors and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from otdd_flash.errors import EncoderError, reason


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict from a safetensors file or from what torch.save wrote.

    Raises:
        EncoderError: a file that holds no weights, or other objects than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content: Any = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file fails in as many ways as it likes
        raise EncoderError(
            f"{path}: cannot be read as weights ({reason(error)}); save them with "
            "torch.save(model.state_dict(), path)"
        ) from error
    for key in ("state_dict", "model"):
        content = content.get(key, content) if isinstance(content, dict) else content
    pairs = content.items() if isinstance(content, dict) else [(None, None)]
    if not all(isinstance(key, str) and isinstance(value, Tensor) for key, value in pairs):
        raise EncoderError(
            f"{path}: holds no weights, expected a dict of tensors; save them with "
            "torch.save(model.state_dict(), path)"
        )
    # as nn.DataParallel names them; the dict itself stays, since versions of modules hang on it
    consume_prefix_in_state_dict_if_present(content, "module.")
    return content


def fill(
    model: nn.Module,  # without its head
    state: dict[str, Tensor],  # loses the weights of the heads
    heads: Iterable[str],
    title: str,
) -> None:
    """Load weights into a model that has lost its head.

    Raises:
        EncoderError: weights of another model.
    """
    ends = tuple(f"{head}." for head in heads)
    for key in [key for key in state if key.startswith(ends)]:
        del state[key]
    try:
        found = model.load_state_dict(state, strict=False)
    except (RuntimeError, ValueError) as error:
        raise EncoderError(
            f"{title}: the weights are of another model ({reason(error)})"
        ) from error
    if found.missing_keys or found.unexpected_keys:
        one = (found.missing_keys or found.unexpected_keys)[0]
        raise EncoderError(
            f"{title}: the weights are of another model: {len(found.missing_keys):,} tensors are "
            f"missing and {len(found.unexpected_keys):,} too many, {one} for one"
        )
