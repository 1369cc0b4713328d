"""Sees the queries and keys of every attention as the forward pass makes them, one block's worth at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from pellucid.kernels.reference import Heads, Key, Query, Value, share
from pellucid.kernels.view import View
from pellucid.model.attention import Attention
from pellucid.model.mechanisms import Kernel, LinformerMechanism, Scored
from pellucid.model.transformer import Transformer
from pellucid.spectra.operator import open_operator


@dataclass(frozen=True)
class Place:
    """Where an attention stands: `kind` is "self" or "cross"."""

    stack: str
    block: int
    kind: str


# Queries or keys: a CPU is done with such a matrix before a GPU has been told all that it should do.
SMALL = 512
Watcher = Callable[[Place, Query, Key, float, View], None]


class _SeenAll(Exception):  # noqa: N818 (not an error: nothing after the last attention is needed)
    pass


def is_small(view: View) -> bool:
    """Whether the matrix may be written down without a thought."""
    return max(view.queries, view.keys) <= SMALL


def places(network: Transformer) -> dict[Place, Attention]:
    """The attentions of a network, in the order in which a forward pass meets them."""
    found = {}
    for stack in ("encoder", "decoder"):
        for index, block in enumerate(blocks.blocks if (blocks := getattr(network, stack)) is not None else []):
            found[Place(stack, index, "self")] = block.attention
            if block.cross is not None:
                found[Place(stack, index, "cross")] = block.cross
    return found


@torch.no_grad()
def watch(network: Transformer, texts: tuple[Tensor, ...], watcher: Watcher, last: Place | None = None) -> None:
    """Run the network on its texts as far as `last`, and show each attention's queries and keys to the watcher."""
    attentions = places(network)
    with _watched(attentions, watcher, last=last or list(attentions)[-1]):
        try:
            network(*texts)
        except _SeenAll:
            return


@contextmanager
def _watched(attentions: dict[Place, Attention], watcher: Watcher, last: Place) -> Iterator[None]:
    mechanisms = {place: attention.mechanism for place, attention in attentions.items()}
    kernels = {}
    try:
        for place, mechanism in mechanisms.items():
            assert isinstance(mechanism, Scored | LinformerMechanism)
            kernels[place] = mechanism.kernel
            mechanism.kernel = partial(_show, place=place, watcher=watcher, kernel=mechanism.kernel, last=place == last)
        yield
    finally:
        for place, kernel in kernels.items():
            mechanism = mechanisms[place]
            assert isinstance(mechanism, Scored | LinformerMechanism)
            mechanism.kernel = kernel


def _show(
    query: Query,
    key: Key,
    value: Value,
    *,
    scale: float,
    view: View,
    place: Place,
    watcher: Watcher,
    kernel: Kernel,
    last: bool,
) -> Heads:
    watcher(place, query, key, scale, view)
    if last:
        raise _SeenAll
    plain = view.is_square_causal or (view.mask.is_everything and view.bias is None)
    if plain or is_small(view):
        return kernel(query, key, value, scale=scale, view=view)
    # The fused kernel would write a mask or a bias out as a large matrix; the operator's own product does not.
    heads = open_operator(query, key, scale=scale, view=view).apply(share(value, query.shape[1]))
    return heads.to(value.dtype)
