"""The spectra of each head's weights, and of the two products in which they act: W_Q W_K' and W_V W_O.

Tokens X give the queries X W_Q: scores are X W_Q W_K' X', and a head adds A X W_V W_O to the stream. Both products are
width x width of rank at most head_width, and stay factored. Left out of them: biases, the norm before the sublayer, the
scale, and what stands between W_Q and W_K: a norm of queries and keys, and the rotation of rotary positions (so
W_Q W_K' is what a rotary head has at distance 0).

The numerical rank allows for rounding in float32, or in float64 for weights of that type: bfloat16 weights are taken as
the numbers that they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.model.attention import Attention
from pellucid.model.transformer import Transformer
from pellucid.spectra.baseline import random_twin
from pellucid.spectra.rank import TAUS, Ranks, check_matrix, ranks_of, singular_values, singular_values_of_product

Kind = Literal["self", "cross"]
NAMES = ("query", "key", "value", "output", "query_key", "value_output")


@dataclass(frozen=True)
class Spectrum:
    """One matrix: its singular values, the largest first, and its ranks."""

    singular_values: tuple[float, ...]
    ranks: Ranks

    def to_json(self) -> dict[str, Any]:
        return {**self.ranks.to_json(), "singular_values": list(self.singular_values)}


@dataclass(frozen=True)
class HeadWeights:
    """The spectra of one head. Heads of a group share W_K and W_V, and so those spectra."""

    stack: str
    block: int
    kind: Kind
    head: int
    group: int
    query: Spectrum
    key: Spectrum
    value: Spectrum
    output: Spectrum
    query_key: Spectrum
    value_output: Spectrum

    def to_json(self) -> dict[str, Any]:
        spectra = {name: getattr(self, name).to_json() for name in NAMES}
        place = {"stack": self.stack, "block": self.block, "kind": self.kind, "head": self.head, "group": self.group}
        return {**place, **spectra}


@dataclass(frozen=True)
class WeightSpectra:
    """All heads, in the order of stacks, blocks and sublayers; and those of random weights, where asked for."""

    tau: tuple[float, ...]
    heads: tuple[HeadWeights, ...]
    baseline: WeightSpectra | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "tau": list(self.tau),
            "heads": [head.to_json() for head in self.heads],
            "baseline": None if self.baseline is None else self.baseline.to_json(),
        }


@torch.no_grad()
def weight_spectra(
    network: Transformer, tau: tuple[float, ...] = TAUS, *, baseline_seed: int | None = 0
) -> WeightSpectra:
    """The spectra of every head of every attention sublayer, in float64.

    baseline_seed: the same for a network of this config with random weights drawn from this seed; None for none.
    """
    heads = []
    network = network.plain()
    for name, stack in (("encoder", network.encoder), ("decoder", network.decoder)):
        for index, block in enumerate(() if stack is None else stack.blocks):
            heads += _of_sublayer(block.attention, name, index, "self", tau)
            if block.cross is not None:
                heads += _of_sublayer(block.cross, name, index, "cross", tau)
    random = None
    if baseline_seed is not None:
        random = weight_spectra(random_twin(network, baseline_seed), tau, baseline_seed=None)
    return WeightSpectra(tau, tuple(heads), random)


def _of_sublayer(attention: Attention, stack: str, block: int, kind: Kind, tau: tuple[float, ...]) -> list[HeadWeights]:
    place = f"{stack}.{block}.{'attention' if kind == 'self' else 'cross'}"
    count, groups = attention.head_count, attention.groups
    query = _per_head(attention.to_query.weight, count, f"{place}.to_query")
    key = _per_head(attention.to_key.weight, groups, f"{place}.to_key")
    value = _per_head(attention.to_value.weight, groups, f"{place}.to_value")
    output = _per_head(attention.to_output.weight.T, count, f"{place}.to_output")
    of_key, of_value = ([_spectrum(part, tau) for part in parts] for parts in (key, value))
    result = []
    for head in range(count):
        group = head * groups // count
        result.append(
            HeadWeights(
                stack,
                block,
                kind,
                head,
                group,
                _spectrum(query[head], tau),
                of_key[group],
                of_value[group],
                _spectrum(output[head], tau),
                _product(query[head].T, key[group], tau),
                _product(value[group].T, output[head], tau),
            )
        )
    return result


def _per_head(
    weight: Float[Tensor, "joined width"], heads: int, name: str
) -> tuple[Float[Tensor, "head_width width"], ...]:
    """PyTorch keeps W' (outputs first), so a head's part is a band of its rows; W_O comes here as W_O."""
    return check_matrix(weight, f"{name}.weight").chunk(heads)


def _spectrum(matrix: Float[Tensor, "rows columns"], tau: tuple[float, ...]) -> Spectrum:
    values = singular_values(matrix)
    return _named(values, (matrix.shape[0], matrix.shape[1]), matrix.dtype, tau)


def _product(a: Float[Tensor, "rows inner"], b: Float[Tensor, "inner columns"], tau: tuple[float, ...]) -> Spectrum:
    values, rounding = singular_values_of_product(a, b)
    return _named(values, (a.shape[0], b.shape[1]), a.dtype, tau, rounding)


def _named(
    values: Tensor, shape: tuple[int, int], dtype: torch.dtype, tau: tuple[float, ...], rounding: float = 0.0
) -> Spectrum:
    rounded = torch.promote_types(dtype, torch.float32)
    return Spectrum(tuple(values.tolist()), ranks_of(values, shape, rounded, tau, floor=rounding))
