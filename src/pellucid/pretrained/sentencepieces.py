"""Tokenizers of sentencepiece models: T5's, Llama's and Marian's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from sentencepiece import SentencePieceProcessor

from pellucid.errors import CheckpointError, InputError
from pellucid.pretrained.weights import read_json

SPACE = "▁"


@dataclass(frozen=True)
class Word:
    """A token that is cut out of a text before the rest is split into pieces; a special one is not written back."""

    id: int
    special: bool = True
    strips_left: bool = False
    strips_right: bool = False


@dataclass(frozen=True)
class PieceTokenizer:
    """A sentencepiece model, the words beside it, and the ids around every text.

    plain: the same model without the space that it puts before a text, for parts of a text that get none; None where
      all parts do.
    prefix: which parts get that space: all, the first one, or none.
    """

    model: SentencePieceProcessor
    words: dict[str, Word]
    files: tuple[Path, ...] = ()
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    plain: SentencePieceProcessor | None = None
    prefix: Literal["always", "first", "never"] = "always"

    def encode(self, text: str) -> list[int]:
        ids = list(self.before)
        for index, part in enumerate(self._cut.split(text)):
            if index % 2:
                ids.append((self.words.get(part) or self.words[part.strip()]).id)
            else:
                ids += self._model_for(part, first=index == 0).encode(part)
        return ids + list(self.after)

    def decode(self, ids: list[int]) -> str:
        skipped = {word.id for word in self.words.values() if word.special}
        text = joined_pieces([self.token(token) for token in ids if token not in skipped])
        return text if self.prefix == "never" else text.removeprefix(" ")

    def token(self, token_id: int) -> str:
        if token_id in self._texts:
            return self._texts[token_id]
        if not 0 <= token_id < self.model.get_piece_size():
            raise InputError(f"id {token_id} is not in the vocabulary of {self.size} tokens")
        return str(self.model.id_to_piece(token_id))

    @property
    def size(self) -> int:
        return max(int(self.model.get_piece_size()), *(word.id + 1 for word in self.words.values()))

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {word.id: text for text, word in self.words.items()}

    @cached_property
    def _cut(self) -> re.Pattern[str]:
        return cutter(self.words)

    def _model_for(self, part: str, *, first: bool) -> SentencePieceProcessor:
        if self.plain is None:
            return self.model
        # As transformers does: a part that starts with a space has its prefix already.
        wants = self.prefix == "always" or (self.prefix == "first" and first)
        return self.model if wants and not part.startswith((" ", SPACE)) else self.plain


@dataclass(frozen=True)
class TranslationTokenizer:
    """Marian's: sentencepiece models that split the source and the target, and vocabularies that number their pieces.

    The ids of the sentencepiece models mean nothing here. `encode` takes a source; decoded are targets.
    """

    source: SentencePieceProcessor
    target: SentencePieceProcessor
    source_ids: dict[str, int]
    target_ids: dict[str, int]
    files: tuple[Path, ...] = ()
    unknown: str = "<unk>"
    end: str = "</s>"
    padding: str = "<pad>"

    def encode(self, text: str) -> list[int]:
        return self._ids(text, self.source, self.source_ids)

    def encode_target(self, text: str) -> list[int]:
        return self._ids(text, self.target, self.target_ids)

    def decode(self, ids: list[int]) -> str:
        pieces = [self.token(token) for token in ids]
        return joined_pieces([piece for piece in pieces if piece not in self._special]).strip()

    def token(self, token_id: int) -> str:
        if token_id not in self._pieces:
            raise InputError(f"id {token_id} is not in the vocabulary of {self.size} tokens")
        return self._pieces[token_id]

    @property
    def size(self) -> int:
        return len(self.target_ids)

    @cached_property
    def _special(self) -> dict[str, Word]:
        words = (self.unknown, self.end, self.padding)
        return {word: Word(self.target_ids[word]) for word in words if word in self.target_ids}

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {number: piece for piece, number in self.target_ids.items()}

    def _ids(self, text: str, model: SentencePieceProcessor, ids: dict[str, int]) -> list[int]:
        pieces: list[str] = []
        for index, part in enumerate(cutter(self._special).split(text)):
            # Before a text, >>fra<< names the language to translate into; it is a token of its own.
            code = re.match(r">>.*?<<", part, re.DOTALL)
            start = 0 if code is None else code.end()
            whole = [part[:start]] if start else []
            pieces += [part] if index % 2 else whole + model.encode(part[start:], out_type=str)
        return [ids.get(piece, ids[self.unknown]) for piece in (*pieces, self.end)]


def cutter(words: dict[str, Word]) -> re.Pattern[str]:
    """Splits a text at its words, the longest first, and keeps them: they stand at the odd places."""
    patterns = []
    for text, word in sorted(words.items(), key=lambda entry: -len(entry[0])):
        left, right = (r"\s*" if strips else "" for strips in (word.strips_left, word.strips_right))
        patterns.append(left + re.escape(text) + right)
    return re.compile(f"({'|'.join(patterns)})")


def joined_pieces(pieces: list[str]) -> str:
    """The text of pieces; <0x41> and the like are bytes of it."""
    text = b""
    for piece in pieces:
        byte = re.fullmatch(r"<0x([0-9A-F]{2})>", piece)
        text += bytes.fromhex(byte[1]) if byte else piece.replace(SPACE, " ").encode()
    return text.decode(errors="replace")


# --- building them from files ---


def from_t5(files: tuple[Path, ...], settings: dict[str, Any], config: dict[str, Any]) -> PieceTokenizer:
    """spiece.model; the sentinels <extra_id_0>, <extra_id_1>, ... come after its pieces, the last of them first."""
    model = SentencePieceProcessor(model_file=str(files[0]))
    sentinels = int(settings.get("extra_ids", 100))
    last = model.get_piece_size() + sentinels - 1
    words = {f"<extra_id_{index}>": Word(last - index) for index in range(sentinels)}
    words |= _control(model) | _added(settings)
    return PieceTokenizer(model, words, files, after=(_id(words, settings, "eos_token", "</s>"),))


def from_llama(files: tuple[Path, ...], settings: dict[str, Any], config: dict[str, Any]) -> PieceTokenizer:
    """tokenizer.model. `legacy` puts a space before every part of a text that special tokens cut in two."""
    model, plain = (SentencePieceProcessor(model_file=str(files[0])) for _ in range(2))
    plain.override_normalizer_spec(add_dummy_prefix=False)
    words = _control(model) | _added(settings)
    before = (_id(words, settings, "bos_token", "<s>"),) if settings.get("add_bos_token", True) else ()
    after = (_id(words, settings, "eos_token", "</s>"),) if settings.get("add_eos_token", False) else ()
    spaced = settings.get("add_prefix_space", True) is not False
    return PieceTokenizer(
        model,
        words,
        files,
        before,
        after,
        plain,
        prefix="never" if not spaced else "always" if settings.get("legacy", False) else "first",
    )


def from_marian(files: tuple[Path, ...], settings: dict[str, Any], config: dict[str, Any]) -> TranslationTokenizer:
    """source.spm, target.spm and vocab.json; target_vocab.json where the texts have vocabularies of their own."""
    source, target = (SentencePieceProcessor(model_file=str(file)) for file in files[:2])
    if settings.get("separate_vocabs", False):
        files = (*files, files[2].with_name("target_vocab.json"))
    source_ids, target_ids = read_json(files[2]), read_json(files[-1])
    unknown, end, padding = (
        _text(settings.get(key), word)
        for key, word in (("unk_token", "<unk>"), ("eos_token", "</s>"), ("pad_token", "<pad>"))
    )
    for vocab in (source_ids, target_ids):
        missing = [word for word in (unknown, end) if word not in vocab]
        if missing:
            raise CheckpointError(f"the vocabulary of the tokenizer lacks {', '.join(missing)}: is the file complete?")
    return TranslationTokenizer(source, target, source_ids, target_ids, files, unknown, end, padding)


def _control(model: SentencePieceProcessor) -> dict[str, Word]:
    """The words that the model itself sets apart: <s>, </s>, <pad>, <unk>."""
    ids = range(model.get_piece_size())
    return {model.id_to_piece(i): Word(i) for i in ids if model.is_control(i) or model.is_unknown(i)}


def _added(settings: dict[str, Any]) -> dict[str, Word]:
    """Words that were added later: each a text, or an object that says how it is cut out."""
    words = {}
    for index, token in settings.get("added_tokens_decoder", {}).items():
        told = token if isinstance(token, dict) else {"content": token}
        strips = bool(told.get("lstrip", False)), bool(told.get("rstrip", False))
        words[str(told["content"])] = Word(int(index), bool(told.get("special", True)), *strips)
    return words


def _id(words: dict[str, Word], settings: dict[str, Any], key: str, default: str) -> int:
    text = _text(settings.get(key), default)
    if text not in words:
        raise CheckpointError(f"tokenizer_config.json says {key} = {text!r}, which is no special token of the model")
    return words[text].id


def _text(token: Any, default: str) -> str:
    """A token is written as a text, or as an object that has it as its content."""
    content = token.get("content") if isinstance(token, dict) else token
    return str(content) if content else default
