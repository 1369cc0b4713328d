"""Two models on one text: their distances against plain NumPy, and which pairs have none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pellucid.lens.side_by_side import Ids, SideBySide, same_vocabulary, say, side_by_side, why_apart
from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from tests.web.serving import config, tuned, with_words

IDS: Ids = ((1, 2, 3, 4, 5, 6),)


def model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Model:
    own = config(**changes)
    return Model(own, Transformer(own, seed=seed).to(dtype).eval())


def encoder(seed: int = 0, **changes: Any) -> Model:
    return model(seed, encoder_blocks=2, decoder_blocks=0, position=c.Sinusoidal(), **changes)


def compare(first: Model, second: Model, ids: Ids = IDS) -> SideBySide:
    return side_by_side(say(first, ids), say(second, ids))


def shares(one: Model, ids: Ids = IDS) -> np.ndarray:
    scores = one.logits(*([list(text)] for text in ids))[0].double().numpy()
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_distances_are_those_of_the_definitions() -> None:
    first, second = model(0), model(1)
    found, p, q = compare(first, second), shares(first), shares(second)
    # Sums of 24 shares in float64: each of a few roundings of 2^-53.
    np.testing.assert_allclose([one.variation for one in found.places], abs(p - q).sum(-1) / 2, atol=1e-14)
    np.testing.assert_allclose([one.divergence for one in found.places], (p * np.log(p / q)).sum(-1), atol=1e-14)
    assert [one.changed for one in found.places] == list(p.argmax(-1) != q.argmax(-1))
    own = list(IDS[0][1:])
    losses = [-np.log(each[range(5), own]).mean() for each in (p, q)]
    assert found.losses == pytest.approx(losses, abs=1e-13)
    assert list(found.farthest) == sorted(range(6), key=lambda place: -found.places[place].variation)


def test_the_likeliest_of_either_stand_with_both_shares() -> None:
    first, second = model(0), model(1)
    p, q = shares(first)[2], shares(second)[2]
    entries = compare(first, second).places[2].entries
    names = {int(name) for name, _, _ in entries}
    assert names == set(np.argsort(-p)[:5]) | set(np.argsort(-q)[:5])
    assert [share for _, share, _ in entries] == sorted((share for _, share, _ in entries), reverse=True)
    assert all(share == pytest.approx(q[int(name)], abs=1e-15) for name, _, share in entries)


def test_the_same_model_twice_differs_by_nothing() -> None:
    found = compare(model(0, torch.float32), model(0, torch.float32))
    assert found.identical
    assert {(one.variation, one.divergence, one.changed) for one in found.places} == {(0.0, 0.0, False)}
    assert found.losses is not None
    assert found.losses[0] == found.losses[1]


def test_long_texts_are_taken_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compare(model(0), model(1))
    monkeypatch.setattr("pellucid.lens.side_by_side._BAND", 24 * 4)
    assert compare(model(0), model(1)) == whole


def test_a_pair_of_texts_is_compared_at_its_target() -> None:
    first, second = (model(seed, encoder_blocks=1, decoder_blocks=1, position=c.Sinusoidal()) for seed in (0, 1))
    found = compare(first, second, (*IDS, (7, 8)))
    assert (found.kind, len(found.places)) == ("next", 2)
    p, q = (shares(one, (*IDS, (7, 8))) for one in (first, second))
    assert found.places[1].variation == pytest.approx(abs(p - q)[1].sum() / 2, abs=1e-14)


@pytest.mark.parametrize(
    ("head", "kind", "places"),
    [(c.Tag(labels=3), "token", 6), (c.Classify(labels=3), "text", 1), (c.Pool(), "vector", 0)],
)
def test_other_heads(head: Any, kind: str, places: int) -> None:
    first, second = encoder(0, head=head), encoder(1, head=head)
    found = compare(first, second)
    assert (found.kind, len(found.places), found.losses) == (kind, places, None)
    if kind == "vector":
        old, new = (one.logits([list(IDS[0])]).double() for one in (first, second))
        assert found.distance == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-14)
    else:
        assert found.places[0].entries[0][0].startswith("LABEL_")


def test_what_one_model_says_alone() -> None:
    said = say(model(), IDS)
    best = said.likeliest(3, top=2)
    assert [int(word) for word, _ in best] == list(np.argsort(-shares(model())[3])[:2])
    assert say(encoder(head=c.Pool()), IDS).likeliest(0) == ()


def test_why_two_models_have_nothing_to_compare() -> None:
    plain = model()
    pair = model(encoder_blocks=1, decoder_blocks=1, position=c.Sinusoidal())

    def why(first: Model, second: Model, ids: Ids = IDS, other: Ids = IDS) -> str | None:
        return why_apart(say(first, ids), say(second, other))

    assert why(plain, model(1)) is None
    assert why(plain, encoder()) == "kind"
    assert why(plain, pair, other=(*IDS, (1,))) == "texts"
    assert why(plain, model(vocab=30)) == "vocabulary"
    assert why(plain, with_words(model())) == "vocabulary"
    assert why(plain, plain, other=((1, 2),)) == "tokens"
    tagger = encoder(head=c.Tag(labels=3))
    assert why(encoder(head=c.Tag(labels=24)), encoder()) == "kind"
    assert why(tagger, encoder(head=c.Tag(labels=4))) == "labels"
    assert why(replace(tagger, labels=("a", "b", "c")), tagger) == "labels"
    assert why(encoder(head=c.Classify(labels=2)), encoder(head=c.Classify(labels=2), vocab=30)) is None
    assert why(encoder(head=c.Pool()), encoder(head=c.Pool(), width=16)) == "kind"


def test_scores_beyond_the_vocabulary_are_called_by_number() -> None:
    padded = with_words(model(vocab=100))
    assert same_vocabulary(padded, with_words(model(1, vocab=100)))
    names = {name for place in compare(padded, with_words(model(1, vocab=100))).places for name, _, _ in place.entries}
    assert any(name.isdigit() and int(name) >= 24 for name in names)


def test_words_are_the_same_where_every_id_is() -> None:
    one, other = with_words(model()), with_words(model(1))
    assert same_vocabulary(one, other)
    assert same_vocabulary(one, tuned())
    assert same_vocabulary(model(), model(1))
    other.tokenizer.pipeline.add_tokens(["new"])  # type: ignore[union-attr]
    assert not same_vocabulary(one, other)
