"""Texts to ids and back, from the files that a checkpoint brings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from pellucid.errors import CheckpointError, InputError
from pellucid.pretrained.sentencepieces import from_llama, from_marian, from_t5
from pellucid.pretrained.weights import read_json


@runtime_checkable
class Tokenizer(Protocol):
    """What the rest of the library asks of a tokenizer."""

    @property
    def files(self) -> tuple[Path, ...]: ...
    @property
    def size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...
    def token(self, token_id: int) -> str: ...


@dataclass(frozen=True)
class FastTokenizer:
    """A pipeline of the tokenizers library."""

    pipeline: tokenizers.Tokenizer
    files: tuple[Path, ...] = ()

    def encode(self, text: str) -> list[int]:
        try:
            return list(self.pipeline.encode(text).ids)
        except Exception as error:  # the library raises bare exceptions
            raise InputError(f"{text!r} cannot be encoded with the {self.size} tokens of this model: {error}") from None

    def decode(self, ids: list[int]) -> str:
        text: str = self.pipeline.decode(ids)
        return text

    def token(self, token_id: int) -> str:
        """As a text has it, where the vocabulary is one of bytes; as the vocabulary writes it otherwise."""
        token = self.pipeline.id_to_token(token_id)
        if token is None:
            raise InputError(f"id {token_id} is not in the vocabulary of {self.size} tokens")
        return text_of_bytes(token) if isinstance(self.pipeline.decoder, decoders.ByteLevel) else str(token)

    @property
    def size(self) -> int:
        return int(self.pipeline.get_vocab_size())


def text_of_bytes(token: str) -> str:
    """What a token of a byte-level vocabulary stands for; bytes that are no whole letter as Python writes them."""
    try:
        return bytes(_BYTES[sign] for sign in token).decode("utf-8", "backslashreplace")
    except KeyError:  # a token that was added as it is
        return token


def _byte_signs() -> dict[str, int]:
    """Byte-level vocabularies write printable bytes as themselves, and the others as the letters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_signs()


def find_tokenizer(folder: Path, config: dict[str, Any]) -> Tokenizer | None:
    """The tokenizer of a folder: tokenizer.json if it is there, or the older files; None where there are none."""
    for names, build in _LAYOUTS:
        files = tuple(folder / name for name in names)
        if all(file.exists() for file in files):
            try:
                return build(files, _settings(folder), config)
            except CheckpointError:
                raise
            except Exception as error:  # the libraries raise bare exceptions
                raise CheckpointError(f"the tokenizer in {', '.join(names)} cannot be read: {error}") from None
    return None


def _from_json(files: tuple[Path, ...], settings: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    pipeline = tokenizers.Tokenizer.from_file(str(files[0]))
    pipeline.no_padding()
    pipeline.no_truncation()
    return FastTokenizer(pipeline, files)


def _word_pieces(files: tuple[Path, ...], settings: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    """BERT's vocab.txt, a piece per line."""
    vocab = models.WordPiece.read_file(str(files[0]))
    special = [_word(settings.get(key, word)) for key, word in _BERT_WORDS.items()]
    unknown, first, last = special[:3]
    pipeline = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=unknown))
    lower = bool(settings.get("do_lower_case", True))
    pipeline.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"),
        lowercase=lower,
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.post_processor = processors.BertProcessing((last, vocab[last]), (first, vocab[first]))
    pipeline.decoder = decoders.WordPiece()
    pipeline.add_special_tokens([AddedToken(word, special=True) for word in special if word in vocab])
    _add_tokens(pipeline, settings)
    return FastTokenizer(pipeline, files)


def _byte_pairs(files: tuple[Path, ...], settings: dict[str, Any], config: dict[str, Any]) -> Tokenizer:
    """GPT-2's vocab.json and merges.txt, over bytes; RoBERTa's too, with <s> and </s> around the text."""
    pipeline = tokenizers.Tokenizer(models.BPE.from_file(str(files[0]), str(files[1])))
    prefix_space = bool(settings.get("add_prefix_space", False))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.post_processor = processors.ByteLevel(trim_offsets=False)
    vocab = pipeline.get_vocab()
    special = [word for word in ("<|endoftext|>", "<s>", "</s>", "<pad>", "<unk>", "<mask>") if word in vocab]
    pipeline.add_special_tokens([AddedToken(word, special=True, lstrip=word == "<mask>") for word in special])
    _add_tokens(pipeline, settings)
    if config.get("model_type") == "roberta" or str(settings.get("tokenizer_class")).startswith("Roberta"):
        ends = (("</s>", vocab["</s>"]), ("<s>", vocab["<s>"]))
        pipeline.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=prefix_space)
    return FastTokenizer(pipeline, files)


def _add_tokens(pipeline: tokenizers.Tokenizer, settings: dict[str, Any]) -> None:
    """What was added to the vocabulary after its files were written; each must get the id that the model knows."""
    added = {int(place): token for place, token in settings.get("added_tokens_decoder", {}).items()}
    for place, token in sorted(added.items()):
        word, special = _word(token), isinstance(token, dict) and bool(token.get("special"))
        if pipeline.token_to_id(word) is None:
            (pipeline.add_special_tokens if special else pipeline.add_tokens)([AddedToken(word, special=special)])
        if pipeline.token_to_id(word) != place:
            raise CheckpointError(
                f"the added token {word!r} should have id {place}, but it gets {pipeline.token_to_id(word)}: "
                "do the tokenizer's files belong together?"
            )


def _word(token: Any) -> str:
    """A token, which newer files write with its properties."""
    return str(token["content"] if isinstance(token, dict) else token)


_BERT_WORDS = {
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}
_LAYOUTS = (
    (("tokenizer.json",), _from_json),
    (("vocab.txt",), _word_pieces),
    (("vocab.json", "merges.txt"), _byte_pairs),
    (("source.spm", "target.spm", "vocab.json"), from_marian),
    (("spiece.model",), from_t5),
    (("tokenizer.model",), from_llama),
)


def _settings(folder: Path) -> dict[str, Any]:
    path, added = folder / "tokenizer_config.json", folder / "added_tokens.json"
    settings = read_json(path) if path.exists() else {}
    if added.exists():
        ids = {str(place): token for token, place in read_json(added).items()}
        settings["added_tokens_decoder"] = ids | settings.get("added_tokens_decoder", {})
    return settings
