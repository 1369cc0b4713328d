"""One head opened for truncation: its factors, and the model's run with the head at a smaller rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pellucid.lens.edit import Edit, Edited, Replace, edit
from pellucid.lens.trace import record
from pellucid.lens.trace import trace as run
from pellucid.lens.view import allowed
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.spectra.overview import head_operator
from pellucid.spectra.truncation import Factors, Rows, factors, free_factors
from pellucid.spectra.watch import Place
from pellucid.web.asking import Ids, lists, tensors
from pellucid.web.payloads import Array, pooled
from pellucid.web.shelf import Book

# Up to so many tokens the matrix is formed and every singular triple is known.
EXACT = 512
SIDE, BANDS = 256, 32  # pixels, and how many rows of them are made at once
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
        _picture(lambda part: weights[part], weights.shape[0], each),
        each,
        min(step.error, 1e300),
        step.error <= allowed(step),
    )


@torch.no_grad()
def _open_free(book: Book, ids: Ids, place: Place, head: int, progress: Progress) -> Opened:
    site, texts, network = site_of(place), tensors(book.model, ids), book.model.network
    with record(network, {f"{site}.value", f"{site}.heads"}) as seen:
        network(*texts)
    operator = head_operator(book.model, texts, place, head)
    view = operator.view

    def rows(part: slice) -> Tensor:
        return operator.tile(part, slice(0, view.keys))[0, 0]

    value, each = seen[f"{site}.value"][0], _each(view.queries, view.keys)
    return Opened(
        site,
        head,
        free_factors(operator, progress=progress),
        rows,
        seen[f"{site}.heads"][0, head].clone(),
        value[head * len(value) // book.model.config.heads].clone(),
        _picture(rows, view.queries, each),
        each,
    )


def run_at(book: Book, ids: Ids, opened: Opened, rank: int) -> tuple[Tensor, Edited]:
    """The head's output at a rank, and the model's output before and after."""
    index, heads = (0, opened.head), f"{opened.site}.heads"
    if opened.value is not None:
        output = opened.found.apply(rank, opened.value)
        return output, _edit(book, book.model, ids, {heads: Replace(output, index)})
    with record(book.formed.network, {heads}) as seen:
        new = Replace(opened.found.rows(rank), index)
        edited = _edit(book, book.formed, ids, {f"{opened.site}.weights": new})
    return seen[heads][0, opened.head], edited


def _edit(book: Book, model: Model, ids: Ids, edits: dict[str, Edit]) -> Edited:
    """The run without edits is the same at every rank."""
    text, *target = lists(ids)
    known: dict[str, Tensor] = book.keep(("output", ids), dict)
    edited = edit(model, text, edits, *target, before=known.get("before"))
    known["before"] = edited.before
    return edited


def relative(own: Tensor, changed: Tensor) -> float:
    """How far the head's output moved, over its size."""
    own, changed = own.double().cpu(), changed.double().cpu()
    return float((changed - own).norm()) / max(float(own.norm()), TINY)


def _each(rows: int, columns: int) -> tuple[int, int]:
    return -(-rows // SIDE), -(-columns // SIDE)


def _picture(rows: Rows, queries: int, each: tuple[int, int]) -> Array:
    """A band of pixels at a time; NaN where no weight is."""
    step = each[0] * BANDS
    bands = (rows(slice(start, min(start + step, queries))) for start in range(0, queries, step))
    means = np.concatenate([pooled(band.double().cpu().numpy(), *each) for band in bands])
    return np.where(means == 0, np.nan, means)
