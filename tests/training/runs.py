"""Tiny runs over made-up data: seconds on one core."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pellucid.training.config import RunConfig

SENTENCES = [
    "the cat sat on the mat .",
    "a dog ran to the park .",
    "the sun is warm today !",
    "she sang a song to me .",
    "we eat red apples , too .",
]
MODEL = {"width": 16, "heads": 2, "feed_forward": {"kind": "plain", "hidden": 32, "activation": "gelu"}}
DECODER = {**MODEL, "decoder_blocks": 2, "position": {"kind": "rotary"}}
ENCODER = {**MODEL, "encoder_blocks": 2}
BOTH = {**MODEL, "encoder_blocks": 1, "decoder_blocks": 1, "placement": "post", "scale_embedding": True}


def stories(folder: Path, count: int = 60, seed: int = 0) -> Path:
    """Documents of one to four sentences."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(SENTENCES, k=draw.randint(1, 4))) for _ in range(count)]
    file = folder / "stories.txt"
    file.write_text("\n<|end of story|>\n".join(texts) + "\n")
    return file


def pairs(folder: Path, count: int = 200, seed: int = 0) -> Path:
    """A toy language: the words of the source, each spelt backwards, the last word first."""
    draw = random.Random(seed)
    letters = "abc"
    lines = []
    for _ in range(count):
        words = ["".join(draw.choices(letters, k=2)) for _ in range(draw.randint(1, 2))]
        lines.append(f"{' '.join(words)}\t{' '.join(word[::-1] for word in reversed(words))}\tsomeone")
    file = folder / "pairs.tsv"
    file.write_text("\n".join(lines) + "\n")
    return file


def tagged(folder: Path, count: int = 80, seed: int = 0) -> Path:
    """CoNLL-U in which a word's label depends on the word and on the one before it."""
    draw = random.Random(seed)
    words = {"dog": "NOUN", "cat": "NOUN", "runs": "VERB", "sees": "VERB", "the": "DET"}
    sentences = []
    for _ in range(count):
        chosen = draw.choices(list(words), k=draw.randint(2, 6))
        lines = []
        for place, word in enumerate(chosen, 1):
            label = "PROPN" if place > 1 and chosen[place - 2] == "the" and word == "dog" else words[word]
            lines.append(f"{place}\t{word}\t{word}\t{label}\t_\t_\t0\tdep\t_\t_")
        sentences.append("\n".join([f"# text = {' '.join(chosen)}", *lines]))
    file = folder / "tagged.conllu"
    file.write_text("\n\n".join(sentences) + "\n\n")
    return file


def run_of(folder: Path, file: Path, **changes: Any) -> RunConfig:
    """A run over `file` into `folder`/out; `changes` are merged into its tables."""
    parts: dict[str, Any] = {
        "model": DECODER,
        "task": {"kind": "language_model"},
        "data": {
            "train": [file.name],
            "root": str(file.parent),
            "holdout": 0.1,
            "format": {"kind": "text", "separator": "<|end of story|>"},
        },
        "tokenizer": {"kind": "characters"},
        "batch": {"tokens": 256, "context": 64},
        "optimizer": {"rate": 3e-3},
        "schedule": {"steps": 20, "warmup": 4},
        "evaluation": {"every": 0},
        "output": {"folder": str(folder / "out"), "checkpoint": 5, "log": 1},
        "compute": {"device": "cpu"},
    }
    for key, value in changes.items():
        merged = isinstance(value, dict) and key in parts and key not in ("model", "task", "tokenizer")
        parts[key] = {**parts[key], **value} if merged else value
    return RunConfig(**parts)


def translation_run(folder: Path, **changes: Any) -> RunConfig:
    own = {"model": BOTH, "task": {"kind": "translation"}, "data": {"format": {"kind": "tsv"}}}
    return run_of(folder, pairs(folder), **own | changes)


def tagging_run(folder: Path, **changes: Any) -> RunConfig:
    own = {"model": ENCODER, "task": {"kind": "tagging"}, "data": {"format": {"kind": "conllu"}}}
    return run_of(folder, tagged(folder), **own | changes)
