"""Tokenizers of a run: characters, bytes or byte pairs trained on its data, or one that is given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pellucid.errors import InputError
from pellucid.pretrained.tokenizer import FastTokenizer, find_tokenizer
from pellucid.training import config as c

UNKNOWN, START, END, MASK = "<unk>", "<|start|>", "<|end|>", "<|mask|>"
FILE = "tokenizer.json"


@dataclass(frozen=True)
class Words:
    """A tokenizer, and the ids of the marks that a task puts around its texts."""

    pipeline: tokenizers.Tokenizer
    start: int | None
    end: int | None
    mask: int | None

    @property
    def size(self) -> int:
        return int(self.pipeline.get_vocab_size())

    def encode(self, texts: list[str], *, marked: bool = False) -> list[tokenizers.Encoding]:
        """Without marks, where the task adds its own; or with those that the finished model sees around a text."""
        return list(self.pipeline.encode_batch(texts, add_special_tokens=marked))

    def save(self, file: Path) -> None:
        file.write_text(self.pipeline.to_str(pretty=True), encoding="utf-8")


def build(part: c.TokenizerPart, task: c.Task, texts: Iterable[str], root: Path) -> Words:
    """Train or open the tokenizer, with the marks that the task needs. Texts are read only for training."""
    if isinstance(part, c.Given):
        return given(_opened(part, root), part, task)
    marks = _marks(task)
    pipeline = _trained(part, marks, texts)
    pipeline.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    _put_marks(pipeline, task)
    return Words(pipeline, *(pipeline.token_to_id(mark) for mark in (START, END, MASK)))


def given(pipeline: tokenizers.Tokenizer, part: c.Given, task: c.Task) -> Words:
    """A tokenizer as it is: its marks are those that the run names, or ours where it has them."""
    pipeline.no_padding()
    pipeline.no_truncation()
    named = {"start": (part.start, START), "end": (part.end, END), "mask": (part.mask, MASK)}
    ids: dict[str, int | None] = {}
    for name, (asked, ours) in named.items():
        ids[name] = pipeline.token_to_id(asked or ours)
        if asked is not None and ids[name] is None:
            raise InputError(f"tokenizer.{name} is {asked!r}, but the tokenizer has no such token")
    needed = {c.Translation: ("start", "end"), c.MaskedLanguageModel: ("mask",)}.get(type(task), ())
    for name in needed:
        if ids[name] is None:
            raise InputError(f"{task.kind} needs a token for the {name}: name one of the tokenizer's, tokenizer.{name}")
    return Words(pipeline, ids["start"], ids["end"], ids["mask"])


def _marks(task: c.Task) -> list[str]:
    """A stream of one text has neither beginning nor end; documents have both."""
    match task:
        case c.LanguageModel(packing="stream"):
            return [END]
        case c.LanguageModel() | c.Translation():
            return [START, END]
        case c.MaskedLanguageModel():
            return [START, END, MASK]
        case c.Classification():
            return [START]
        case c.Tagging():
            return []


def _put_marks(pipeline: tokenizers.Tokenizer, task: c.Task) -> None:
    """What `encode` of the finished model adds: what it saw around its texts in training."""
    before, after = marks_around(task)
    marks = [*before, *after]
    if marks:
        pipeline.post_processor = processors.TemplateProcessing(
            single=" ".join([*before, "$A", *after]),
            special_tokens=[(mark, pipeline.token_to_id(mark)) for mark in dict.fromkeys(marks)],
        )


def marks_around(task: c.Task) -> tuple[list[str], list[str]]:
    """Before and after what the model reads: of a translation, the source."""
    match task:
        case c.LanguageModel(packing="stream") | c.Tagging():
            return [], []
        case c.LanguageModel() | c.Classification():
            return [START], []
        case c.Translation():
            return [], [END]
        case c.MaskedLanguageModel():
            return [START], [END]


def _trained(part: c.TokenizerPart, marks: list[str], texts: Iterable[str]) -> tokenizers.Tokenizer:
    match part:
        case c.Characters():
            return _characters(texts, marks)
        case c.Bytes():
            return _bytes()
        case c.BytePairs(words=True):
            return _word_pieces(part, texts, marks)
        case _:
            assert isinstance(part, c.BytePairs)
            return _byte_pairs(part, texts, marks)


def _characters(texts: Iterable[str], marks: list[str]) -> tokenizers.Tokenizer:
    letters: set[str] = set()
    for text in texts:
        letters.update(text)
    known = [UNKNOWN, *marks, *sorted(letters)]
    pipeline = tokenizers.Tokenizer(models.WordLevel({word: place for place, word in enumerate(known)}, UNKNOWN))
    pipeline.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    pipeline.decoder = decoders.Fuse()
    return pipeline


def _bytes() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pipeline = tokenizers.Tokenizer(models.BPE({letter: place for place, letter in enumerate(alphabet)}, []))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def _byte_pairs(part: c.BytePairs, texts: Iterable[str], marks: list[str]) -> tokenizers.Tokenizer:
    pipeline = tokenizers.Tokenizer(models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if part.vocab < len(alphabet) + len(marks):
        raise InputError(f"a BPE of {part.vocab} tokens has no room for the {len(alphabet)} bytes: give 300 or more")
    trainer = trainers.BpeTrainer(
        vocab_size=part.vocab, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
    )
    pipeline.train_from_iterator(texts, trainer)
    return pipeline


def _word_pieces(part: c.BytePairs, texts: Iterable[str], marks: list[str]) -> tokenizers.Tokenizer:
    """A sign before the pieces inside a word tells them from its beginning; spaces are no part of any piece."""
    pipeline = tokenizers.Tokenizer(models.BPE(unk_token=UNKNOWN, continuing_subword_prefix="##"))
    pipeline.normalizer = normalizers.NFC()
    pipeline.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    pipeline.decoder = decoders.WordPiece(prefix="##")
    trainer = trainers.BpeTrainer(
        vocab_size=part.vocab,
        special_tokens=[UNKNOWN, *marks],
        continuing_subword_prefix="##",
        min_frequency=2,
        show_progress=False,
    )
    pipeline.train_from_iterator(texts, trainer)
    return pipeline


def _opened(part: c.Given, root: Path) -> tokenizers.Tokenizer:
    if part.path is None:
        raise InputError("tokenizer.path is not set: give a folder or a tokenizer.json, or fine-tune a model")
    path = root / part.path
    if path.is_file():
        return tokenizers.Tokenizer.from_file(str(path))
    found = find_tokenizer(path, {}) if path.is_dir() else None
    if not isinstance(found, FastTokenizer):
        raise InputError(f"tokenizer.path {path} is no {FILE}, nor a folder that holds one")
    return found.pipeline
