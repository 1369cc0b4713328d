"""How good a model is: loss, perplexity, bits per byte, accuracy, entity F1, BLEU and chrF."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.pretrained.facade import Model
from pellucid.pretrained.tokenizer import FastTokenizer
from pellucid.training import config as c
from pellucid.training.batches import Batch, Source, dealt
from pellucid.training.data import IGNORED, Held, read_files, write_store
from pellucid.training.distributed import World
from pellucid.training.formats import Faults, Row
from pellucid.training.objective import Objective, arguments
from pellucid.training.shards import Store
from pellucid.training.tokenizers import given

BleuTokens = Literal["13a", "char", "zh", "intl", "none"]
Metrics = dict[str, float]


@dataclass
class Tally:
    """Sums over batches; of words, how many there are and how many got their label."""

    loss: float | Tensor = 0.0
    counted: int = 0
    right: float | Tensor = 0.0
    words: int = 0

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


@torch.no_grad()
def measure(
    call: Any, objective: Objective, source: Source, world: World, *, limit: int = 0, autocast: bool = False
) -> Metrics:
    """The metrics of a store, spread over the processes. `call` is the objective as it is wrapped."""
    was_training = objective.training
    objective.eval()
    tally = Tally()
    place = world.device.type
    try:
        for batch in _batches(source, world, limit):
            with torch.autocast(place, torch.bfloat16) if autocast else nullcontext():
                loss, best = call(**arguments(batch))
            tally.add(batch, loss, best)
    finally:
        objective.train(was_training)
    loss, counted, right, words = world.summed(tally.loss, tally.counted, tally.right, tally.words)
    return _metrics(loss / max(counted, 1), right, words, source)


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


def _metrics(loss: float, right: float, words: float, source: Source) -> Metrics:
    found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    if isinstance(source.run.task, c.LanguageModel) and source.store.facts["bytes"]:
        each = source.store.total("ids") / source.store.facts["bytes"]
        found["bits_per_byte"] = loss / math.log(2) * each
    if words:
        found["accuracy"] = right / words
    return found


# --- a finished model on files ---


@dataclass(frozen=True)
class Asked:
    """What to evaluate besides the loss: so many translations (0 is none), with so many beams, scored so.

    held_out: only the rows that the run held out of its training files.
    """

    translate: int = 0
    beams: int = 1
    bleu_tokens: BleuTokens = "13a"
    batch: int = 64
    held_out: bool = False


def evaluate(model: Model, run: c.RunConfig, files: list[Path], asked: Asked = Asked()) -> dict[str, Any]:
    """The metrics of a model on files; the run says what the task is and how the files are read."""
    if not isinstance(model.tokenizer, FastTokenizer):
        raise InputError("this model came without a tokenizer of the tokenizers library: it cannot read files")
    part = run.tokenizer if isinstance(run.tokenizer, c.Given) else c.Given()
    words = given(model.tokenizer.pipeline, part, run.task)
    faults = Faults()
    rows = list(read_files(run, files, faults))
    faults.check(run.data.broken)
    if asked.held_out:
        rows = _held_out(rows, run)
    with tempfile.TemporaryDirectory() as folder:
        notes = write_store(rows, run, words, list(model.labels), Path(folder) / "valid")
        source = Source(Store(Path(folder) / "valid"), run, words, training=False)
        objective = Objective(model.network)
        found: dict[str, Any] = dict(measure(objective, objective, source, World(model.device)))
        if isinstance(run.task, c.Tagging) and any(label.startswith("B-") for label in model.labels):
            found["entity_f1"] = entity_f1(model, source)
    found["documents"] = len(rows)
    if isinstance(run.task, c.Translation) and asked.translate:
        found |= scores_of(rows[: asked.translate], translations(model, rows[: asked.translate], asked), asked)
    return found | ({"notes": notes} if notes else {})


def _held_out(rows: list[Row], run: c.RunConfig) -> list[Row]:
    if run.data.valid or not run.data.holdout:
        raise InputError("the run of this model held no rows out: leave --held-out away")
    return list(Held(run.data, len(rows)).valid(rows))


def translations(model: Model, rows: list[Row], asked: Asked) -> list[str]:
    """What the model makes of each source, in their order; those of a length go together."""
    from pellucid.generation.decode import generate

    places = sorted(range(len(rows)), key=lambda place: len(rows[place].text))
    found = [""] * len(rows)
    for first in range(0, len(places), asked.batch):
        some = places[first : first + asked.batch]
        longest = max(len(model.encode(rows[place].text)) for place in some)
        prompts = [rows[place].text for place in some]
        results = generate(model, prompts, beams=asked.beams, max_tokens=2 * longest + 10)
        for place, result in zip(some, results, strict=True):
            found[place] = result.text or ""
    return found


def scores_of(rows: list[Row], written: list[str], asked: Asked) -> dict[str, Any]:
    try:
        import sacrebleu
    except ImportError:
        raise InputError(
            "BLEU and chrF need sacrebleu: pip install 'pellucid[train]' (or pip install sacrebleu)"
        ) from None
    wanted = [[row.target for row in rows]]
    bleu = sacrebleu.BLEU(tokenize=asked.bleu_tokens)
    score, letters = bleu.corpus_score(written, wanted), sacrebleu.CHRF().corpus_score(written, wanted)
    samples = [
        {"source": r.text, "target": r.target, "written": w} for r, w in list(zip(rows, written, strict=True))[:5]
    ]
    return {"bleu": score.score, "chrf": letters.score, "signature": str(bleu.get_signature()), "samples": samples}


@torch.no_grad()
def entity_f1(model: Model, source: Source) -> float:
    """Of whole entities, by seqeval: an entity counts when its kind and both its ends are right."""
    try:
        from seqeval.metrics import f1_score
    except ImportError:
        raise InputError("entity F1 needs seqeval: pip install 'pellucid[train]' (or pip install seqeval)") from None
    true: list[list[str]] = []
    found: list[list[str]] = []
    for batch in _batches(source, World(model.device), 0):
        best = model.network(batch.ids, padding=batch.padding).argmax(-1)
        assert batch.starts is not None
        for starts, answer, guess in zip(batch.starts, batch.answers, best, strict=True):
            begins = (starts > 0) & (answer != IGNORED)
            true.append([model.labels[place] for place in answer[begins].tolist()])
            found.append([model.labels[place] for place in guess[begins].tolist()])
    return float(f1_score(true, found))
