"""Attention as an operator: A = softmax(Q K' scale + bias + mask) multiplies and is measured, never written down.

One pass over the scores gives each row's log-sum-exp and moments; after it, any tile of A can be made again from Q, K
and the log-sum-exps alone. `DenseOperator` is the readable twin, which writes A down; `operator_tiled` and
`operator_triton` are what one measures with. A query that may look at nothing has a row of zeros.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import InputError, KernelError
from pellucid.kernels import reference
from pellucid.kernels.mask import Mask
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View

Rows = Float[Tensor, "batch heads query"]
Columns = Float[Tensor, "batch heads key"]
QueryBlock = Float[Tensor, "batch heads query columns"]
KeyBlock = Float[Tensor, "batch heads key columns"]
Tile = Float[Tensor, "batch heads rows columns"]
OneQuery = Float[Tensor, "1 1 query head_width"]
OneKey = Float[Tensor, "1 1 key head_width"]


@dataclass(frozen=True)
class RowMoments:
    """What one pass over the scores leaves of each row of A.

    lse: the logarithm of the sum of the exponentials of the scores; -inf where a query may look at nothing.
    energy: the sum of the squares of the weights.
    entropy: of the weights as probabilities, in nats.
    distance: the mean of |query slot - key slot| under the weights.
    """

    lse: Rows
    energy: Rows
    entropy: Rows
    distance: Rows


class AttentionOperator(ABC):
    """The attention of a batch of heads. Heads share keys in equal groups, as in `kernels.reference`."""

    def __init__(self, query: Query, key: Key, *, scale: float, view: View) -> None:
        _check(query, key, view)
        self.query, self.key, self.scale, self.view = query, key, scale, view
        self.moments = self._measure_rows()

    @abstractmethod
    def _measure_rows(self) -> RowMoments:
        """The one pass over all scores."""

    @abstractmethod
    def apply(self, x: KeyBlock) -> QueryBlock:
        """A x."""

    @abstractmethod
    def apply_transposed(self, y: QueryBlock) -> KeyBlock:
        """A' y."""

    @property
    def rounding(self) -> float:
        """The largest relative error of a product, in the Frobenius norm."""
        return 1e-12 if self.query.dtype == torch.float64 else 1e-5

    def lse(self) -> Rows:
        return self.moments.lse

    def row_entropy(self) -> Rows:
        return self.moments.entropy

    def row_distance(self) -> Rows:
        return self.moments.distance

    def energy(self) -> Float[Tensor, "batch heads"]:
        """The squared Frobenius norm of A."""
        return self.moments.energy.double().sum(-1)

    def seeing(self) -> Float[Tensor, "batch heads"]:
        """How many queries may look at something."""
        return (self.moments.lse > -torch.inf).double().sum(-1)

    def column_mass(self) -> Columns:
        """What each key receives from all queries."""
        batch, heads, queries = self.moments.lse.shape
        return self.apply_transposed(self.query.new_ones(batch, heads, queries, 1))[..., 0]

    def diagonal(self, ahead: int = 0) -> Rows:
        """The weight of each query on the key that stands `ahead` of its own slot; zero where there is none."""
        view, lse = self.view, self.moments.lse
        key_slot = torch.arange(view.queries, device=view.device) + view.offset + ahead
        exists = (key_slot >= 0) & (key_slot < view.keys)
        key_slot = key_slot.clamp(0, view.keys - 1)
        exact = torch.promote_types(self.query.dtype, torch.float32)
        key = reference.share(self.key, self.query.shape[1])[:, :, key_slot].to(exact)
        scores = (self.query.to(exact) * key).sum(-1) * self.scale
        if view.bias is not None:
            middle = view.queries - 1 + view.offset + ahead
            scores = scores + (view.bias[None, :, middle, None] if 0 <= middle < view.bias.shape[-1] else 0)
        allowed = exists & self._sees(ahead, key_slot)
        return (scores - lse).exp().masked_fill(~allowed | (lse == -torch.inf), 0).to(lse.dtype)

    def column(self, index: int) -> Rows:
        """The weight of every query on one key."""
        return self.tile(slice(0, self.view.queries), slice(index, index + 1))[..., 0]

    def tile(self, rows: slice, columns: slice) -> Tile:
        """The weights of some queries on some keys."""
        rows, columns = _inside(rows, self.view.queries, "queries"), _inside(columns, self.view.keys, "keys")
        exact = torch.promote_types(self.query.dtype, torch.float32)
        key = reference.share(self.key, self.query.shape[1])[:, :, columns].to(exact)
        scores = reference.scores(
            self.query[:, :, rows].to(exact), key, scale=self.scale, view=cut(self.view, rows, columns)
        )
        lse = self.moments.lse[:, :, rows, None]
        return (scores - lse.masked_fill(lse == -torch.inf, torch.inf)).exp()

    def pooled(self, rows: slice, columns: slice, cell: int, *, most: int = 2**22) -> Tile:
        """The mean weight in cells of `cell` x `cell`, smaller at the end.

        No more than `most` weights, or those of one cell of each head, exist at once.
        """
        rows, columns = _inside(rows, self.view.queries, "queries"), _inside(columns, self.view.keys, "keys")
        if cell < 1:
            raise InputError(f"a cell of {cell} x {cell} weights cannot be pooled: give 1 or more")
        heads = self.query.shape[0] * self.query.shape[1]
        side = max(math.isqrt(most // heads) // cell, 1) * cell
        bands = (
            torch.cat([self._pooled_part(own_rows, own_columns, cell) for own_columns in _split(columns, side)], -1)
            for own_rows in _split(rows, side)
        )
        return torch.cat(list(bands), -2)

    def _pooled_part(self, rows: slice, columns: slice, cell: int) -> Tile:
        # Above the diagonal of a causal mask there is nothing to compute.
        if self.view.mask.is_causal and columns.start >= rows.stop + self.view.offset:
            high, wide = (-(-(part.stop - part.start) // cell) for part in (rows, columns))
            return torch.zeros_like(self.moments.lse[:, :, :1, None]).expand(-1, -1, high, wide)
        return _pool(self.tile(rows, columns), cell)

    def _sees(self, ahead: int, key_slot: Tensor) -> Tensor:
        """Whether the mask shows each query the key `ahead` of it."""
        mask = self.view.mask
        shown = torch.ones(1, 1, self.view.queries, dtype=torch.bool, device=self.view.device)
        if mask.prefix is not None and ahead > 0:
            prefix = torch.as_tensor(mask.prefix, device=self.view.device).reshape(-1, 1, 1)
            shown = key_slot < prefix
        if mask.window is not None and abs(ahead) >= mask.window:
            shown = torch.zeros_like(shown)
        return shown if mask.padding is None else shown & mask.padding[:, None, key_slot]


class DenseOperator(AttentionOperator):
    """The twin that forms A, in float64."""

    def _measure_rows(self) -> RowMoments:
        view = self.view if self.view.bias is None else replace(self.view, bias=self.view.bias.double())
        scores = reference.scores(self.query.double(), self.key.double(), scale=self.scale, view=view)
        self.weights = reference.softmax_weights(scores)
        slots = torch.arange(view.queries, device=view.device)[:, None] + view.offset
        away = (slots - torch.arange(view.keys, device=view.device)).abs()
        return RowMoments(
            lse=scores.logsumexp(-1),
            energy=self.weights.square().sum(-1),
            entropy=torch.special.entr(self.weights).sum(-1),
            distance=(self.weights * away).sum(-1),
        )

    def apply(self, x: KeyBlock) -> QueryBlock:
        return self.weights @ x.double()

    def apply_transposed(self, y: QueryBlock) -> KeyBlock:
        return self.weights.mT @ y.double()


def cut(view: View, rows: slice, columns: slice) -> View:
    """The view of some queries on some keys: slots are counted from the first of those keys."""
    mask, bias = view.mask, view.bias
    if bias is not None:
        first = columns.start - (rows.stop - 1) + view.queries - 1
        bias = bias[:, first : first + (rows.stop - rows.start) + (columns.stop - columns.start) - 1]
    prefix = mask.prefix if mask.prefix is None else mask.prefix - columns.start
    prefix = max(prefix, 0) if isinstance(prefix, int) else prefix
    padding = None if mask.padding is None else mask.padding[:, columns]
    return View(
        queries=rows.stop - rows.start,
        keys=columns.stop - columns.start,
        device=view.device,
        mask=Mask(prefix=prefix, window=mask.window, padding=padding),
        bias=bias,
        offset=view.offset + rows.start - columns.start,
    )


def one_head(query: Query, key: Key, view: View, text: int, head: int) -> tuple[OneQuery, OneKey, View]:
    """One head of one text, as a batch of one."""
    _refuse_documents(view.mask)
    mask, group = view.mask, head * key.shape[1] // query.shape[1]
    prefix = int(mask.prefix[text]) if isinstance(mask.prefix, Tensor) else mask.prefix
    padding = None if mask.padding is None else mask.padding[text : text + 1]
    bias = None if view.bias is None else view.bias[head : head + 1]
    own = replace(view, mask=Mask(prefix=prefix, window=mask.window, padding=padding), bias=bias)
    return query[text : text + 1, head : head + 1], key[text : text + 1, group : group + 1], own


def _split(part: slice, size: int) -> list[slice]:
    return [slice(start, min(start + size, part.stop)) for start in range(part.start, part.stop, size)]


def _pool(tile: Tile, cell: int) -> Float[Tensor, "batch heads high wide"]:
    """Means over cells. Cells at the lower and right edges are divided by what they hold."""
    rows, columns = tile.shape[-2:]
    heads = tile.flatten(0, 1)[:, None]
    pooled = torch.nn.functional.avg_pool2d(heads, cell, ceil_mode=True, count_include_pad=False)
    return pooled[:, 0].reshape(*tile.shape[:2], -(-rows // cell), -(-columns // cell))


def _inside(part: slice, length: int, what: str) -> slice:
    start, stop, step = part.indices(length)
    bounds = [bound for bound in (part.start, part.stop) if bound is not None]
    if step != 1 or start >= stop or any(not 0 <= bound <= length for bound in bounds):
        raise InputError(f"a tile wants a non-empty range within {length} {what}, not {part.start}:{part.stop}")
    return slice(start, stop)


def _refuse_documents(mask: Mask) -> None:
    if mask.documents is not None:
        raise KernelError("an operator is of one text, but this mask packs documents in a row: give them one by one")


def _check(query: Query, key: Key, view: View) -> None:
    _refuse_documents(view.mask)
    if query.shape[1] % key.shape[1]:
        raise InputError(f"{query.shape[1]} heads cannot share {key.shape[1]} groups of keys: use a divisor")
    sizes, wanted = (query.shape[-2], key.shape[-2]), (view.queries, view.keys)
    if sizes != wanted:
        raise InputError(f"the view is of {wanted} queries and keys, but {sizes} came")
    for name, values in (("queries", query), ("keys", key)):
        finite = torch.isfinite(values)
        if not finite.all():
            bad = (~finite).nonzero()[0].tolist()
            raise InputError(
                f"the {name} hold {int((~finite).sum())} values that are not finite, the first at {bad}: "
                "its spectrum would be a wrong number. Look for an overflow upstream, or compute in float32."
            )
