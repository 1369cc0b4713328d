"""Two-way tables between the tensors of a checkpoint and the parameters of our network.

A row says which tensor of theirs holds which parameters of ours, and how each is made from the other. Fused, split,
transposed or interleaved projections are details of a row; the model knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """`split` makes our tensors from theirs and `join` theirs from ours, without copying where views will do."""

    theirs: str
    ours: tuple[str, ...]
    split: Callable[[Tensor], tuple[Tensor, ...]]
    join: Callable[[tuple[Tensor, ...]], Tensor]


def same(theirs: str, ours: str) -> Row:
    return Row(theirs, (ours,), lambda tensor: (tensor,), lambda parts: parts[0])


def transposed(theirs: str, ours: str) -> Row:
    """Theirs is [in, out], as GPT-2 keeps its linear maps."""
    return Row(theirs, (ours,), lambda tensor: (tensor.T,), lambda parts: parts[0].T)


def joined(theirs: str, *ours: str, transpose: bool = False) -> Row:
    """Theirs holds several of ours of one shape after each other along the outputs, possibly transposed."""

    def split(tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor.T if transpose else tensor).chunk(len(ours))

    def join(parts: tuple[Tensor, ...]) -> Tensor:
        whole = torch.cat(parts)
        return whole.T if transpose else whole

    return Row(theirs, ours, split, join)


def linear(theirs: str, ours: str, *, bias: bool, row: Callable[[str, str], Row] = same) -> Iterator[Row]:
    """A linear map: its weight and, where there is one, its bias."""
    yield row(f"{theirs}.weight", f"{ours}.weight")
    if bias:
        yield same(f"{theirs}.bias", f"{ours}.bias")


def layer_norm(theirs: str, ours: str) -> Iterator[Row]:
    yield same(f"{theirs}.weight", f"{ours}.weight")
    yield same(f"{theirs}.bias", f"{ours}.bias")
