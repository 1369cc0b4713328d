"""GELU for learning on a CPU: its slope is formed beside its value, and both from one sigmoid, which is fast.

PyTorch takes a tanh forth and another back; its tanh costs as much as six sigmoids.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from pellucid.model.feed_forward import ACTIVATIONS, GatedFeedForward, PlainFeedForward
from pellucid.model.transformer import Transformer

NUMBERS = 2**17  # at a time: they stay in a core's cache
LINEAR = math.sqrt(8 / math.pi)
CUBIC = 0.044715 * LINEAR


def gelu_tanh(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """x s(z), z = LINEAR x + CUBIC x^3, s the sigmoid. Where nothing is learned, or not in float32: PyTorch's own."""
    if not (x.requires_grad and torch.is_grad_enabled() and x.dtype == torch.float32):
        return functional.gelu(x, approximate="tanh")
    apply: Any = _WithSlope.apply  # untyped in torch
    found: Tensor = apply(x)
    return found


class _WithSlope(torch.autograd.Function):
    """The slope is s + x s (1 - s) z'. It is kept in place of x, so no more is remembered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        value, slope = torch.empty_like(x), torch.empty_like(x)
        linear, one = x.new_tensor(LINEAR), x.new_tensor(1.0)
        parts = (torch.split(each.view(-1), NUMBERS) for each in (x, value, slope))
        for part, its_value, its_slope in zip(*parts, strict=True):
            s = torch.addcmul(linear, part, part, value=CUBIC, out=its_slope).mul_(part).sigmoid_()
            torch.mul(part, s, out=its_value)
            s.lerp_(one, torch.addcmul(linear, part, part, value=3 * CUBIC).mul_(its_value))
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Written over the slope: new memory costs more than the product. A second pass back is refused by PyTorch."""
        (slope,) = ctx.saved_tensors
        return slope.mul_(gradient)


def keep_slopes(network: Transformer) -> int:
    """Let all feed-forwards with this GELU keep its slope; how many."""
    parts = [part for part in network.modules() if isinstance(part, PlainFeedForward | GatedFeedForward)]
    found = [part for part in parts if part.activation is ACTIVATIONS["gelu_tanh"]]
    for part in found:
        part.activation = gelu_tanh
    return len(found)
