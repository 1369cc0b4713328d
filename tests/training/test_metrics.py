"""What an evaluation says, against numbers worked out by hand or by those who define them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

import pellucid
from pellucid.errors import ConfigError, InputError
from pellucid.generation.request import Beams
from pellucid.training import config as c
from pellucid.training import translating
from pellucid.training.batches import Source
from pellucid.training.data import IGNORED, Held, open_prepared, read_files
from pellucid.training.entities import are_entities, f1, spans
from pellucid.training.evaluate import better, evaluate
from pellucid.training.formats import Faults
from pellucid.training.run import train
from tests.training.runs import ENCODER, run_of, stories, tagging_run, translation_run

# --- entities ---


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ("O B-PER I-PER O B-LOC", {("PER", 1, 2), ("LOC", 4, 4)}),
        ("B-PER B-PER", {("PER", 0, 0), ("PER", 1, 1)}),
        ("S-PER B-LOC I-LOC E-LOC", {("PER", 0, 0), ("LOC", 1, 3)}),
        ("I-PER I-PER O", {("PER", 0, 1)}),
        ("B-PER I-LOC I-LOC", {("PER", 0, 0), ("LOC", 1, 2)}),
        ("E-PER I-PER", {("PER", 0, 0), ("PER", 1, 1)}),
        ("O O", set()),
        ("", set()),
    ],
)
def test_entities_begin_and_end_as_seqeval_has_them(labels: str, found: set[tuple[str, int, int]]) -> None:
    assert spans(labels.split()) == found


def test_only_labels_of_entities_are_taken_for_such() -> None:
    assert are_entities(["O", "B-PER", "I-PER"])
    assert not are_entities(["NOUN", "B-PER"])
    assert not are_entities(["O"])
    assert not are_entities(["B-"])


def test_f1_of_counts() -> None:
    assert f1(3, 4, 6) == pytest.approx(2 * (3 / 4) * (3 / 6) / (3 / 4 + 3 / 6))
    assert f1(0, 0, 0) == 0


def names(folder: Path) -> Path:
    """Two words that begin with a capital are a person, one alone is a place."""
    sentences = ["Ann|B-PER Lee|I-PER sees|O Rome|B-LOC", "in|O Rome|B-LOC sits|O Bob|B-PER Lee|I-PER", "he|O sees|O"]
    rows = [[word.split("|") for word in sentence.split()] for sentence in sentences * 12]
    file = folder / "names.conll"
    file.write_text("\n\n".join("\n".join(f"{word}\t{label}" for word, label in row) for row in rows) + "\n")
    return file


def entity_run(folder: Path, **changes: Any) -> c.RunConfig:
    own = {"task": {"kind": "tagging"}, "model": ENCODER, "data": {"format": {"kind": "conll"}, "holdout_by": "end"}}
    pieces = {"tokenizer": {"kind": "bpe", "vocab": 80, "words": True}, "optimizer": {"rate": 1e-2}}
    return run_of(folder, names(folder), **own | pieces | changes)


def test_a_tagger_of_entities_is_scored_and_chosen_by_their_f1(tmp_path: Path) -> None:
    done = train(entity_run(tmp_path, schedule={"steps": 60, "warmup": 4}, evaluation={"every": 10, "best": True}))
    log = [json.loads(line) for line in (tmp_path / "out/log.jsonl").read_text().splitlines()]
    assert done.metrics["entity_f1"] == max(entry.get("valid_entity_f1", 0) for entry in log) > 0.9
    run = c.RunConfig(**json.loads((done.model / "training.json").read_text()))
    found = evaluate(pellucid.load(done.model), run, [tmp_path / "names.conll"], held_out=True)
    assert found["entity_f1"] == done.metrics["entity_f1"]


def test_the_f1_of_a_model_is_that_of_its_labels(tmp_path: Path) -> None:
    done = train(entity_run(tmp_path, schedule={"steps": 12, "warmup": 2}))
    model, prepared = pellucid.load(done.model), open_prepared(tmp_path / "out/data")
    counts = [0, 0, 0]
    for document in range(len(prepared.valid.lengths["ids"])):
        ids, labels, starts = (prepared.valid.document(name, document) for name in ("ids", "labels", "starts"))
        guesses = model.logits(torch.as_tensor(ids.astype("int64"))[None])[0].argmax(-1)
        words = [place for place, start in enumerate(starts) if start]
        true = spans([prepared.labels[labels[place]] for place in words])
        found = spans([prepared.labels[guesses[place]] for place in words])
        counts = [a + b for a, b in zip(counts, (len(true & found), len(found), len(true)), strict=True)]
    assert done.metrics["entity_f1"] == f1(*counts)


def test_labels_that_are_no_entities_have_an_accuracy_alone(tmp_path: Path) -> None:
    done = train(tagging_run(tmp_path, schedule={"steps": 2, "warmup": 0}))
    assert "accuracy" in done.metrics
    assert "entity_f1" not in done.metrics


# --- hidden tokens ---


@pytest.mark.parametrize("chunk", [0, 3])
def test_the_accuracy_of_a_masked_language_model_is_the_share_of_hidden_tokens_found(
    tmp_path: Path, chunk: int
) -> None:
    own = {"model": ENCODER, "task": {"kind": "masked_language_model"}, "compute": {"device": "cpu", "chunk": chunk}}
    run = run_of(tmp_path, stories(tmp_path), optimizer={"rate": 1e-2}, **own)
    done = train(run)
    model, prepared = pellucid.load(done.model), open_prepared(tmp_path / "out/data")
    source = Source(prepared.valid, run, prepared.words, training=False)
    right = asked = 0
    for unit in range(len(source.sizes)):
        batch = source.collate([(unit,)], 0)
        hidden = batch.answers != IGNORED
        right += int((model.logits(batch.ids).argmax(-1) == batch.answers)[hidden].sum())
        asked += int(hidden.sum())
    assert done.metrics["accuracy"] == right / asked
    assert 0 < right < asked


# --- translations ---


def test_a_run_scores_translations_of_held_out_sentences(tmp_path: Path) -> None:
    run = translation_run(tmp_path, evaluation={"every": 0, "translate": 8, "beams": 3, "length_penalty": -2.0})
    done = train(run)
    model, rows = pellucid.load(done.model), list(read_files(run, [tmp_path / "pairs.tsv"], Faults()))
    rows = list(Held(run.data, len(rows)).valid(rows))[:8]
    most = 2 * max(len(model.encode(row.text)) for row in rows) + 10
    short, usual = (
        [pellucid.generate(model, row.text, beams=Beams(3, penalty), max_tokens=most)[0].text for row in rows]
        for penalty in (-2.0, 1.0)
    )
    assert short != usual
    wanted = [[row.target for row in rows]]
    assert done.metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(short, wanted).score)
    assert done.metrics["chrf"] == pytest.approx(sacrebleu.corpus_chrf(short, wanted).score)
    assert done.notes[-1].startswith("sacreBLEU nrefs:1|")
    assert train(run).metrics == done.metrics


def test_learned_positions_bound_the_length_of_translations(tmp_path: Path) -> None:
    model = {"width": 16, "heads": 2, "encoder_blocks": 1, "decoder_blocks": 1, "context": 9}
    model |= {"position": {"kind": "learned"}, "feed_forward": {"kind": "plain", "hidden": 32}}
    own = {"batch": {"tokens": 64, "context": 9}, "schedule": {"steps": 2, "warmup": 0}}
    done = train(translation_run(tmp_path, model=model, evaluation={"every": 0, "translate": 4}, **own))
    assert done.metrics["bleu"] >= 0


def test_a_run_that_could_not_score_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"set data\.valid or data\.holdout"):
        train(translation_run(tmp_path, data={"format": {"kind": "tsv"}, "holdout": 0}, evaluation={"translate": 4}))
    with pytest.raises(ConfigError, match="for the task translation, not tagging"):
        tagging_run(tmp_path, evaluation={"translate": 4})
    monkeypatch.setattr(translating, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'pellucid\[train\]'"):
        train(translation_run(tmp_path, evaluation={"translate": 4}))
    assert not (tmp_path / "out").exists()


# --- the best ---


@pytest.mark.parametrize(
    ("task", "found", "best", "is_better"),
    [
        (c.Tagging(), {"loss": 2.0, "accuracy": 0.9}, {"loss": 1.0, "accuracy": 0.8}, True),
        (c.Tagging(), {"loss": 1.0, "accuracy": 0.9}, {"loss": 2.0, "accuracy": 0.9}, True),
        (
            c.Tagging(),
            {"loss": 1.0, "accuracy": 0.9, "entity_f1": 0.1},
            {"loss": 1.0, "accuracy": 0.8, "entity_f1": 0.2},
            False,
        ),
        (c.Classification(), {"loss": 2.0, "accuracy": 0.9}, {"loss": 1.0, "accuracy": 0.8}, True),
        (c.MaskedLanguageModel(), {"loss": 2.0, "accuracy": 0.9}, {"loss": 1.0, "accuracy": 0.8}, False),
        (c.LanguageModel(), {"loss": 1.0}, {"loss": 1.1}, True),
        (c.LanguageModel(), {"loss": 1.0}, {}, True),
    ],
)
def test_the_best_is_chosen_by_the_metric_of_the_task(
    task: c.Task, found: dict[str, float], best: dict[str, float], is_better: bool
) -> None:
    assert better(found, best, task) is is_better
