"""A model in one variable: ids and texts in, scores, vectors and labels out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import TypeCheckError
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import pellucid
from pellucid.errors import InputError
from pellucid.model.config import Classify, Head, ModelConfig, Pool, Tag, Unembed
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import export, save
from pellucid.pretrained.tokenizer import FastTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "on", "mat"]


def tokenizer() -> FastTokenizer:
    pipeline = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    pipeline.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return FastTokenizer(pipeline)


def built(head: Head, labels: tuple[str, ...] = (), **changes: Any) -> Model:
    config = preset("tiny-bert").model_copy(update={"head": head, **changes})
    return Model(config, Transformer(config, seed=0).eval(), tokenizer(), labels)


POOL = Pool(pooling="mean", normalize=True)
VERBS = {"embed": POOL, "tag": Tag(labels=3), "classify": Classify(labels=3)}


# --- ids ---


def test_lists_and_tensors_give_the_same_logits() -> None:
    model = built(Unembed())
    ids = [[2, 4, 5, 3], [2, 6, 7, 3]]
    from_lists = model.logits(ids)
    assert from_lists.shape == (2, 4, 96)
    assert torch.equal(from_lists, model.logits(torch.tensor(ids)))
    assert torch.equal(from_lists, model.logits(torch.tensor(ids, dtype=torch.int32)))
    assert not from_lists.requires_grad


def test_padding_may_be_a_list_or_a_tensor_and_changes_nothing_at_real_tokens() -> None:
    model = built(Unembed())
    real = [[True] * 4, [True, True, False, False]]
    ids = [[2, 4, 5, 3], [2, 3, 0, 0]]
    padded = model.logits(ids, padding=real)
    assert torch.equal(padded, model.logits(ids, padding=torch.tensor(real)))
    assert torch.allclose(padded[1, :2], model.logits([[2, 3]])[0], atol=1e-6)


def test_ragged_lists_are_refused_with_their_lengths() -> None:
    with pytest.raises(InputError, match=r"different lengths \[3, 1, 2\].*pad them"):
        built(Unembed()).logits([[2, 4, 3], [2], [2, 3]])


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([[2, 96]], r"must lie in 0\.\.95"),
        ([[2, -1]], r"must lie in 0\.\.95"),
        ([[]], "are empty"),
        ([], "are empty"),
    ],
    ids=str,
)
def test_ids_that_cannot_be_right_are_refused(ids: list[list[int]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        built(Unembed()).logits(ids)


@pytest.mark.parametrize("ids", [[2, 4, 3], torch.tensor([2, 4, 3])], ids=str)
def test_one_text_is_a_batch_of_one(ids: Any) -> None:
    model = built(Unembed())
    assert torch.equal(model.logits(ids), model.logits([[2, 4, 3]]))


def test_padding_may_come_second_where_there_is_one_text() -> None:
    model = built(Unembed())
    ids, real = [[2, 4, 3], [5, 6, 0]], [[1, 1, 1], [1, 1, 0]]
    found = model.logits(ids, real)
    assert torch.equal(found, model.logits(torch.tensor(ids), padding=torch.tensor(real)))
    assert torch.allclose(found[1, :2], model.logits([5, 6])[0], atol=1e-6)


@pytest.mark.parametrize("ids", [[[2], 4], torch.ones(1, 3)], ids=str)
def test_ids_of_another_kind_are_refused(ids: Any) -> None:
    with pytest.raises((InputError, TypeCheckError)):
        built(Unembed()).logits(ids)


def test_an_encoder_decoder_takes_both_texts() -> None:
    config = preset("tiny-original")
    model = Model(config, Transformer(config, seed=0).eval())
    assert model.logits([[1, 2, 3]], [[4, 5]]).shape == (1, 2, 96)
    with pytest.raises(InputError, match="source_ids, target_ids"):
        model.logits([[1, 2, 3]])


# --- texts ---


def test_encode_and_decode_go_through_the_tokenizer() -> None:
    model = built(Unembed())
    assert model.encode("the cat") == [2, 4, 5, 3]
    assert model.decode([4, 5]) == model.decode(torch.tensor([4, 5])) == "the cat"


def test_embed_gives_a_unit_vector_per_text_whatever_its_neighbours() -> None:
    model = built(POOL)
    together = model.embed(["the cat sat on the mat", "the cat", ""])
    assert together.shape == (3, 32)
    assert torch.allclose(together.norm(dim=-1), torch.ones(3))
    assert torch.allclose(together[1:2], model.embed("the cat"), atol=1e-6)


def test_embed_needs_texts() -> None:
    with pytest.raises(InputError, match="the list of texts is empty"):
        built(POOL).embed([])


def test_tag_gives_each_token_its_likeliest_label() -> None:
    model = built(VERBS["tag"], ("O", "B-CAT", "I-CAT"))
    tagged = model.tag("the cat")
    assert [token for token, _ in tagged] == ["[CLS]", "the", "cat", "[SEP]"]
    best = model.logits([model.encode("the cat")])[0].argmax(-1).tolist()
    assert [label for _, label in tagged] == [model.labels[index] for index in best]


def test_classify_gives_every_label_its_share_the_likeliest_first() -> None:
    model = built(VERBS["classify"], ("bad", "fair", "good"))
    shares = model.classify("the cat sat")
    assert set(shares) == {"bad", "fair", "good"}
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    wanted = model.logits([model.encode("the cat sat")])[0].double().softmax(-1)
    assert [shares[name] for name in model.labels] == pytest.approx(wanted.tolist())


def test_labels_without_names_are_numbered() -> None:
    assert set(built(VERBS["classify"]).classify("cat")) == {"LABEL_0", "LABEL_1", "LABEL_2"}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("other", [*VERBS, "logits"])
def test_a_verb_that_does_not_fit_the_head_names_the_one_that_does(verb: str, other: str) -> None:
    if verb == other:
        return
    model = built(VERBS.get(other, Unembed()))
    with pytest.raises(InputError, match=f"cannot {verb}: use {other}"):
        getattr(model, verb)("the cat")


# --- labels and folders ---


@pytest.mark.parametrize("write", [export, save], ids=["theirs", "ours"])
def test_labels_come_from_id2label_in_the_order_of_their_numbers(tmp_path: Path, write: Any) -> None:
    names = tuple(f"name {index}" for index in range(12))
    model = built(Classify(labels=12), names)
    write(model, tmp_path / "out")
    again = pellucid.load(tmp_path / "out")
    assert again.labels == names
    assert again.tokenizer is None
    assert torch.equal(again.logits([[2, 4, 3]]), model.logits([[2, 4, 3]]))


def test_the_device_and_dtype_are_those_of_the_weights() -> None:
    model = built(Unembed())
    model.network.double()
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float64)
    assert isinstance(model.config, ModelConfig)
