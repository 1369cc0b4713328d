"""The attention operator in strips of rows or of columns, in plain PyTorch: any device, float32 and float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.kernels.operator import AttentionOperator, KeyBlock, QueryBlock, RowMoments, cut, one_head
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View

# Weights per strip: what fits a CPU's caches, and what keeps a GPU busy.
STRIP = {"cpu": 2**21, "cuda": 2**26}
# Columns of a product, at least: with fewer, a CPU's library adds term after term, and loses three digits over 20,000.
WIDE = 16


class TiledOperator(AttentionOperator):
    """Strips of A are made, used and dropped: of whole rows for A x, of whole columns for A' y."""

    def _measure_rows(self) -> RowMoments:
        moments = self.query.new_empty(4, *self.query.shape[:3], dtype=self._exact)
        for head, out in zip(self._heads(), moments.flatten(1, 2).unbind(1), strict=True):
            for rows in head.row_strips():
                head.measure(rows, out[:, rows])
        return RowMoments(*moments)

    def apply(self, x: KeyBlock) -> QueryBlock:
        given, x = x.shape[-1], _widened(x)
        product = self._room(self.view.queries, x)
        for head, lse, values, out in zip(self._heads(), *self._flat(self.moments.lse, x, product), strict=True):
            for rows in head.row_strips():
                keys = keys_seen(head.view, rows)
                torch.mm(head.weights(rows, keys, lse[rows]), values[keys].to(out.dtype), out=out[rows])
        return product[..., :given]

    def apply_transposed(self, y: QueryBlock) -> KeyBlock:
        given, y = y.shape[-1], _widened(y)
        product = self._room(self.view.keys, y)
        for head, lse, values, out in zip(self._heads(), *self._flat(self.moments.lse, y, product), strict=True):
            for keys in head.column_strips():
                rows = queries_seeing(head.view, keys)
                torch.mm(head.weights(rows, keys, lse[rows]).T, values[rows].to(out.dtype), out=out[keys])
        return product[..., :given]

    def _heads(self) -> Iterator[_Head]:
        texts, heads = self.query.shape[:2]
        return (
            _Head.cut_out(self.query, self.key, self.scale, self.view, text, head)
            for text in range(texts)
            for head in range(heads)
        )

    @property
    def _exact(self) -> torch.dtype:
        return torch.promote_types(self.query.dtype, torch.float32)

    def _room(self, length: int, like: Tensor) -> Tensor:
        return torch.empty(*self.query.shape[:2], length, like.shape[-1], dtype=self._exact, device=like.device)

    def _flat(self, *values: Tensor) -> tuple[Tensor, ...]:
        return tuple(value.flatten(0, 1) for value in values)


@dataclass(frozen=True)
class _Head:
    """One head. All strips use the same scratch: strips of growing sizes would leave holes that no later one fits."""

    query: Float[Tensor, "query head_width"]
    key: Float[Tensor, "key head_width"]
    view: View
    scratch: dict[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def cut_out(query: Query, key: Key, scale: float, view: View, text: int, head: int) -> _Head:
        exact = torch.promote_types(query.dtype, torch.float32)
        query, key, view = one_head(query, key, view, text, head)
        return _Head(query[0, 0].to(exact) * scale, key[0, 0].to(exact), view)

    def row_strips(self) -> Iterator[slice]:
        return _strips(self.view.queries, self.view.keys, self.query.device)

    def column_strips(self) -> Iterator[slice]:
        return _strips(self.view.keys, self.view.queries, self.query.device)

    def measure(self, rows: slice, out: Float[Tensor, "4 rows"]) -> None:
        """Log-sum-exp, energy, entropy and mean distance of some rows."""
        keys = keys_seen(self.view, rows)
        scores = torch.mm(self.query[rows], self.key[keys].T, out=self._scratch(0, rows, keys))
        self._add_bias(scores, rows, keys)
        self._hide(scores, rows, keys, -torch.inf)
        if scores.shape[1] == 0:
            scores, keys = scores.new_full((scores.shape[0], 1), -torch.inf), slice(keys.start, keys.start + 1)
        largest = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
        below = scores.sub_(largest).clamp_(min=-1e30)  # a hidden key keeps its weight of zero, without 0 x inf
        powers, product = torch.exp(below, out=self._scratch(1, rows, keys)), self._scratch(2, rows, keys)
        total = powers.sum(-1)
        seen = total.clamp(min=1)  # the largest score contributes 1, so only a blind row has less
        # A matrix product in place of these sums would add one by one, and lose a digit at 4,000 keys.
        out[0] = largest[:, 0] + total.log()
        out[1] = torch.mul(powers, powers, out=product).sum(-1) / seen.square()
        out[2] = seen.log() - torch.mul(powers, below, out=product).sum(-1) / seen
        slots = torch.arange(rows.start, rows.stop, device=scores.device, dtype=scores.dtype) + self.view.offset
        places = torch.arange(keys.start, keys.stop, device=scores.device, dtype=scores.dtype)
        away = torch.sub(slots[:, None], places, out=below).abs_()
        out[3] = torch.mul(powers, away, out=product).sum(-1) / seen

    def weights(self, rows: slice, keys: slice, lse: Float[Tensor, " rows"]) -> Float[Tensor, "rows keys"]:
        room = self._scratch(0, rows, keys)
        below = torch.addmm(-lse[:, None], self.query[rows], self.key[keys].T, out=room)
        self._add_bias(below, rows, keys)
        weights = below.exp_()
        self._hide(weights, rows, keys, 0.0)
        return weights

    def _scratch(self, use: int, rows: slice, keys: slice) -> Float[Tensor, "rows keys"]:
        height, width = rows.stop - rows.start, keys.stop - keys.start
        if use not in self.scratch:
            sides = (self.view.queries, self.view.keys)
            largest = max(_strip_size(across, self.query.device) * across for across in sides)
            self.scratch[use] = self.query.new_empty(min(largest, sides[0] * sides[1]))
        return self.scratch[use][: height * width].view(height, width)

    def _add_bias(self, scores: Float[Tensor, "rows keys"], rows: slice, keys: slice) -> None:
        bias = cut(self.view, rows, keys).dense_bias if self.view.bias is not None and scores.numel() else None
        if bias is not None:
            scores += bias[0, 0]

    def _hide(self, strip: Float[Tensor, "rows keys"], rows: slice, keys: slice, value: float) -> None:
        """Put a value where the mask hides the key."""
        if sees_all(self.view, rows, keys):
            return
        own_rows, own_keys = may_be_hidden(self.view, rows, keys)
        allowed = cut(self.view, own_rows, own_keys).allowed
        if allowed is not None:
            part = strip[: own_rows.stop - rows.start, own_keys.start - keys.start :]
            part.masked_fill_(~allowed[0, 0], value)


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
    if rows.start == rows.stop or keys.start == keys.stop:
        return True
    if view.mask.padding is not None:
        return False
    first, last = rows.start + view.offset, rows.stop - 1 + view.offset
    past = view.mask.prefix is None or keys.stop <= max(first + 1, int(view.mask.prefix))
    near = view.mask.window is None or max(last - keys.start, keys.stop - 1 - first) < view.mask.window
    return past and near


def may_be_hidden(view: View, rows: slice, keys: slice) -> tuple[slice, slice]:
    """The first of these rows and the last of these keys, outside of which every row sees every key."""
    if view.mask.padding is not None or view.mask.window is not None or view.mask.prefix is None:
        return rows, keys
    first_hidden = max(rows.start + view.offset + 1, int(view.mask.prefix), keys.start)
    return slice(rows.start, min(rows.stop, keys.stop - 1 - view.offset)), slice(first_hidden, keys.stop)


def _widened(x: Float[Tensor, "batch heads length columns"]) -> Float[Tensor, "batch heads length wider"]:
    return x if x.shape[-1] >= WIDE else torch.nn.functional.pad(x, (0, WIDE - x.shape[-1]))


def _strips(length: int, across: int, device: torch.device) -> Iterator[slice]:
    size = _strip_size(across, device)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _strip_size(across: int, device: torch.device) -> int:
    return max(STRIP.get(device.type, STRIP["cpu"]) // across, 16)
