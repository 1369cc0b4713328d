"""Each task learns its toy problem, and what it learned opens, traces and generates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pellucid
from pellucid.training.run import train
from tests.training.runs import DECODER, run_of, stories, tagging_run, translation_run

WIDER = {**DECODER, "width": 32, "heads": 4}


def test_a_character_model_learns_a_text_by_heart(tmp_path: Path) -> None:
    file = tmp_path / "poem.txt"
    file.write_text("Tell me, where is fancy bred, or in the heart or in the head?\n" * 4)
    run = run_of(
        tmp_path,
        file,
        task={"kind": "language_model", "packing": "stream"},
        data={"format": {"kind": "text"}, "holdout": 0},
        batch={"tokens": 256, "context": 64},
        model=WIDER,
        optimizer={"rate": 1e-2, "decay": 0},
        schedule={"steps": 150, "warmup": 10},
        output={"checkpoint": 1000, "log": 50},
    )
    done = train(run)
    log = [json.loads(line) for line in (tmp_path / "out/log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < 0.1
    model = pellucid.load(done.model)
    assert pellucid.generate(model, "Tell me, where", max_tokens=20)[0].text == " is fancy bred, or i"
    assert max(step.error for step in pellucid.trace(model, "Tell me").steps) < 1e-4


def test_documents_begin_and_end(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        stories(tmp_path),
        model=WIDER,
        schedule={"steps": 200, "warmup": 10},
        optimizer={"rate": 1e-2},
        output={"checkpoint": 1000, "log": 50},
    )
    done = train(run)
    assert done.metrics["loss"] < 1.2
    assert done.metrics["bits_per_byte"] == pytest.approx(done.metrics["loss"] / 0.6931, rel=0.1)
    model = pellucid.load(done.model)
    assert model.tokenizer.token(model.encode("the")[0]) == "<|start|>"
    assert pellucid.generate(model, "the", max_tokens=200)[0].continuations[0].ended == "token"


def test_translation_learns_a_toy_language(tmp_path: Path) -> None:
    run = translation_run(
        tmp_path,
        batch={"tokens": 384, "context": 24},
        schedule={"steps": 300, "warmup": 30},
        optimizer={"rate": 5e-3, "decay": 0},
        output={"checkpoint": 1000, "log": 100},
        model={"width": 32, "encoder_blocks": 1, "decoder_blocks": 1, "heads": 4}
        | {"feed_forward": {"kind": "plain", "hidden": 64}},
    )
    done = train(run)
    assert done.metrics["loss"] < 0.4
    model = pellucid.load(done.model)
    pairs = [line.split("\t")[:2] for line in (tmp_path / "pairs.tsv").read_text().splitlines()[:30]]
    written = [result.text for result in pellucid.generate(model, [source for source, _ in pairs], max_tokens=8)]
    assert sum(text == target for text, (_, target) in zip(written, pairs, strict=True)) >= 27


def test_tagging_learns_labels_in_context(tmp_path: Path) -> None:
    run = tagging_run(
        tmp_path,
        tokenizer={"kind": "bpe", "vocab": 60, "words": True},
        schedule={"steps": 120, "warmup": 10},
        optimizer={"rate": 1e-2},
        output={"checkpoint": 1000},
    )
    done = train(run)
    assert done.metrics["accuracy"] > 0.97
    model = pellucid.load(done.model)
    assert model.tag("the dog sees the cat") == [
        ("the", "DET"),
        ("dog", "PROPN"),
        ("sees", "VERB"),
        ("the", "DET"),
        ("cat", "NOUN"),
    ]


def test_classification_learns_two_kinds_of_text(tmp_path: Path) -> None:
    file = tmp_path / "kinds.jsonl"
    rows = [{"text": "ab" * (k % 5 + 1) + "x" * (k % 2), "label": "with" if k % 2 else "without"} for k in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_of(
        tmp_path,
        file,
        model={"encoder_blocks": 2, "width": 16, "heads": 2, "feed_forward": {"kind": "plain", "hidden": 32}},
        task={"kind": "classification"},
        data={"format": {"kind": "jsonl"}, "holdout": 0.2, "holdout_by": "end"},
        schedule={"steps": 100, "warmup": 5},
        optimizer={"rate": 1e-2},
    )
    done = train(run)
    assert done.metrics["accuracy"] == 1
    assert next(iter(pellucid.load(done.model).classify("ababx"))) == "with"


def test_a_masked_language_model_learns(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        stories(tmp_path),
        model={"encoder_blocks": 2, "width": 16, "heads": 2, "feed_forward": {"kind": "plain", "hidden": 32}},
        task={"kind": "masked_language_model"},
        batch={"tokens": 512, "context": 64},
        schedule={"steps": 100, "warmup": 10},
        optimizer={"rate": 1e-2},
        output={"log": 10},
    )
    train(run)
    log = [json.loads(line) for line in (tmp_path / "out/log.jsonl").read_text().splitlines()]
    assert log[-1]["loss"] < 0.85 * log[0]["loss"]
