"""Small networks for the tests of the model, and a way around the shape checks for inputs that break them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
from torch import Tensor

from pellucid.model import config as c
from pellucid.model.transformer import Transformer

VOCAB, CONTEXT = 13, 12

MECHANISMS: dict[str, c.Attention] = {
    "softmax": c.Softmax(),
    "normalized_relu": c.NormalizedRelu(),
    "linformer_learned": c.Linformer(rank=4),
    "linformer_random": c.Linformer(rank=4, learned=False),
    "linear_elu": c.Linear(chunk=4),
    "linear_relu": c.Linear(features=c.Relu(), chunk=4),
    "linear_random": c.Linear(features=c.PositiveRandom(count=16, scale=0.05), chunk=4),
}

STACKS = {"encoder": {"encoder_blocks": 2}, "decoder": {"decoder_blocks": 2}}
STACKS["both"] = STACKS["encoder"] | STACKS["decoder"]


def config(stacks: str = "decoder", **changes: Any) -> c.ModelConfig:
    parts: dict[str, Any] = {
        "vocab": VOCAB,
        "width": 16,
        "heads": 4,
        "context": CONTEXT,
        "feed_forward": c.Plain(hidden=24, activation="gelu"),
        "position": c.Rotary(),
    }
    return c.ModelConfig(**parts | STACKS[stacks] | changes)


def network(stacks: str = "decoder", *, kernel: str = "fused", **changes: Any) -> Transformer:
    """In float64, and with weights larger than the initial ones, so that every part counts."""
    built = Transformer(config(stacks, **changes), kernel=kernel, seed=0).double().eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64), alpha=0.2)
    return built


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


@contextmanager
def unchecked() -> Iterator[None]:
    """What a user's process does: no shape checker stands before the library's own checks."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
