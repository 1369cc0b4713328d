"""Queries, keys and values of a token in one product instead of three: larger products are faster, forth and back."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from pellucid.model.attention import Attention
from pellucid.model.layers import Linear
from pellucid.model.transformer import Transformer


class Joined(nn.Module):
    """The three maps of a self-attention, put side by side anew in every pass: the parameters stay what they are."""

    def __init__(self, maps: tuple[Linear, ...]) -> None:
        super().__init__()
        self.maps = maps  # a tuple: these modules belong to the attention, and are registered there

    def forward(self, x: Float[Tensor, "batch token width"]) -> Float[Tensor, "batch token joined"]:
        biases = tuple(each.bias for each in self.maps if each.bias is not None)
        weight = torch.cat(tuple(each.weight for each in self.maps))
        return functional.linear(x, weight, torch.cat(biases) if biases else None)


def join_projections(network: Transformer) -> int:
    """Join them wherever all three are plain maps without adapters that agree about having a bias; how many."""
    count = 0
    for stack in (network.encoder, network.decoder):
        for block in [] if stack is None else stack.blocks:
            count += _join(block.attention)
    return count


def _join(attention: Attention) -> bool:
    maps = (attention.to_query, attention.to_key, attention.to_value)
    plain = all(type(each) is Linear and each.change is None for each in maps)
    if not plain or len({each.bias is None for each in maps}) > 1:
        return False
    attention.to_all = Joined(maps)
    return True
