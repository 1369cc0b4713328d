"""The film of a run, as its finished model carries it: a line per recorded step, with the loss at that time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, NonNegativeInt, ValidationError

from pellucid.errors import InputError
from pellucid.training.progress import LOG

RECORD = "record.jsonl"
LARGEST = 64 * 1024**2  # bytes
MEASURES = ("entropy", "sink", "stable_rank", "effective_rank")


class HeadLine(BaseModel):
    """A head at a step. One that looked at nothing has a problem in place of numbers."""

    stack: Literal["encoder", "decoder"] = "decoder"
    block: NonNegativeInt
    head: NonNegativeInt
    kind: Literal["self", "cross"] = "self"
    entropy: float = float("nan")
    sink: float = float("nan")
    stable_rank: float = float("nan")
    effective_rank: tuple[float, float] = (float("nan"), float("nan"))
    problem: str | None = None

    @property
    def place(self) -> tuple[str, int, str]:
        return self.stack, self.block, self.kind

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """By the order of `MEASURES`; of a bracket, its middle."""
        return self.entropy, self.sink, self.stable_rank, sum(self.effective_rank) / 2


class Line(BaseModel):
    step: NonNegativeInt
    heads: list[HeadLine]
    loss: float | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """places: (stack, block, kind) of every attention. values: by measure [steps, places, heads], NaN where none is."""

    steps: tuple[int, ...]
    losses: tuple[float | None, ...]
    places: tuple[tuple[str, int, str], ...]
    heads: tuple[int, ...]
    values: dict[str, NDArray[np.float64]]


def carry(run: Path, model: Path) -> None:
    """Put what a run recorded beside its finished model, each line with the loss that was logged last before it."""
    if not (run / RECORD).exists():
        return
    losses = _losses(run / LOG)
    with (model / RECORD).open("w", encoding="utf-8") as file:
        for line in (run / RECORD).read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            known = [loss for step, loss in losses if step <= entry["step"]]
            file.write(json.dumps(entry | ({"loss": known[-1]} if known else {})) + "\n")


def read_recording(folder: Path) -> Recording | None:
    """What a model's folder says of its training; None where it says nothing."""
    file = folder / RECORD
    if not file.exists():
        return None
    if file.stat().st_size > LARGEST:
        raise InputError(f"{file.name} is larger than {LARGEST} bytes: record fewer points")
    lines = [_line(text, place) for place, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)]
    measured = [line for line in lines if any(head.problem is None for head in line.heads)]
    return _gathered(sorted(measured, key=lambda line: line.step)) if measured else None


def _line(text: str, place: int) -> Line:
    try:
        return Line.model_validate_json(text)
    except ValidationError as error:
        raise InputError(f"{RECORD}, line {place}: {error.errors()[0]['msg']}") from None


def _gathered(lines: list[Line]) -> Recording:
    seen = [head for line in lines for head in line.heads if head.problem is None]
    places = sorted(
        {head.place for head in seen}, key=lambda place: (place[0] != "encoder", place[1], place[2] != "self")
    )
    heads = sorted({head.head for head in seen})
    rows, columns = ({name: k for k, name in enumerate(names)} for names in (places, heads))
    found = np.full((len(MEASURES), len(lines), len(places), len(heads)), np.nan)
    for k, line in enumerate(lines):
        for head in line.heads:
            if head.problem is None:
                found[:, k, rows[head.place], columns[head.head]] = head.numbers
    values = dict(zip(MEASURES, found, strict=True))
    return Recording(
        tuple(line.step for line in lines), tuple(line.loss for line in lines), tuple(places), tuple(heads), values
    )


def _losses(log: Path) -> list[tuple[int, float]]:
    entries: list[dict[str, Any]] = []
    if log.exists():
        entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [(entry["step"], entry["loss"]) for entry in entries if "loss" in entry]
