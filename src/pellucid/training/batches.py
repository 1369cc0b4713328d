"""Rows of documents to tensors: what the network reads, and what it should answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from pellucid.training import config as c
from pellucid.training.data import IGNORED
from pellucid.training.order import Order, Packing, Rows, Units
from pellucid.training.shards import Store
from pellucid.training.tokenizers import Words

Item = TypeVar("Item")
Table = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Some rows. `answers` holds what is learned from, IGNORED where nothing is.

    counted: how many answers there are. tokens: how many tokens are read, without padding.
    starts: of tagging, how many words begin at each token.
    """

    ids: Int[Tensor, "batch token"]
    answers: Int[Tensor, "batch answer"]
    counted: int
    tokens: int
    target: Int[Tensor, "batch target"] | None = None
    padding: Bool[Tensor, "batch token"] | None = None
    documents: Int[Tensor, "batch token"] | None = None
    starts: Int[Tensor, "batch token"] | None = None

    def to(self, device: torch.device) -> Batch:
        return self._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """In memory from which a GPU copies while it computes."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **changed)

    def silent(self) -> Batch:
        """The same shapes with nothing to learn: for a process that has no rows when others have."""
        return replace(self, answers=torch.full_like(self.answers, IGNORED), counted=0, tokens=0)


class Source:
    """The units of a store, for a task: their sizes, and rows of them as tensors. labels: the names of its labels."""

    def __init__(
        self, store: Store, run: c.RunConfig, words: Words, *, training: bool, labels: tuple[str, ...] = ()
    ) -> None:
        self.store, self.run, self.words, self.training, self.labels = store, run, words, training, labels
        self.context, task = run.batch.context, run.task
        self.packing: Packing = task.packing if isinstance(task, c.LanguageModel) else "padded"
        self.next_token = isinstance(task, c.LanguageModel)
        lengths = store.lengths["ids"]
        if self.packing == "stream":
            self.sizes = self._windows(store.total("ids"))
            return
        self.document, self.start, self.stop = _parts(lengths, self.context, self.next_token, task)
        self.sizes = self.stop - self.start - int(self.next_token)
        if isinstance(task, c.Translation):
            self.sizes = np.maximum(self.sizes - 1, store.lengths["source"][self.document])

    def order(self) -> Order:
        return Order(self.sizes, self.packing, self.run.batch, self.run.seed, self.training)

    def collate(self, rows: Rows, epoch: int) -> Batch:
        match self.run.task:
            case c.LanguageModel(packing="stream"):
                return self._stream(rows, epoch)
            case c.LanguageModel():
                return self._documents(rows)
            case c.MaskedLanguageModel() as task:
                return self._masked(rows, epoch, task.share)
            case c.Translation():
                return self._pairs(rows)
            case c.Tagging() | c.Classification():
                return self._labelled(rows)

    # --- a stream: windows that begin elsewhere in every epoch ---

    def _windows(self, total: int) -> Units:
        if self.training and total - 1 >= 2 * self.context:
            return np.full((total - self.context) // self.context, self.context)
        firsts = np.arange(0, max(total - 1, 1), self.context)
        return np.minimum(firsts + self.context, max(total - 1, 1)) - firsts

    def _shift(self, epoch: int) -> int:
        spare = self.store.total("ids") - 1 - len(self.sizes) * self.context
        if not self.training or spare <= 0:
            return 0
        return int(np.random.default_rng([self.run.seed, epoch, 2]).integers(0, spare + 1))

    def _stream(self, rows: Rows, epoch: int) -> Batch:
        shift, end = self._shift(epoch), self.store.total("ids")
        ids = _blank(len(rows), self.context + 1, IGNORED)
        for place, (unit,) in enumerate(rows):
            first = shift + unit * self.context
            window = self.store.stream("ids", first, min(first + self.context + 1, end))
            ids[place, : len(window)] = window
        return _batch(np.maximum(ids[:, :-1], 0), ids[:, 1:])

    # --- documents, in rows of several or of one ---

    def _documents(self, rows: Rows) -> Batch:
        """Padding stands after the text, in the future of every token: a causal mask hides it already."""
        packed = self.packing == "documents"
        width = self.context if packed else self._width(max(int(self.sizes[unit]) for row in rows for unit in row))
        ids, answers, documents = (_blank(len(rows), width, fill) for fill in (0, IGNORED, -1))
        for place, row in enumerate(rows):
            at = 0
            for number, unit in enumerate(row):
                text = self._text("ids", unit)
                stop = at + len(text) - 1
                ids[place, at:stop], answers[place, at:stop], documents[place, at:stop] = text[:-1], text[1:], number
                at = stop
        return _batch(ids, answers, documents=torch.from_numpy(documents) if packed else None)

    def _masked(self, rows: Rows, epoch: int, share: float) -> Batch:
        ids, padding = self._padded(rows, "ids")
        answers = np.full_like(ids, IGNORED)
        for place, (unit,) in enumerate(rows):
            draw = np.random.default_rng([self.run.seed, epoch if self.training else 0, unit, 3])
            length = int(padding[place].sum())
            hidden, kind = draw.random(length) < share, draw.random(length)
            hidden[draw.integers(length)] = True  # at least one
            answers[place, :length][hidden] = ids[place, :length][hidden]
            ids[place, :length][hidden & (kind < 0.8)] = self.words.mask or 0
            other = hidden & (kind >= 0.8) & (kind < 0.9)
            ids[place, :length][other] = draw.integers(0, self.words.size, int(other.sum()))
        return _batch(ids, answers, padding=_unless_full(padding), tokens=int(padding.sum()))

    def _pairs(self, rows: Rows) -> Batch:
        source, padding = self._padded(rows, "source")
        whole, real = self._padded(rows, "ids", more=1)
        answers = np.where(real, whole, IGNORED)[:, 1:]
        target = torch.from_numpy(np.ascontiguousarray(whole[:, :-1]))
        tokens = int(padding.sum() + real.sum()) - len(rows)
        return _batch(source, answers, target=target, padding=_unless_full(padding), tokens=tokens)

    def _labelled(self, rows: Rows) -> Batch:
        ids, padding = self._padded(rows, "ids")
        mask, tokens = _unless_full(padding), int(padding.sum())
        if isinstance(self.run.task, c.Classification):
            kinds = [self.store.document("labels", int(self.document[unit])) for (unit,) in rows]
            return _batch(ids, np.array(kinds, dtype=np.int64), padding=mask, tokens=tokens)
        labels, _ = self._padded(rows, "labels", fill=IGNORED)
        starts, _ = self._padded(rows, "starts")
        if isinstance(self.run.task, c.Tagging) and self.run.task.pieces == "first":
            labels[starts == 0] = IGNORED
        return _batch(ids, labels, padding=mask, starts=torch.from_numpy(starts), tokens=tokens)

    def _padded(self, rows: Rows, column: str, fill: int = 0, more: int = 0) -> tuple[Table, NDArray[np.bool_]]:
        texts = [self._text(column, unit) for (unit,) in rows]
        width = self._width(max(len(text) for text in texts) - more) + more
        table, real = _blank(len(rows), width, fill), np.zeros((len(rows), width), dtype=np.bool_)
        for place, text in enumerate(texts):
            table[place, : len(text)] = text
            real[place, : len(text)] = True
        return table, real

    def _text(self, column: str, unit: int) -> NDArray[Any]:
        if column == "source":
            return self.store.document("source", int(self.document[unit]))
        return self.store.document(column, int(self.document[unit]), int(self.start[unit]), int(self.stop[unit]))

    def _width(self, longest: int) -> int:
        multiple = self.run.batch.multiple
        return -(-longest // multiple) * multiple


def _parts(lengths: Units, context: int, next_token: bool, task: c.Task) -> tuple[Units, Units, Units]:
    """Documents in parts that fit in a row: document, start and stop. Parts of a text share the token between them."""
    if isinstance(task, c.Translation | c.Classification):
        stop = lengths if isinstance(task, c.Translation) else np.minimum(lengths, context)
        return np.arange(len(lengths)), np.zeros_like(lengths), stop
    usable = lengths - int(next_token)
    counts = np.maximum(-(-usable // context), 0)
    document = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = number * context
    return document, start, np.minimum(start + context + int(next_token), lengths[document])


def _blank(rows: int, width: int, fill: int) -> Table:
    return np.full((rows, width), fill, dtype=np.int64)


def _unless_full(padding: NDArray[np.bool_]) -> Tensor | None:
    return None if padding.all() else torch.from_numpy(padding)


def _batch(ids: Table, answers: Table, tokens: int | None = None, **parts: Any) -> Batch:
    counted = int((answers != IGNORED).sum())
    read, wanted = (torch.from_numpy(np.ascontiguousarray(table)) for table in (ids, answers))
    return Batch(read, wanted, counted, counted if tokens is None else tokens, **parts)


def dealt(rows: Rows, micro: int, width: int, processes: int) -> list[Rows]:
    """Rows in parts of at most `micro` tokens, as many as a multiple of the processes; some may be empty."""
    at_once = max(micro // max(width, 1), 1)
    parts = -(-len(rows) // at_once)
    parts = -(-parts // processes) * processes
    ends = [len(rows) * place // parts for place in range(parts + 1)]
    return [rows[first:last] for first, last in pairwise(ends)]


def ahead(items: Iterator[Item], depth: int = 4) -> Iterator[Item]:
    """The same items, made by a thread while the last ones are used. An error there is raised here."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def work() -> None:
        try:
            for item in items:
                if not _offer(ready, ("item", item), stopped):
                    return
            _offer(ready, ("end", None), stopped)
        except BaseException as error:
            _offer(ready, ("error", error), stopped)

    thread = threading.Thread(target=work, name="pellucid-batches", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stopped.set()
        thread.join(timeout=5)


def _offer(ready: queue.Queue[Any], item: tuple[str, Any], stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            ready.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False
