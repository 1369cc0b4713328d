"""An adapter as a file holds it: its config, and its numbers under our names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.lora.adapters import Adapter, active, adapters, add, parts, remove, use
from pellucid.lora.config import Lora
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.weights import usable


@dataclass(frozen=True)
class Stored:
    """factors: A and B of each map by its path; whole: parameters that were trained whole, by name."""

    config: Lora
    factors: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, Tensor]


def stored(model: Model | Transformer, name: str) -> Stored:
    """One of a model's adapters, to be written."""
    low, whole = parts(model, name)
    factors = {path: (each.down.detach(), each.up.detach()) for path, each in low.items()}
    return Stored(adapters(model)[name], factors, {key: each.detach() for key, each in whole.items()})


@torch.no_grad()
def install(model: Model | Transformer, what: Stored, name: str) -> Adapter:
    """Add an adapter and give it these numbers; a model on which they do not fit is left as it was."""
    before = active(model)
    adapter = add(model, what.config, name, seed=0)
    low, whole = parts(model, name)
    wanted = {f"{path}.{part}": getattr(each, part) for path, each in low.items() for part in ("down", "up")}
    found = {
        f"{path}.{part}": each
        for path, pair in what.factors.items()
        for part, each in zip(("down", "up"), pair, strict=True)
    }
    try:
        _fill(wanted | whole, found | what.whole)
    except CheckpointError:
        remove(model, name)
        if before:
            use(model, before)
        raise
    return adapter


def _fill(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    odd = sorted(set(wanted) ^ set(found))
    if odd:
        word = "lacks" if odd[0] in wanted else "has"
        raise CheckpointError(
            f"the adapter {word} {odd[0]} ({len(odd)} such): do its config and its tensors belong together?"
        )
    for key, parameter in wanted.items():
        if parameter.shape != found[key].shape:
            raise CheckpointError(
                f"the adapter's {key} has shape {list(found[key].shape)}, but this model needs "
                f"{list(parameter.shape)}: was it trained on another base?"
            )
    for key, parameter in wanted.items():
        parameter.copy_(found[key])


def read_tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file, checked."""
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}): it is missing, cut short or damaged") from None
    return {name: usable(name, tensor) for name, tensor in tensors.items()}
