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
        rows = view.rows(start, stop)
        attend = partial(reference.normalized_relu, scale=scale, view=rows)
        heads.append(_recomputed(attend, query[:, :, start:stop], key[:, :, : rows.keys], value[:, :, : rows.keys]))
    return torch.cat(heads, -2)


def _recomputed(attend: partial[Heads], query: Query, key: Key, value: Value) -> Heads:
    if not torch.is_grad_enabled():
        return attend(query, key, value)
    heads: Heads = checkpoint(attend, query, key, value, use_reentrant=False)
    return heads
