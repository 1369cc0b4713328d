"""What is recorded of the heads while they learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pellucid.model.transformer import Transformer
from pellucid.training.run import train
from tests.training.runs import DECODER, run_of, stories, translation_run


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "out/record.jsonl").read_text().splitlines()]


def test_every_head_at_chosen_steps(tmp_path: Path) -> None:
    done = train(run_of(tmp_path, stories(tmp_path), record={"points": 4, "tokens": 20}))
    found = lines(tmp_path)
    assert [line["step"] for line in found] == [0, 2, 7, 20]
    assert all(len(line["heads"]) == 4 for line in found)
    for head in found[-1]["heads"]:
        assert 0 <= head["sink"] <= 1
        assert 1 <= head["stable_rank"] <= 20
        low, high = head["effective_rank"]
        assert 1 <= low <= high <= 20
    assert 0 < done.recording < 1


def test_recording_changes_nothing(tmp_path: Path) -> None:
    files = []
    for name, points in (("without", 0), ("with", 5)):
        (tmp_path / name).mkdir()
        model = {**DECODER, "dropout": 0.2}
        train(run_of(tmp_path / name, stories(tmp_path / name), model=model, record={"points": points}))
        files.append((tmp_path / name / "out/model/model.safetensors").read_bytes())
    assert files[0] == files[1]


def test_cross_attention_is_recorded_too(tmp_path: Path) -> None:
    train(translation_run(tmp_path, record={"points": 2}, schedule={"steps": 3, "warmup": 1}))
    kinds = {(head["stack"], head["kind"]) for head in lines(tmp_path)[-1]["heads"]}
    assert kinds == {("encoder", "self"), ("decoder", "self"), ("decoder", "cross")}


def test_a_head_that_looks_at_nothing_is_named_among_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Normalised ReLU may silence a head: here its scores are all far below zero."""
    build = Transformer.__init__

    def silenced(self, config, **options):
        build(self, config, **options)
        with torch.no_grad():
            first = self.decoder.blocks[0].attention
            first.to_query.bias[:8], first.to_key.bias[:8] = 9, -9

    monkeypatch.setattr(Transformer, "__init__", silenced)
    model = {**DECODER, "attention": {"kind": "normalized_relu"}, "position": {"kind": "none"}, "decoder_blocks": 1}
    short = {"record": {"points": 2, "tokens": 6}, "schedule": {"steps": 1, "warmup": 0}}
    train(run_of(tmp_path, stories(tmp_path), model=model, **short))
    heads = lines(tmp_path)[0]["heads"]
    assert len(heads) == 2
    assert ["problem" in head for head in heads] == [True, False]
