"""What attention looks like while it learns: every head's entropy, sink and ranks at chosen steps, as a film."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from pellucid.errors import InputError
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.measure import Selection, spectrum
from pellucid.spectra.spectrum import Effort
from pellucid.training.batches import Source
from pellucid.training.config import RunConfig, Translation
from pellucid.training.recording import RECORD


def chosen_steps(points: int, steps: int) -> set[int]:
    """The first, the last, and others whose distances grow: most happens early."""
    if points == 0:
        return set()
    if points == 1:
        return {steps}
    return {0} | {round((steps + 1) ** (place / (points - 1))) - 1 for place in range(1, points)}


class Recorder:
    """Writes a line per chosen step; `seconds` is what that took, which the line says too."""

    def __init__(self, run: RunConfig, network: Transformer, source: Source, folder: Path) -> None:
        self.steps = chosen_steps(run.record.points, run.schedule.steps)
        self.network, self.file = network, folder / RECORD
        self.texts: Any = self._probe(source, run) if self.steps else None
        self.seconds = 0.0

    def _probe(self, source: Source, run: RunConfig) -> Any:
        """The beginning of the data that the run is validated on."""
        longest, limit = int(source.store.lengths["ids"].argmax()), run.record.tokens
        ids = source.store.document("ids", longest)[:limit].tolist()
        if isinstance(run.task, Translation):
            return source.store.document("source", longest)[:limit].tolist(), ids
        return ids

    def at(self, step: int) -> None:
        if step not in self.steps:
            return
        start = time.perf_counter()
        heads = self._measure()
        took = time.perf_counter() - start
        self.seconds += took
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "seconds": took, "heads": heads}) + "\n")

    def resume(self, step: int) -> None:
        """Forget what was recorded after the step from which the run goes on."""
        if self.file.exists():
            kept = [line for line in self.file.read_text().splitlines() if _step_of(line) <= step]
            aside = self.file.with_suffix(".unfinished")
            aside.write_text("".join(line + "\n" for line in kept))
            aside.replace(self.file)

    def _measure(self) -> list[dict[str, Any]]:
        was_training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                return self._heads(Selection())
        except InputError:  # some head looks at nothing, as one of normalised ReLU may: tell it from the others
            config = self.network.config
            blocks = range(max(config.encoder_blocks, config.decoder_blocks))
            return [row for block in blocks for head in range(config.heads) for row in self._one(block, head)]
        finally:
            self.network.train(was_training)

    def _one(self, block: int, head: int) -> list[dict[str, Any]]:
        try:
            return self._heads(Selection([block], [head]))
        except InputError as error:
            return [{"block": block, "head": head, "problem": str(error)}]

    def _heads(self, only: Selection) -> list[dict[str, Any]]:
        model = Model(self.network.config, self.network)
        found = spectrum(model, self.texts, effort=Effort(tau=(0.9,)), baseline=False, only=only)
        return [
            {
                "stack": head.stack,
                "block": head.block,
                "head": head.head,
                "kind": head.kind,
                "entropy": head.measured.statistics.entropy,
                "sink": head.measured.statistics.sink,
                "stable_rank": head.measured.spectrum.stable,
                "effective_rank": list(head.measured.spectrum.effective[0.9]),
            }
            for head in found.heads
        ]


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):  # a line that a kill cut short
        return 2**62
