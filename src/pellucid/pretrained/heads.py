"""The same model with another head: what an encoder needs to become a tagger."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pellucid.model.config import Head, ModelConfig
from pellucid.model.mechanisms import KernelName
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model


def with_head(
    model: Model, head: Head, labels: tuple[str, ...], *, kernel: KernelName = "fused", seed: int | None = None
) -> tuple[Model, tuple[str, ...]]:
    """A copy in float32 that keeps every tensor that fits, and the names of the others, which are drawn from the seed.

    Scores of labels fit where the labels are the same ones, in their order.
    """
    shape = ModelConfig(**model.config.model_dump() | {"head": head})
    network = Transformer(shape, kernel=kernel, seed=seed)
    own, theirs = network.state_dict(), model.network.plain().state_dict()
    new = tuple(name for name in own if not _fits(name, own, theirs, same_labels=labels == model.labels))
    network.load_state_dict({name: own[name] if name in new else theirs[name] for name in own})
    return replace(model, config=shape, network=network.eval(), labels=labels), new


def _fits(name: str, own: dict[str, Tensor], theirs: dict[str, Tensor], *, same_labels: bool) -> bool:
    if name.startswith("head.to_labels.") and not same_labels:
        return False
    return name in theirs and theirs[name].shape == own[name].shape
