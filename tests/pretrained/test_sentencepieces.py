"""T5's, Llama's and Marian's tokenizers against those of transformers, on models trained here."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from pellucid.errors import CheckpointError, InputError
from pellucid.pretrained.sentencepieces import TranslationTokenizer, joined_pieces
from pellucid.pretrained.tokenizer import Tokenizer, find_tokenizer

SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "A translator reads the source and writes the target.",
    "Hello world, this is a small test of pieces.",
    "Ein kleiner Test der Stücke, und noch ein Satz.",
    "Numbers like 12 and 345 appear too.",
] * 20

TEXTS = [
    "The dog reads.",
    "The quick translator jumps over 3451 pieces!",
    "two  spaces and a trailing one ",
    "unseen: 中文 é ß",
    "ligature ﬁ, circled ①",
    "Hello\nworld\ttab",
    "x",
    "",
]


def train(prefix: Path, **options: Any) -> Path:
    SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(prefix),
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return prefix.with_suffix(".model")


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("t5")
    train(folder / "spiece", vocab_size=120, model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    train(
        folder / "tokenizer",
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    return folder


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vocabularies that are not in the order of the sentencepiece models, as Marian's are not."""
    folder = tmp_path_factory.mktemp("marian")
    pieces: list[str] = []
    for side, size in (("source", 90), ("target", 110)):
        model = train(folder / side, vocab_size=size, model_type="unigram").rename(folder / f"{side}.spm")
        processor = SentencePieceProcessor(model_file=str(model))
        pieces += [processor.id_to_piece(i) for i in reversed(range(3, processor.get_piece_size()))]
    words = ["</s>", "<unk>", *dict.fromkeys(pieces), ">>fra<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    return folder


def open_both(folder: Path, kind: str, settings: dict[str, Any] | None = None) -> tuple[Tokenizer, Any]:
    """Ours and theirs, of the same folder."""
    import transformers

    path = folder / "tokenizer_config.json"
    path.unlink(missing_ok=True)
    if settings is not None:
        path.write_text(json.dumps(settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marian recommends a package that it does not use to encode
        theirs = getattr(transformers, kind).from_pretrained(folder)
    ours = find_tokenizer(folder, {})
    assert ours is not None
    return ours, theirs


def check_equal(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        wanted = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == wanted, text
        assert [ours.token(token) for token in ids] == theirs.convert_ids_to_tokens(ids), text


END = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": False, "normalized": True}


@pytest.mark.parametrize("settings", [None, {"extra_ids": 5}, {"extra_ids": 0}, {"eos_token": END}])
def test_t5_gives_the_ids_of_transformers(t5: Path, settings: dict[str, Any] | None) -> None:
    ours, theirs = open_both(t5, "T5Tokenizer", settings)
    special = ["the <unk> dog", "x </s> y", "<pad>the", "  leading"]
    sentinels = ["a<extra_id_0>b <extra_id_4> c", "<extra_id_1>"] if settings != {"extra_ids": 0} else []
    check_equal(ours, theirs, TEXTS + special + sentinels)
    assert ours.size == len(theirs)


def test_t5_counts_its_sentinels_down_to_the_last_id(t5: Path) -> None:
    ours, _ = open_both(t5, "T5Tokenizer")
    pieces = SentencePieceProcessor(model_file=str(t5 / "spiece.model")).get_piece_size()
    assert ours.size == pieces + 100
    assert ours.encode("<extra_id_0>") == [ours.size - 1, 1]
    assert ours.token(pieces) == "<extra_id_99>"
    with pytest.raises(InputError, match=f"id {ours.size} is not in the vocabulary"):
        ours.token(ours.size)


WORDS_IN_TEXT = ["a<s>b </s> c", "<s>The dog", "x<unk>y", "  leading"]


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("ends", [(True, False), (False, True), (True, True), (False, False)])
def test_llama_gives_the_ids_of_transformers(llama: Path, legacy: bool, ends: tuple[bool, bool]) -> None:
    settings = {"legacy": legacy, "add_bos_token": ends[0], "add_eos_token": ends[1]}
    check_equal(*open_both(llama, "LlamaTokenizer", settings), TEXTS + WORDS_IN_TEXT)


def test_llama_without_a_prefix(llama: Path) -> None:
    settings = {"add_bos_token": True, "add_prefix_space": False}
    check_equal(*open_both(llama, "LlamaTokenizer", settings), TEXTS + WORDS_IN_TEXT)


def test_llama_starts_a_text_where_no_file_says_so(llama: Path) -> None:
    """transformers 5 adds <s> only if tokenizer_config.json says so; its own documentation and version 4 always do."""
    ours, _ = open_both(llama, "LlamaTokenizer")
    model = SentencePieceProcessor(model_file=str(llama / "tokenizer.model"))
    assert ours.encode("The dog") == [1, *model.encode("The dog")]


def test_llama_knows_words_that_were_added(llama: Path) -> None:
    added = {
        "400": {"content": "<pad>", "special": True},
        "401": {"content": "[user]", "special": False, "normalized": False, "rstrip": True},
    }
    ours, theirs = open_both(llama, "LlamaTokenizer", {"add_bos_token": True, "added_tokens_decoder": added})
    size = SentencePieceProcessor(model_file=str(llama / "tokenizer.model")).get_piece_size()
    assert size == 400
    check_equal(ours, theirs, ["the<pad> dog", "[user] the dog", "a [user]  b"])
    assert ours.size == 402


def test_marian_gives_the_ids_of_transformers(marian: Path) -> None:
    ours, theirs = open_both(marian, "MarianTokenizer", {"source_lang": "en", "target_lang": "de"})
    special = [">>fra<< The dog", ">>xxx<<The dog", "a >>fra<< b", "the </s> dog", "  leading", ">> alone"]
    check_equal(ours, theirs, TEXTS + special)
    assert isinstance(ours, TranslationTokenizer)
    for text in TEXTS:
        assert ours.encode_target(text) == theirs(text_target=text)["input_ids"]
    assert ours.encode("The dog")[-1] == 0
    assert ours.size == len(json.loads((marian / "vocab.json").read_text()))


def test_marian_with_a_vocabulary_for_each_text(marian: Path, tmp_path: Path) -> None:
    for name in ("source.spm", "target.spm", "vocab.json"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())
    words = list(json.loads((marian / "vocab.json").read_text()))
    target = ["</s>", "<unk>", *reversed(words[2:-1]), "<pad>"]
    (tmp_path / "target_vocab.json").write_text(json.dumps({word: index for index, word in enumerate(target)}))
    ours, theirs = open_both(tmp_path, "MarianTokenizer", {"separate_vocabs": True})
    assert isinstance(ours, TranslationTokenizer)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        wanted = theirs(text_target=text)["input_ids"]
        assert ours.encode_target(text) == wanted
        assert ours.decode(wanted) == theirs.decode(wanted, skip_special_tokens=True)
    assert [file.name for file in ours.files] == ["source.spm", "target.spm", "vocab.json", "target_vocab.json"]


def test_broken_files_are_named(t5: Path, marian: Path, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match=r"spiece\.model cannot be read"):
        find_tokenizer(tmp_path, {})
    (tmp_path / "spiece.model").write_bytes((t5 / "spiece.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    with pytest.raises(CheckpointError, match="eos_token = '<end>'"):
        find_tokenizer(tmp_path, {})
    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes((marian / name).read_bytes())
    (tmp_path / "vocab.json").write_text(json.dumps({"the": 0}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="lacks <unk>, </s>"):
        find_tokenizer(tmp_path, {})


def test_bytes_become_text() -> None:
    assert joined_pieces(["▁a", "<0xE4>", "<0xB8>", "<0xAD>", "▁<0x41>"]) == " a中 <0x41>"
    assert joined_pieces(["<0xE4>"]) == "�"
