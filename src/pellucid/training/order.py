"""In which order documents come: a function of the seed and the epoch, so that a run can go on from any step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pellucid.training.config import Batch

Packing = Literal["stream", "documents", "padded"]
CHAPTER = 2**16  # units that are arranged at a time, so that the arranging of a large corpus takes little memory
_OPEN_ROWS = 64

Rows = list[tuple[int, ...]]  # each row holds units: windows of a stream, or parts of documents
Units = NDArray[np.int64]


@dataclass(frozen=True)
class Position:
    """The next batch: the epoch, the chapter of it, and the batch within that."""

    epoch: int = 0
    chapter: int = 0
    index: int = 0


@dataclass(frozen=True)
class Order:
    """sizes: the tokens of each unit. shuffled: False is the order of the files, every unit once, for an evaluation."""

    sizes: Units
    packing: Packing
    batch: Batch
    seed: int = 0
    shuffled: bool = True

    def from_position(self, position: Position) -> Iterator[tuple[Rows, Position, Position]]:
        """Batches of rows without end, each with its own position and that of the next one."""
        at = position
        while True:
            batches = self.batches(at.epoch, at.chapter)
            for index in range(at.index, len(batches)):
                after = Position(at.epoch, at.chapter, index + 1)
                yield batches[index], Position(at.epoch, at.chapter, index), after
            last = at.chapter + 1 >= self.chapters
            at = Position(at.epoch + 1) if last else Position(at.epoch, at.chapter + 1)

    @property
    def chapters(self) -> int:
        return -(-len(self.sizes) // CHAPTER)

    def batches(self, epoch: int, chapter: int = 0) -> list[Rows]:
        """The batches of one chapter of an epoch."""
        units = self._units(epoch)[chapter * CHAPTER : (chapter + 1) * CHAPTER]
        draw = np.random.default_rng([self.seed, epoch, chapter, 1])
        if self.packing == "padded":
            return self._by_length(units, draw)
        rows: Rows = [(int(unit),) for unit in units] if self.packing == "stream" else self._packed(units)
        each = max(self.batch.tokens // self.batch.context, 1)
        batches = [rows[first : first + each] for first in range(0, len(rows), each)]
        if self.shuffled and len(batches) > 1 and len(batches[-1]) < each:
            batches.pop()  # a short last batch would be another shape and a noisier step; the next epoch deals anew
        return batches

    def _units(self, epoch: int) -> Units:
        if not self.shuffled:
            return np.arange(len(self.sizes))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.sizes))

    def _by_length(self, units: Units, draw: np.random.Generator) -> list[Rows]:
        """Rows of about the same length together, as many as the budget of tokens holds with their padding."""
        batches: list[Rows] = [[]]
        longest = 0
        for unit in units[np.argsort(self.sizes[units], kind="stable")].tolist():
            longest = max(longest, self._padded(int(self.sizes[unit])))
            if batches[-1] and longest * (len(batches[-1]) + 1) > self.batch.tokens:
                batches.append([])
                longest = self._padded(int(self.sizes[unit]))
            batches[-1].append((unit,))
        if self.shuffled:
            return [batches[place] for place in draw.permutation(len(batches)).tolist()]
        return batches

    def _padded(self, size: int) -> int:
        return -(-size // self.batch.multiple) * self.batch.multiple

    def _packed(self, units: Units) -> Rows:
        """First fit among the rows that are open: a full row, or the fullest when too many are, is closed."""
        full: Rows = []
        rows: list[list[int]] = []
        room: list[int] = []
        for unit in units.tolist():
            size = int(self.sizes[unit])
            place = next((index for index, left in enumerate(room) if left >= size), None)
            if place is None:
                place = len(rows)
                rows.append([])
                room.append(self.batch.context)
            rows[place].append(unit)
            room[place] -= size
            if room[place] == 0 or len(rows) > _OPEN_ROWS:
                closed = place if room[place] == 0 else room.index(min(room))
                room.pop(closed)
                full.append(tuple(rows.pop(closed)))
        return full + [tuple(row) for row in rows]
