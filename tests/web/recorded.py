"""A model that was trained for a moment, with a record of it."""

from __future__ import annotations

from pathlib import Path

from pellucid.training.run import train
from tests.training.runs import run_of, stories

STEPS = [0, 1, 2, 4, 7, 13, 23, 40]


def trained(folder: Path) -> Path:
    run = run_of(folder, stories(folder), record={"points": 8, "tokens": 24}, schedule={"steps": 40, "warmup": 4})
    return train(run).model
