"""Weights in 8 bits, for CPUs: each output of a linear map has a scale of its own.

The products run through PyTorch's dynamic quantised linear, which also rounds the input of each call to 8 bits with one
scale: of what PyTorch has, it is the fastest for one row (measured by benchmarks/decode.py). Embeddings,
norms and attention stay in float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.model.attention import Attention
from pellucid.model.feed_forward import GatedFeedForward
from pellucid.model.heads import UnembedHead
from pellucid.model.layers import Linear
from pellucid.model.transformer import Transformer

_QUANTIZED: WeakKeyDictionary[Transformer, tuple[object, Transformer]] = WeakKeyDictionary()


class Int8Linear(nn.Module):
    """x W' + b with W in 8 bits, a scale per row."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        super().__init__()
        self.packed: Any = _packed(weight.detach().float(), None if bias is None else bias.detach().float())

    def forward(self, x: Float[Tensor, "*axes in"]) -> Float[Tensor, "*axes out"]:
        result: Tensor = torch.ops.quantized.linear_dynamic(x.contiguous(), self.packed, True)
        return result


class Int8Head(nn.Module):
    """The unembedding, whose table is a copy in 8 bits: tokens are still looked up in the one in float32."""

    def __init__(self, head: UnembedHead, table: Float[Tensor, "vocab width"]) -> None:
        super().__init__()
        self.head = head
        self.map = Int8Linear(table if head.weight is None else head.weight, head.bias)

    def forward(self, x: Tensor, table: Tensor, padding: Tensor | None) -> Tensor:
        if self.head.activation is not None:
            x = self.head.norm(self.head.activation(self.head.dense(x)))
        scores: Tensor = self.map(self.head.scale(x))
        return scores


def quantized(network: Transformer) -> Transformer:
    """A twin of the network with its linear maps in 8 bits; made once, and anew when the weights have changed."""
    if network.tokens.weight.dtype != torch.float32:
        raise InputError(
            f"int8 weights are made from float32, and the model is in {network.tokens.weight.dtype}: load it with "
            "dtype=torch.float32"
        )
    now = _fingerprint(network)
    if network not in _QUANTIZED or _QUANTIZED[network][0] != now:
        _QUANTIZED[network] = (now, _build(network))
    return _QUANTIZED[network][1]


@torch.no_grad()
def _build(network: Transformer) -> Transformer:
    twin = network.twin()
    for module in list(twin.modules()):
        if isinstance(module, Attention) and not any(module is block.cross for block in _blocks(twin)):
            module.to_all = _joined((module.to_query, module.to_key, module.to_value))
            _leave_out(module, "to_query", "to_key", "to_value")
        if isinstance(module, GatedFeedForward):
            module.gate_and_up = _joined((module.gate, module.up))
            _leave_out(module, "gate", "up")
    for module in list(twin.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Linear):
                setattr(module, name, Int8Linear(child.weight, child.bias))
    if isinstance(twin.head, UnembedHead):
        twin.add_module("head", Int8Head(twin.head, twin.tokens.weight))
    return twin.eval()


@torch.no_grad()
def _fingerprint(network: Transformer) -> object:
    """Where the parameters are, how often each was written, and a sum over some of its numbers."""
    return [(each.data_ptr(), each._version, float(each[..., 0].sum())) for each in network.parameters()]


def _leave_out(module: nn.Module, *names: str) -> None:
    """These maps are parts of a joined one."""
    for name in names:
        module.add_module(name, nn.Identity())


def _blocks(network: Transformer) -> list[Any]:
    return [] if network.decoder is None else network.decoder.blocks


def _joined(maps: Sequence[Linear]) -> Int8Linear:
    biased = any(each.bias is not None for each in maps)
    zeros = (torch.zeros(each.out_features) for each in maps)
    biases: list[Tensor] = [zero if each.bias is None else each.bias for each, zero in zip(maps, zeros, strict=True)]
    return Int8Linear(torch.cat([each.weight.data for each in maps]), torch.cat(biases) if biased else None)


def _packed(weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> Any:
    scales = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch moves its tools for quantising elsewhere, and says so
        whole = torch.quantize_per_channel(
            weight, scales.double(), torch.zeros(len(scales), dtype=torch.long), 0, torch.qint8
        )
        return torch.ops.quantized.linear_prepack(whole, bias)
