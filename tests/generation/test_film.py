"""A text written step by step: the tokens of `generate`, bytes as they are, and both ways of computing agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.generation.film import film, room_for, why_no_cache
from pellucid.model import config as c
from pellucid.model.cache import cache_bytes, source_bytes
from pellucid.pretrained.facade import Origin
from tests.web.serving import random_model

CASES: dict[str, dict[str, Any]] = {
    "rotary": {},
    "grouped": {"key_value_heads": 2, "head_width": 6, "value_width": 4},
    "windows": {"window": (3, None, 5)},
    "t5": {"position": c.T5Buckets()},
    "linear": {"attention": c.Linear()},
    "pair": {"encoder_blocks": 2, "position": c.Sinusoidal()},
    "linear pair": {"encoder_blocks": 2, "position": c.Sinusoidal(), "attention": c.Linear()},
}
PROMPT = [3, 1, 4, 1, 5]
SOURCE = [9, 2, 6, 5, 3, 5, 8]


@pytest.mark.parametrize("name", CASES)
def test_it_writes_what_generate_writes_with_the_bytes_of_its_cache(name: str) -> None:
    model = random_model(**CASES[name])
    config, both = model.config, model.config.is_encoder_decoder
    seen = film(model, [SOURCE, [0]] if both else [PROMPT], 8)
    prompt = SOURCE if both else PROMPT
    if not both:
        assert seen.ids == pellucid.generate(model, [prompt], max_tokens=8)[0].ids
    first = 1 if both else len(PROMPT)
    for place, frame in enumerate(seen.frames):
        length = first + place
        assert (frame.past, frame.read) == ((0, first) if place == 0 else (length - 1, 1))
        assert frame.change <= seen.allowed * frame.largest
        assert frame.candidates[0][0] == frame.token
        assert sum(frame.held) == cache_bytes(config, 1, length, model.dtype)
        assert frame.of_source == source_bytes(config, 1, len(SOURCE), model.dtype) * both
        assert (frame.queries, frame.queries_without) == (frame.read, length)
        assert frame.flops <= frame.flops_without
    assert seen.frames[0].flops == seen.frames[0].flops_without


def test_kept_rows_are_those_that_would_be_computed_again() -> None:
    seen = film(random_model(**CASES["windows"]), [PROMPT], 8)
    assert seen.keys is not None
    assert seen.keys.shape == (3, 4, 12, 8)
    assert seen.queries.shape == (3, 4, 12, 8)
    assert all(frame.row_change is not None and frame.row_change < 1e-5 for frame in seen.frames)
    assert film(random_model(**CASES["linear"]), [PROMPT], 2).frames[1].row_change is None


def test_a_wrong_row_in_the_cache_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.model.cache import KeysAndValues

    write = KeysAndValues.write

    def wrong(self: KeysAndValues, key: Any, value: Any, slot: Any) -> Any:
        self.value[:, :, 0] += 1
        return write(self, key, value, slot)

    monkeypatch.setattr(KeysAndValues, "write", wrong)
    seen = film(random_model(), [PROMPT], 3)
    assert seen.frames[0].change <= seen.allowed * seen.frames[0].largest
    assert seen.frames[1].change > 100 * seen.allowed * seen.frames[1].largest
    assert seen.frames[2].row_change == pytest.approx(2, abs=1e-5)


def test_keys_of_the_source_are_kept_once() -> None:
    model = random_model(**CASES["pair"])
    seen = film(model, [SOURCE, [0]], 4)
    assert seen.source_keys is not None
    assert seen.source_keys.shape == (3, 4, 7, 8)
    memory = model.network.encode(torch.tensor([SOURCE]))
    assert model.network.decoder is not None
    own = model.network.decoder.blocks[1].cross
    assert own is not None
    expected = own.to_value(memory).reshape(7, 4, 8).transpose(0, 1)
    assert seen.source_values is not None
    torch.testing.assert_close(seen.source_values[1], expected)
    steps = seen.frames[1:]
    assert {frame.flops_without - frame.flops > seen.frames[0].flops / 2 for frame in steps} == {True}


def test_the_end_of_a_text_ends_the_film() -> None:
    model = random_model()
    third = film(model, [PROMPT], 4).ids[len(PROMPT) + 2]
    ended = film(replace(model, origin=Origin(config={"eos_token_id": third})), [PROMPT], 9)
    assert ended.end
    assert ended.ids[-1] == third
    assert len(ended.frames) <= 3


def test_who_has_nothing_to_keep() -> None:
    assert why_no_cache(random_model().config) is None
    assert why_no_cache(random_model(encoder_blocks=1, decoder_blocks=0).config) == "encoder"
    assert why_no_cache(random_model(head=c.Tag(labels=3)).config) == "head"
    assert why_no_cache(random_model(causal=False).config) == "not_causal"
    with pytest.raises(InputError, match="keeps nothing"):
        film(random_model(causal=False), [PROMPT], 1)
    assert room_for(random_model(position=c.Learned(), context=8).config, 5, 16) == 4
