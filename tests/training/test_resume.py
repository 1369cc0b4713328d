"""Killed at any moment, a run goes on by itself and ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.processes import killed, outside, whole
from tests.training.runs import run_of, stories

# Dropout, a running mean and the best weights: everything that has a state.
CHANGES = {
    "model": {"width": 16, "heads": 2, "decoder_blocks": 2, "dropout": 0.1, "position": {"kind": "rotary"}}
    | {"feed_forward": {"kind": "plain", "hidden": 32}},
    "optimizer": {"rate": 3e-3, "average": 0.9},
    "evaluation": {"every": 10, "best": True},
    "record": {"points": 3, "tokens": 16},
}


def weights(folder: Path) -> bytes:
    return (folder / "out/model/model.safetensors").read_bytes()


def compare(tmp_path: Path, moments: list[str], steps: int, seed: int = 0) -> list[bool]:
    runs = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        file = stories(tmp_path / name)
        runs.append(run_of(tmp_path / name, file, schedule={"steps": steps, "warmup": 4}, **CHANGES))
    straight, broken = outside(whole(runs[0]), killed(runs[1], moments, seed), folder=tmp_path)
    assert straight["codes"] == broken["codes"] == [0]
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    steady = ("step", "loss", "valid_loss")
    seen = [[[entry.get(key) for key in steady] for entry in log["log"]] for log in (straight, broken)]
    assert seen[0] == seen[1]
    records = [(tmp_path / name / "out/record.jsonl").read_text().count("\n") for name in ("whole", "killed")]
    assert records == [3, 3]
    return broken["killed"]


def test_killed_four_times_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    assert all(compare(tmp_path, ["tokenising", "writing", "renamed", "running"], steps=80))


@pytest.mark.slow
def test_killed_twenty_times_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    moments = ["tokenising", *["writing", "running", "running", "renamed"] * 4, "writing", "running", "running"]
    assert len(moments) == 20
    assert all(compare(tmp_path, moments, steps=1000, seed=3))
