"""How good a model is: loss, perplexity, bits per byte, accuracy, entity F1, BLEU and chrF."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.pretrained.facade import Model
from pellucid.pretrained.tokenizer import FastTokenizer
from pellucid.training import config as c
from pellucid.training.batches import Batch, Source, dealt
from pellucid.training.data import IGNORED, Held, fits, read_files, write_store
from pellucid.training.distributed import World
from pellucid.training.entities import OUTSIDE, are_entities, f1, spans
from pellucid.training.formats import Faults, Row
from pellucid.training.objective import Objective, arguments
from pellucid.training.shards import Store
from pellucid.training.tokenizers import given
from pellucid.training.translating import score_translations

Metrics = dict[str, float]


@dataclass
class Tally:
    """Sums over batches; of words, how many there are and how many got their label, or the token that was hidden.

    labels: where they are those of entities, how many of these are right, found and true is counted.
    """

    labels: tuple[str, ...] = ()
    loss: float | Tensor = 0.0
    counted: int = 0
    right: float | Tensor = 0.0
    words: int = 0
    entities: list[int] = field(default_factory=lambda: [0, 0, 0])

    def add(self, batch: Batch, loss: Tensor, best: Tensor | None) -> None:
        self.loss = self.loss + loss.double()
        self.counted += batch.counted
        if best is None:
            return
        best = best.reshape(batch.answers.shape)
        real = batch.answers != IGNORED
        begins = real if batch.starts is None else (batch.starts > 0) & real
        self.right = self.right + ((best == batch.answers) & begins).sum().double()
        self.words += int(begins.sum()) if batch.starts is None else int(batch.starts.sum())
        if batch.starts is not None and are_entities(self.labels):
            for starts, answer, guess in zip(batch.starts, batch.answers, best, strict=True):
                self._add_entities(answer[starts > 0].tolist(), guess[starts > 0].tolist())

    def _add_entities(self, answers: list[int], guesses: list[int]) -> None:
        """A word whose label the model does not know counts as outside."""
        true = spans([OUTSIDE if each == IGNORED else self.labels[each] for each in answers])
        found = spans([self.labels[each] for each in guesses])
        counts = (len(true & found), len(found), len(true))
        self.entities = [sum(pair) for pair in zip(self.entities, counts, strict=True)]


@torch.no_grad()
def measure(
    call: Any, objective: Objective, source: Source, world: World, *, limit: int = 0, autocast: bool = False
) -> Metrics:
    """The metrics of a store, spread over the processes. `call` is the objective as it is wrapped."""
    was_training = objective.training
    objective.eval()
    tally = Tally(source.labels)
    place = world.device.type
    try:
        for batch in _batches(source, world, limit):
            with torch.autocast(place, torch.bfloat16) if autocast else nullcontext():
                loss, best = call(**arguments(batch))
            tally.add(batch, loss, best)
    finally:
        objective.train(was_training)
    sums = world.summed(tally.loss, tally.counted, tally.right, tally.words, *tally.entities)
    return _metrics(sums, source)


def _batches(source: Source, world: World, limit: int) -> Iterator[Batch]:
    order = source.order()
    done = 0
    for chapter in range(order.chapters):
        for rows in order.batches(0, chapter):
            if limit and done >= limit:
                return
            done += 1
            width = max(sum(int(source.sizes[unit]) for unit in row) for row in rows)
            micro = source.run.batch.micro or source.run.batch.tokens
            for part in dealt(rows, micro, width, world.size)[world.rank :: world.size]:
                batch = source.collate(part or rows[:1], 0)
                yield (batch if part else batch.silent()).to(world.device)


def _metrics(sums: list[float], source: Source) -> Metrics:
    total, counted, right, words, *entities = sums
    loss = total / max(counted, 1)
    found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    if isinstance(source.run.task, c.LanguageModel) and source.store.facts["bytes"]:
        each = source.store.total("ids") / source.store.facts["bytes"]
        found["bits_per_byte"] = loss / math.log(2) * each
    if words:
        found["accuracy"] = right / words
    if isinstance(source.run.task, c.Tagging) and are_entities(source.labels):
        found["entity_f1"] = f1(*entities)
    return found


def better(found: Metrics, best: Metrics, task: c.Task) -> bool:
    """By the task's own metric, then by the loss: entities or labels that are right, where there are labels."""
    return not best or _merit(found, task) > _merit(best, task)


def _merit(metrics: Metrics, task: c.Task) -> tuple[float, float]:
    labelled = isinstance(task, c.Tagging | c.Classification)
    own = metrics.get("entity_f1", metrics.get("accuracy", 0.0)) if labelled else 0.0
    return own, -metrics["loss"]


# --- a finished model on files ---


def evaluate(model: Model, run: c.RunConfig, files: list[Path], *, held_out: bool = False) -> dict[str, Any]:
    """The metrics of a model on files; the run says what the task is, how the files are read and what is translated.

    held_out: only the rows that the run held out of its training files.
    """
    if not isinstance(model.tokenizer, FastTokenizer):
        raise InputError("this model came without a tokenizer of the tokenizers library: it cannot read files")
    part = run.tokenizer if isinstance(run.tokenizer, c.Given) else c.Given()
    words = given(model.tokenizer.pipeline, part, run.task)
    faults = Faults()
    rows = list(read_files(run, files, faults))
    faults.check(run.data.broken)
    if held_out:
        rows = _held_out(rows, run)
    with tempfile.TemporaryDirectory() as folder:
        notes = write_store(rows, run, words, list(model.labels), Path(folder) / "valid")
        source = Source(Store(Path(folder) / "valid"), run, words, training=False, labels=model.labels)
        objective = Objective(model.network, guesses=isinstance(run.task, c.MaskedLanguageModel))
        found: dict[str, Any] = dict(measure(objective, objective, source, World(model.device)))
    found["documents"] = len(rows)
    if isinstance(run.task, c.Translation) and run.evaluation.translate:
        found |= score_translations(model, [row for row in rows if fits(row, run, words)], run.evaluation)
    return found | ({"notes": notes} if notes else {})


def _held_out(rows: list[Row], run: c.RunConfig) -> list[Row]:
    if run.data.valid or not run.data.holdout:
        raise InputError("the run of this model held no rows out: leave --held-out away")
    return list(Held(run.data, len(rows)).valid(rows))
