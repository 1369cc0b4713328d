"""One head opened for truncation: its factors, and the model's run with the head at a smaller rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pellucid.lens.edit import Edited, Replace, edit
from pellucid.lens.trace import record
from pellucid.lens.trace import trace as run
from pellucid.lens.view import allowed
from pellucid.model import config as c
from pellucid.spectra.overview import head_operator
from pellucid.spectra.truncation import Factors, Rows, factors, free_factors
from pellucid.spectra.watch import Place
from pellucid.web.asking import Ids, lists, tensors
from pellucid.web.payloads import Array, pooled
from pellucid.web.shelf import Book

# Up to so many tokens the matrix is formed and every singular triple is known.
EXACT = 512
SIDE = 256  # pixels
TINY = 1e-30  # a head that gives nothing at all

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Opened:
    """A head on a text. output: what it gives as it is. value: what a head whose matrix is not formed mixes.

    picture: means of each x each weights, NaN where there is none. error: of the weights, checked in float64.
    """

    site: str
    head: int
    found: Factors
    rows: Rows
    output: Tensor
    value: Tensor | None
    picture: Array
    each: tuple[int, int]
    error: float | None = None
    verified: bool = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.found.left.shape[0], self.found.right.shape[0]

    def picture_at(self, rank: int) -> Array:
        """The mean of a rectangle of a product of factors is the product of their means."""
        left, right = (
            pooled(side[:, :rank].numpy(), each, 1)
            for side, each in zip((self.found.left, self.found.right), self.each, strict=True)
        )
        return np.asarray((left * self.found.values[:rank].numpy()) @ right.T)


def is_exact(book: Book, ids: Ids) -> bool:
    """Linformer's matrix is narrow at any length."""
    return isinstance(book.model.config.attention, c.Linformer) or max(map(len, ids)) <= EXACT


def site_of(place: Place) -> str:
    return f"{place.stack}.{place.block}.{'cross' if place.kind == 'cross' else 'attention'}"


def open_head(book: Book, ids: Ids, place: Place, head: int, progress: Progress) -> Opened:
    return (_open_formed if is_exact(book, ids) else _open_free)(book, ids, place, head, progress)


def _open_formed(book: Book, ids: Ids, place: Place, head: int, progress: Progress) -> Opened:
    site = site_of(place)
    traced = run(book.formed, *lists(ids), sites=[f"{site}.weights", f"{site}.heads"])
    step = traced[f"{site}.weights"]
    weights = step.value[0, head]
    each = _each(weights.shape[0], weights.shape[1])
    return Opened(
        site,
        head,
        factors(weights),
        lambda part: weights[part],
        traced[f"{site}.heads"].value[0, head],
        None,
        pooled(_shown(weights), *each),
        each,
        step.error,
        step.error <= allowed(step),
    )


@torch.no_grad()
def _open_free(book: Book, ids: Ids, place: Place, head: int, progress: Progress) -> Opened:
    site, texts, network = site_of(place), tensors(book.model, ids), book.model.network
    with record(network, {f"{site}.value", f"{site}.heads"}) as seen:
        network(*texts)
    operator = head_operator(book.model, texts, place, head)
    view, every = operator.view, slice(0, operator.view.keys)
    value = seen[f"{site}.value"][0]
    side = max(_each(view.queries, view.keys))
    return Opened(
        site,
        head,
        free_factors(operator, progress=progress),
        lambda part: operator.tile(part, every)[0, 0],
        seen[f"{site}.heads"][0, head].clone(),
        value[head * len(value) // book.model.config.heads].clone(),
        _shown(operator.pooled(slice(0, view.queries), every, side)[0, 0]),
        (side, side),
    )


def run_at(book: Book, ids: Ids, opened: Opened, rank: int) -> tuple[Tensor, Edited]:
    """The head's output at a rank, and the model's output before and after."""
    text, *target = lists(ids)
    site, index, heads = opened.site, (0, opened.head), f"{opened.site}.heads"
    if opened.value is not None:
        output = opened.found.apply(rank, opened.value)
        return output, edit(book.model, text, {heads: Replace(output, index)}, *target)
    with record(book.formed.network, {heads}) as seen:
        edited = edit(book.formed, text, {f"{site}.weights": Replace(opened.found.rows(rank), index)}, *target)
    return seen[heads][0, opened.head], edited


def relative(own: Tensor, changed: Tensor) -> float:
    """How far the head's output moved, over its size."""
    own, changed = own.double().cpu(), changed.double().cpu()
    return float((changed - own).norm()) / max(float(own.norm()), TINY)


def _each(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // SIDE), -(-columns // SIDE)


def _shown(weights: Tensor) -> Array:
    values: Array = weights.float().cpu().numpy()
    return np.where(values == 0, np.nan, values)
