"""Low-rank changes beside a linear map: x W' + scale (x A') B', with A and B trained and W left as it is.

The factors stay apart while a network trains. What reads weights (the lens, spectra, decoding twins, files) asks for
`Transformer.plain`: the same network with W + scale B A in place of W, and nothing beside it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Down = Float[Tensor, "rank in"]
Up = Float[Tensor, "out rank"]
Matrix = Float[Tensor, "out in"]


class LowRank(nn.Module):
    """scale up(down(x)). Several may share their `down`: one adapter on query, key and value together."""

    def __init__(self, down: nn.Parameter, up: nn.Parameter, *, scale: float, dropout: float) -> None:
        super().__init__()
        self.down, self.up, self.scale = down, up, scale
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*axes in"]) -> Float[Tensor, "*axes out"]:
        x = self.dropout(x.to(self.down.dtype))
        return functional.linear(functional.linear(x, self.down), self.up) * self.scale


class Changes(nn.ModuleDict):
    """The adapters of one linear map by name. active: those that act, each with its weight in their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.active: dict[str, float] = {}

    def forward(self, x: Float[Tensor, "*axes in"], product: Float[Tensor, "*axes out"]) -> Float[Tensor, "*axes out"]:
        result = product
        for name, weight in self.active.items():
            result = result + self[name](x) * weight
        return result.to(product.dtype)

    def of(self, name: str) -> LowRank:
        """One of them."""
        found = self[name]
        assert isinstance(found, LowRank)
        return found

    def factors(self) -> tuple[Up, Down] | None:
        """B and A whose product is the change of the weight, in float64; None where nothing acts."""
        acting = [(self.of(name), weight) for name, weight in self.active.items()]
        if not acting:
            return None
        ups = [each.up.detach().double() * (each.scale * weight) for each, weight in acting]
        return torch.cat(ups, 1), torch.cat([each.down.detach().double() for each, _ in acting])

    @torch.no_grad()
    def added_to(self, weight: Matrix) -> Matrix:
        """The weight with the change in it. The sum is made in float64 and rounded once."""
        factors = self.factors()
        if factors is None:
            return weight.detach().clone()
        up, down = (factor.to(weight.device) for factor in factors)
        return (weight.double() + up @ down).to(weight.dtype)
