"""A run that trains an adapter: what it may be put on, and what trains with it."""

from __future__ import annotations

from hashlib import blake2b

import torch

from pellucid.errors import ConfigError, InputError
from pellucid.lora.adapters import adapters, add
from pellucid.lora.targets import find_groups, find_whole
from pellucid.pretrained.facade import Model
from pellucid.training.config import RunConfig


def check_base(run: RunConfig, base: Model | None) -> None:
    """Refuse what cannot be adapted, before any data is read."""
    if run.lora is None:
        return
    if base is None:
        raise ConfigError(
            "the run has lora, which adapts a model that there is: use `pellucid finetune MODEL RUN.toml`, or remove "
            "[lora] to train a new one"
        )
    if adapters(base):
        raise InputError(
            f"{base.name} has the adapter {', '.join(adapters(base))} on it, and the new one would need both: merge "
            "them with `pellucid export ADAPTER NEW_FOLDER --merge`, and fine-tune NEW_FOLDER"
        )
    try:
        find_groups(base.network, run.lora.targets)
    except InputError as error:
        raise ConfigError(f"lora.targets: {error}. Name some of these instead") from None


def adapt(model: Model, run: RunConfig, new: tuple[str, ...]) -> list[str]:
    """Put the run's adapter on its model; what a person should know about it.

    new: parameters that the model to fine-tune did not have. Nobody trained them, so they train whole.
    """
    if run.lora is None:
        return []
    named = find_whole(model.network, run.lora.whole, ())
    more = tuple(dict.fromkeys(name.rpartition(".")[0] for name in new if name not in named))
    config = run.lora.model_copy(update={"whole": (*run.lora.whole, *more)})
    added = add(model, config, seed=run.seed)
    notes = [f"LoRA on {len(added.maps)} maps: {added.trained:,} of {added.total:,} parameters train"]
    if more:
        notes.append(f"{', '.join(more)} is new, so it trains whole and is kept with the adapter")
    return notes


def fingerprint(model: Model) -> str:
    """Of all tensors of a model."""
    digest = blake2b(digest_size=16)
    for name, tensor in model.network.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
