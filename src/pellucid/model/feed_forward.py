"""The part of a block that works on each token alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from pellucid.model import config as c
from pellucid.model.layers import Linear
from pellucid.model.sites import Site

Tokens = Float[Tensor, "batch token width"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": Tensor.tanh,
}


class PlainFeedForward(nn.Module):
    """down(activation(up(x)))"""

    def __init__(self, part: c.Plain, width: int, *, bias: bool) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[part.activation]
        self.input, self.hidden, self.active, self.output = Site(), Site(), Site(), Site()
        self.up = Linear(width, part.hidden, bias=bias)
        self.down = Linear(part.hidden, width, bias=bias)

    def forward(self, x: Tokens) -> Tokens:
        hidden = self.hidden(self.up(self.input(x)))
        return self.output(self.down(self.active(self.activation(hidden))))


class GatedFeedForward(nn.Module):
    """down(activation(gate(x)) * up(x)); the site `hidden` is the gate before its activation."""

    def __init__(self, part: c.Gated, width: int, *, bias: bool) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[part.activation]
        self.input, self.hidden, self.active, self.output = Site(), Site(), Site(), Site()
        self.gate = Linear(width, part.hidden, bias=bias)
        self.up = Linear(width, part.hidden, bias=bias)
        self.down = Linear(part.hidden, width, bias=bias)
        # Both in one product, where a decoding twin put them side by side (see generation/twin.py).
        self.gate_and_up: nn.Module | None = None

    def forward(self, x: Tokens) -> Tokens:
        x = self.input(x)
        gate, up = (self.gate(x), self.up(x)) if self.gate_and_up is None else self.gate_and_up(x).chunk(2, -1)
        return self.output(self.down(self.active(self.activation(self.hidden(gate)) * up)))


def build_feed_forward(config: c.ModelConfig) -> PlainFeedForward | GatedFeedForward:
    match config.feed_forward:
        case c.Plain() as part:
            return PlainFeedForward(part, config.width, bias=config.biases.feed_forward)
        case c.Gated() as part:
            return GatedFeedForward(part, config.width, bias=config.biases.feed_forward)
