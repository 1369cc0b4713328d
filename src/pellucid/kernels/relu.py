"""Normalised ReLU attention over tiles of queries: the matrix never exists whole, in either direction."""

from __future__ import annotations

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint

from pellucid.kernels import reference
from pellucid.kernels.reference import Heads, Key, Query, Value
from pellucid.kernels.view import View


def normalized_relu(query: Query, key: Key, value: Value, *, scale: float, view: View, tile: int = 256) -> Heads:
    """Equals `reference.normalized_relu`; each tile is computed again in the backward pass instead of being kept."""
    heads = []
    for start in range(0, view.queries, tile):
        stop = min(start + tile, view.queries)
        attend = partial(_attend, start=start, stop=stop, scale=scale, view=view)
        heads.append(_recomputed(attend, query[:, :, start:stop], key, value))
    return torch.cat(heads, -2)


def _attend(query: Query, key: Key, value: Value, *, start: int, stop: int, scale: float, view: View) -> Heads:
    """One tile. Its mask and bias are made here, so that they are not kept either."""
    rows = view.rows(start, stop)
    return reference.normalized_relu(query, key[:, :, : rows.keys], value[:, :, : rows.keys], scale=scale, view=rows)


def _recomputed(attend: partial[Heads], query: Query, key: Key, value: Value) -> Heads:
    if not torch.is_grad_enabled():
        return attend(query, key, value)
    heads: Heads = checkpoint(attend, query, key, value, use_reentrant=False)
    return heads
