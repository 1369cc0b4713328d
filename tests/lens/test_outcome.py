"""What a change does, said for every kind of head."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pellucid.lens import outcome as subject
from pellucid.lens.edit import Edited
from pellucid.lens.outcome import outcome
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from tests.lens.models import build, with_words

P = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0], [0.1, 0.7, 0.2]], dtype=torch.float64)
Q = torch.tensor([[0.5, 0.3, 0.2], [0.3, 0.7, 0.0], [0.1, 0.6, 0.3]], dtype=torch.float64)


def edited(before: Tensor, after: Tensor) -> Edited:
    return Edited({}, before[None], after[None], (), 0.0)


def with_head(head: c.Head, stacks: str = "encoder") -> Model:
    return build(stacks, head=head)


def test_a_decoder_says_the_next_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_BAND", 3)  # a token at a time
    found = outcome(with_words(build("decoder")), edited(P, Q))
    assert (found.kind, found.place, found.changed, found.places) == ("next", 2, 1, 3)
    assert found.entries == (("b", 0.7, 0.6), ("c", 0.2, 0.3), ("a", 0.1, 0.1))
    assert found.variation == pytest.approx(0.1, abs=1e-15)
    assert found.divergence == pytest.approx(0.7 * math.log(7 / 6) + 0.2 * math.log(2 / 3), abs=1e-15)
    json.dumps(found.to_json(), allow_nan=False)


def test_an_encoder_says_the_token_that_changed_most() -> None:
    found = outcome(build("encoder"), edited(P, Q))
    assert (found.kind, found.place, found.variation) == ("token", 1, pytest.approx(0.3, abs=1e-15))


def test_a_tagger_names_labels() -> None:
    model = replace(with_head(c.Tag(labels=3)), labels=("O", "B"))
    found = outcome(model, edited(P, Q))
    assert [name for name, _, _ in found.entries] == ["O", "B", "LABEL_2"]
    assert found.kind == "token"


def test_a_classifier_says_the_text() -> None:
    found = outcome(with_head(c.Classify(labels=3)), edited(P[1], Q[1]))
    assert (found.kind, found.place, found.places) == ("text", None, 0)
    assert found.variation == pytest.approx(0.3, abs=1e-15)


def test_a_pooled_vector_moves() -> None:
    found = outcome(with_head(c.Pool()), edited(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])))
    assert (found.kind, found.vector, found.entries) == ("vector", pytest.approx(0.2), ())


def test_a_share_that_vanished_leaves_a_finite_divergence() -> None:
    found = outcome(with_head(c.Classify(labels=2)), edited(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])))
    assert math.isfinite(found.divergence)
    assert found.divergence > 100
