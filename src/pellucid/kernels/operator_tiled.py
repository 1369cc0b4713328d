"""The attention operator in strips of rows or of columns, in plain PyTorch: any device, float32 and float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.kernels.operator import AttentionOperator, KeyBlock, QueryBlock, RowMoments, cut, one_head
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View

# Weights per strip: what fits a CPU's caches, and what keeps a GPU busy.
STRIP = {"cpu": 2**21, "cuda": 2**26}


class TiledOperator(AttentionOperator):
    """Strips of A are made, used and dropped: of whole rows for A x, of whole columns for A' y."""

    def _measure_rows(self) -> RowMoments:
        heads = [torch.cat([head.moments(rows) for rows in head.row_strips()], -1) for head in self._heads()]
        return RowMoments(*torch.stack(heads, 1).reshape(4, *self.query.shape[:3]))

    def apply(self, x: KeyBlock) -> QueryBlock:
        product = self._room(self.view.queries, x)
        for head, lse, values, out in zip(self._heads(), *self._flat(self.moments.lse, x, product), strict=True):
            for rows in head.row_strips():
                keys = keys_seen(head.view, rows)
                torch.mm(head.weights(rows, keys, lse[rows]), values[keys].to(out.dtype), out=out[rows])
        return product

    def apply_transposed(self, y: QueryBlock) -> KeyBlock:
        product = self._room(self.view.keys, y)
        for head, lse, values, out in zip(self._heads(), *self._flat(self.moments.lse, y, product), strict=True):
            for keys in head.column_strips():
                rows = queries_seeing(head.view, keys)
                torch.mm(head.weights(rows, keys, lse[rows]).T, values[rows].to(out.dtype), out=out[keys])
        return product

    def _heads(self) -> Iterator[_Head]:
        texts, heads = self.query.shape[:2]
        return (
            _Head.cut_out(self.query, self.key, self.scale, self.view, text, head)
            for text in range(texts)
            for head in range(heads)
        )

    def _room(self, length: int, like: Tensor) -> Tensor:
        exact = torch.promote_types(self.query.dtype, torch.float32)
        return torch.empty(*self.query.shape[:2], length, like.shape[-1], dtype=exact, device=like.device)

    def _flat(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(value.flatten(0, 1) for value in values)


@dataclass(frozen=True)
class _Head:
    query: Float[Tensor, "query head_width"]
    key: Float[Tensor, "key head_width"]
    view: View

    @staticmethod
    def cut_out(query: Query, key: Key, scale: float, view: View, text: int, head: int) -> _Head:
        exact = torch.promote_types(query.dtype, torch.float32)
        query, key, view = one_head(query, key, view, text, head)
        return _Head(query[0, 0].to(exact) * scale, key[0, 0].to(exact), view)

    def row_strips(self) -> Iterator[slice]:
        return _strips(self.view.queries, self.view.keys, self.query.device)

    def column_strips(self) -> Iterator[slice]:
        return _strips(self.view.keys, self.view.queries, self.query.device)

    def moments(self, rows: slice) -> Float[Tensor, "4 rows"]:
        """Log-sum-exp, energy, entropy and mean distance of some rows."""
        keys = keys_seen(self.view, rows)
        scores = torch.mm(self.query[rows], self.key[keys].T)
        self._add_bias(scores, rows, keys)
        hidden = self._hidden(rows, keys)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        if scores.shape[1] == 0:
            scores = scores.new_full((scores.shape[0], 1), -torch.inf)
        largest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        below = scores.sub_(largest).clamp_(min=-1e30)  # a hidden key keeps its weight of zero, without 0 x inf
        powers = below.exp()
        total = powers.sum(-1)
        seen = total.clamp(min=1)  # the largest score contributes 1, so only a blind row has less
        energy = _dots(powers, powers) / seen.square()
        entropy = seen.log() - _dots(powers, below) / seen
        slots = torch.arange(rows.start, rows.stop, device=scores.device) + self.view.offset
        places = torch.arange(keys.start, keys.start + scores.shape[1], device=scores.device)
        away = torch.sub(slots[:, None].to(scores.dtype), places.to(scores.dtype), out=below).abs_()
        return torch.stack((largest[:, 0] + total.log(), energy, entropy, _dots(powers, away) / seen))

    def weights(self, rows: slice, keys: slice, lse: Float[Tensor, " rows"]) -> Float[Tensor, "rows keys"]:
        below = torch.addmm(-lse[:, None], self.query[rows], self.key[keys].T)
        self._add_bias(below, rows, keys)
        hidden = self._hidden(rows, keys)
        weights = below.exp_()
        return weights if hidden is None else weights.masked_fill_(hidden, 0)

    def _add_bias(self, scores: Float[Tensor, "rows keys"], rows: slice, keys: slice) -> None:
        bias = cut(self.view, rows, keys).dense_bias if self.view.bias is not None and scores.numel() else None
        if bias is not None:
            scores += bias[0, 0]

    def _hidden(self, rows: slice, keys: slice) -> Tensor | None:
        allowed = None if sees_all(self.view, rows, keys) else cut(self.view, rows, keys).allowed
        return None if allowed is None else ~allowed[0, 0]


def keys_seen(view: View, rows: slice) -> slice:
    """The keys that lie within the sight of any of these rows, padding apart."""
    first, last = rows.start + view.offset, rows.stop - 1 + view.offset
    start, stop = 0, view.keys
    if view.mask.prefix is not None:
        stop = min(stop, max(last + 1, int(view.mask.prefix)))
    if view.mask.window is not None:
        start, stop = max(start, first - view.mask.window + 1), min(stop, last + view.mask.window)
    return slice(min(start, view.keys), max(min(start, view.keys), stop))


def queries_seeing(view: View, keys: slice) -> slice:
    """The rows within whose sight any of these keys lies, padding apart."""
    start, stop = 0, view.queries
    if view.mask.prefix is not None and keys.start >= int(view.mask.prefix):
        start = max(start, keys.start - view.offset)
    if view.mask.window is not None:
        start = max(start, keys.start - view.mask.window + 1 - view.offset)
        stop = min(stop, keys.stop - 1 + view.mask.window - view.offset)
    return slice(min(start, view.queries), max(min(start, view.queries), stop))


def sees_all(view: View, rows: slice, keys: slice) -> bool:
    """Whether every one of these rows sees every one of these keys."""
    if view.mask.padding is not None:
        return False
    first, last = rows.start + view.offset, rows.stop - 1 + view.offset
    past = view.mask.prefix is None or keys.stop <= max(first + 1, int(view.mask.prefix))
    near = view.mask.window is None or max(last - keys.start, keys.stop - 1 - first) < view.mask.window
    return past and near


def _dots(a: Float[Tensor, "rows keys"], b: Float[Tensor, "rows keys"]) -> Float[Tensor, " rows"]:
    """The inner product of each pair of rows, without a matrix in between."""
    return torch.bmm(a[:, None], b[:, :, None])[:, 0, 0]


def _strips(length: int, across: int, device: torch.device) -> Iterator[slice]:
    size = max(STRIP.get(device.type, STRIP["cpu"]) // across, 16)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
