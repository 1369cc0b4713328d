"""The three layouts of tokenizer files give the ids that transformers gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer

from pellucid.errors import CheckpointError, InputError
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.tokenizer import Tokenizer, find_tokenizer, text_of_bytes

TEXTS = [
    "",
    " ",
    "The cat sat on the mat.",
    "THE Cat, the CAT!",
    "Café naïve, Ångström and crème brûlée",
    "中文字 mixed with words",
    "an emoji 🙂 and 👩‍👩‍👧 a family",
    "two\nlines\n\nand\ttabs",
    "  spaces   within  ",
    "untokenizable xyzzy 12345",
    "a control\x00 and \x85 next line, \u2028 separators",
    "ﬁ ligature, ½, ①",
    "a [MASK] in the middle",
]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "mat", "cafe", "Café", "The"]
PIECES += [
    "naive",
    "中",
    "文",
    "🙂",
    "a",
    "and",
    "an",
    "two",
    "lines",
    ".",
    ",",
    "!",
    "un",
    "##token",
    "##ize",
    "##able",
]
PIECES += ["\u2028", "fi", "1", "##2", "##3", "in", "middle", "creme", "brulee", "angstrom"]


def word_pieces(folder: Path, **settings: Any) -> Path:
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def byte_pairs(folder: Path, special: list[str]) -> Path:
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator([*TEXTS, "the cat sat on the mat " * 9], vocab_size=320, special_tokens=special)
    trainer.save_model(str(folder))
    return folder


def opened(folder: Path, config: dict[str, Any] | None = None) -> Tokenizer:
    tokenizer = find_tokenizer(folder, config or {})
    assert tokenizer is not None
    return tokenizer


def wanted(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_vocab_txt_gives_the_ids_of_bert(tmp_path: Path, settings: dict[str, Any]) -> None:
    from transformers import BertTokenizer

    ours = opened(word_pieces(tmp_path, **settings))
    theirs = BertTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == wanted(theirs, text), text
    assert ours.size == len(PIECES)


def test_special_tokens_may_be_written_with_their_properties(tmp_path: Path) -> None:
    plain = opened(word_pieces(tmp_path))
    written = {"content": "[CLS]", "lstrip": False, "normalized": False, "special": True}
    verbose = opened(word_pieces(tmp_path, cls_token=written, added_tokens_decoder={"2": written}))
    assert verbose.encode(TEXTS[2]) == plain.encode(TEXTS[2])


def test_added_tokens_keep_their_ids(tmp_path: Path) -> None:
    word_pieces(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": len(PIECES), "<newer>": len(PIECES) + 1}))
    assert opened(tmp_path).encode("the <newer> cat") == [2, 5, len(PIECES) + 1, 6, 3]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": 7000}))
    with pytest.raises(CheckpointError, match="should have id 7000"):
        find_tokenizer(tmp_path, {})


def test_tokenizer_json_gives_the_ids_of_bert_unpadded_and_whole(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    source = tmp_path / "vocab"
    source.mkdir()
    theirs = BertTokenizer.from_pretrained(word_pieces(source))
    theirs.backend_tokenizer.enable_padding(length=128)
    theirs.backend_tokenizer.enable_truncation(4)
    theirs.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours, plain = opened(tmp_path), BertTokenizer.from_pretrained(source)
    for text in TEXTS:
        assert ours.encode(text) == wanted(plain, text), text


def test_vocab_json_and_merges_give_the_ids_of_gpt2(tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    ours = opened(byte_pairs(tmp_path, ["<|endoftext|>"]), {"model_type": "gpt2"})
    theirs = GPT2Tokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "one<|endoftext|>two"]:
        assert ours.encode(text) == wanted(theirs, text), text


def test_vocab_json_and_merges_give_the_ids_of_roberta(tmp_path: Path) -> None:
    from transformers import RobertaTokenizer

    folder = byte_pairs(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    ours = opened(folder, {"model_type": "roberta"})
    theirs = RobertaTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text) == wanted(theirs, text), text
    assert ours.encode("") == [0, 2]


def test_a_mask_takes_the_space_before_it(tmp_path: Path) -> None:
    """As the released tokenizers do; those that transformers 5 builds from these files do not."""
    ours = opened(byte_pairs(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]), {"model_type": "roberta"})
    assert ours.encode("the <mask>") == [*ours.encode("the")[:-1], 4, 2]


@pytest.mark.parametrize("layout", ["words", "bytes"])
def test_decode_gives_the_text_back(tmp_path: Path, layout: str) -> None:
    if layout == "words":
        tokenizer = opened(word_pieces(tmp_path))
        assert tokenizer.decode(tokenizer.encode("The cats sat on the mat.")) == "the cats sat on the mat."
        return
    tokenizer = opened(byte_pairs(tmp_path, ["<|endoftext|>"]))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokens_of_bytes_are_shown_as_text() -> None:
    assert text_of_bytes("Ġupon") == " upon"
    assert text_of_bytes("Ċ") == "\n"
    assert text_of_bytes("æĪĳ") == "我"
    assert text_of_bytes("æĪ") == "\\xe6\\x88"  # two of its three bytes
    assert text_of_bytes("<begin of text>") == "<begin of text>"  # added as it is: a space is no sign of a byte


def test_a_byte_level_vocabulary_gives_the_text_token_by_token(tmp_path: Path) -> None:
    tokenizer = opened(byte_pairs(tmp_path, ["<|endoftext|>"]))
    text = "the cat's mat\n  and 12 dogs"
    assert "".join(tokenizer.token(token) for token in tokenizer.encode(text)) == text


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="id 9999 is not in the vocabulary"):
        opened(word_pieces(tmp_path)).token(9999)


def cut_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"version": "1.0", "model":')


def no_special_pieces(folder: Path) -> None:
    (folder / "vocab.txt").write_text("the\ncat\n")


def not_text(folder: Path) -> None:
    (folder / "vocab.txt").write_bytes(b"\xff\xfe\x00[CLS]\n")


def bad_merges(folder: Path) -> None:
    (folder / "vocab.json").write_text('{"a": 0}')
    (folder / "merges.txt").write_text("a b c d\n")


def bad_settings(folder: Path) -> None:
    word_pieces(folder)
    (folder / "tokenizer_config.json").write_text("[1, 2")


@pytest.mark.parametrize("damage", [cut_json, no_special_pieces, not_text, bad_merges, bad_settings])
def test_damaged_files_are_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    damage(tmp_path)
    with pytest.raises(CheckpointError):
        find_tokenizer(tmp_path, {})


def test_no_files_are_no_tokenizer_and_encode_asks_for_ids(tmp_path: Path) -> None:
    assert find_tokenizer(tmp_path, {}) is None
    config = preset("tiny-bert")
    with pytest.raises(InputError, match="give ids instead of text"):
        Model(config, Transformer(config)).encode("a text")
