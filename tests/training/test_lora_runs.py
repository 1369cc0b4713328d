"""Fine-tuning by an adapter: over all tasks, what changes, what is written, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import pellucid
from pellucid.training.config import RunConfig
from pellucid.training.run import Trained, train
from tests.training.runs import ENCODER, run_of, stories, tagging_run, translation_run

LORA = {"rank": 4, "targets": ["attention.*", "feed_forward.*"]}
FAST = {"rate": 1e-2, "decay": 0.0}


def classes(folder: Path) -> Path:
    file = folder / "kinds.jsonl"
    rows = [{"text": "ab" * (k % 5 + 1) + "x" * (k % 2), "label": "with" if k % 2 else "without"} for k in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run_for(task: str, folder: Path, **changes: Any) -> RunConfig:
    folder.mkdir(parents=True, exist_ok=True)
    if task == "translation":
        return translation_run(folder, **changes)
    if task == "tagging":
        return tagging_run(folder, **changes)
    if task == "classification":
        data = {"format": {"kind": "jsonl"}, "holdout": 0.2, "holdout_by": "end"}
        return run_of(folder, classes(folder), **{"model": ENCODER, "task": {"kind": task}, "data": data} | changes)
    model = {"model": ENCODER} if task == "masked_language_model" else {}
    return run_of(folder, stories(folder), **model | {"task": {"kind": task}} | changes)


TASKS = ["language_model", "masked_language_model", "translation", "tagging", "classification"]


@pytest.fixture(scope="module", params=TASKS)
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Trained, Trained]:
    """A base, and an adapter for the same task on it."""
    folder = tmp_path_factory.mktemp(request.param)
    base = train(run_for(request.param, folder / "base", schedule={"steps": 10, "warmup": 2}))
    own = {"lora": LORA, "optimizer": FAST, "output": {"folder": str(folder / "tuned/out"), "merge": True}}
    run = run_for(request.param, folder / "tuned", **own, model=None)
    return folder, base, train(run, base=pellucid.load(base.model))


def test_it_learns_and_the_base_keeps_its_weights(tuned: tuple[Path, Trained, Trained]) -> None:
    folder, base, done = tuned
    assert done.metrics["loss"] < base.metrics["loss"]
    assert 0 < done.trained < done.parameters / 2
    kept = load_file(folder / "tuned/out/checkpoints/step-00000020/model.safetensors")
    assert sum(tensor.numel() for tensor in kept.values()) == done.trained
    assert all(".change." in name for name in kept)
