"""Every initial distribution, in one table."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.kernels.linear import gaussian_rows
from pellucid.model import config as c


@dataclass(frozen=True)
class Constant:
    value: float

    def variance(self, tensor: Tensor) -> float:
        return 0.0

    def fill(self, tensor: Tensor, generator: torch.Generator | None) -> None:
        tensor.fill_(self.value)


@dataclass(frozen=True)
class Normal:
    deviation: float

    def variance(self, tensor: Tensor) -> float:
        return self.deviation**2

    def fill(self, tensor: Tensor, generator: torch.Generator | None) -> None:
        tensor.normal_(0, self.deviation, generator=generator)


@dataclass(frozen=True)
class Xavier:
    """Uniform with variance gain^2 x 2 / (in + out) (Glorot & Bengio 2010)."""

    gain: float = 1.0

    def variance(self, tensor: Tensor) -> float:
        return self.gain**2 * 2 / (tensor.shape[0] + tensor.shape[1])

    def fill(self, tensor: Tensor, generator: torch.Generator | None) -> None:
        bound = (3 * self.variance(tensor)) ** 0.5
        tensor.uniform_(-bound, bound, generator=generator)


@dataclass(frozen=True)
class GaussianRows:
    """The projection of positive random features: each row N(0, I), orthogonal in blocks if asked."""

    orthogonal: bool

    def variance(self, tensor: Tensor) -> float:
        return 1.0

    def fill(self, tensor: Tensor, generator: torch.Generator | None) -> None:
        tensor.copy_(gaussian_rows(*tensor.shape, orthogonal=self.orthogonal, generator=generator))


Distribution = Constant | Normal | Xavier | GaussianRows


def table(config: c.ModelConfig) -> dict[str, Distribution]:
    """The distribution of every parameter and buffer, by a pattern for its name. Exactly one row fits each."""
    # What is added to the residual stream is scaled down, so that the stream does not grow with the depth.
    residual = Xavier(gain=(2 * max(config.encoder_blocks, config.decoder_blocks)) ** -0.5)
    # A scaled embedding is multiplied by sqrt(width) later, and has variance 1 then.
    tokens = Normal(config.width**-0.5 if config.scale_embedding else 0.02)
    rank = config.attention.rank if isinstance(config.attention, c.Linformer) else 1
    return {
        r"(source_)?tokens\.weight": tokens,
        r".*segment_table\.weight": Normal(0.02),
        r".*positions\.table\.weight": Normal(0.02),
        r".*\.to_(query|key|value)\.weight": Xavier(),
        r".*\.feed_forward\.(up|gate)\.weight": Xavier(),
        r".*\.(to_output|feed_forward\.down)\.weight": residual,
        r".*\.(key|value)_projection": Normal(rank**-0.5),
        r".*\.projection": GaussianRows(_orthogonal(config)),
        r"head\.weight": Normal(0.02),
        r"head\.(dense|to_labels)\.weight": Xavier(),
        r".*(normalize|norm|norm_query|norm_key|(before|after)_\w+)\.weight": Constant(1.0),
        r".*bias": Constant(0.0),
    }


def _orthogonal(config: c.ModelConfig) -> bool:
    attention = config.attention
    random = attention.features if isinstance(attention, c.Linear) else None
    return random.orthogonal if isinstance(random, c.PositiveRandom) else False


def distribution_of(name: str, rows: dict[str, Distribution]) -> Distribution:
    fitting = [row for pattern, row in rows.items() if re.fullmatch(pattern, name)]
    assert len(fitting) == 1, f"{len(fitting)} rows of the table fit {name}"
    return fitting[0]


@torch.no_grad()
def initialize(network: nn.Module, config: c.ModelConfig, seed: int | None = None) -> None:
    """Draw every parameter and buffer: from the seed, or from torch's own state without one."""
    tensors = [*network.named_parameters(), *network.named_buffers()]
    device = tensors[0][1].device
    if device.type == "meta":
        return
    rows = table(config)
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    for name, tensor in tensors:
        distribution_of(name, rows).fill(tensor, generator)
