"""A trace for each token that a model writes."""

from __future__ import annotations

import pytest
import torch

from pellucid.errors import InputError
from pellucid.lens.generation import trace_generation
from pellucid.model import config as c
from tests.lens.models import build, check, ids, with_words


def test_each_trace_reads_the_text_so_far_and_chooses_its_next_token() -> None:
    model = build(position=c.ALiBi())
    prompt = ids(model, 1, 3)[0]
    traces = trace_generation(model, prompt, 4)
    text = prompt
    for found in traces:
        check(found, torch.float64)
        assert found.tokens == tuple(str(token) for token in text[0].tolist())
        assert found["decoder.0.attention.weights"].value.shape[2:] == (text.shape[1], text.shape[1])
        assert torch.equal(found["logits"].value, model.network.with_kernel("reference")(text))
        following = model.logits(text)[:, -1:].argmax(-1)
        assert found.prediction[0][0] == str(int(following))
        text = torch.cat((text, following), 1)
    assert len(traces) == 4


def test_only_the_chosen_sites_are_kept() -> None:
    model = with_words(build())
    traces = trace_generation(model, "a b", 2, sites=("*.weights",), blocks=[1], heads=[2])
    assert [[step.site for step in found.steps] for found in traces] == [["decoder.1.attention.weights"]] * 2
    assert [tuple(found.steps[0].value.shape) for found in traces] == [(1, 1, 2, 2), (1, 1, 3, 3)]
    assert traces[0].tokens == ("a", "b")


def test_an_encoder_decoder_goes_on_from_its_start_token() -> None:
    model = build("both")
    source = ids(model, 1, 4)[0]
    first, second = trace_generation(model, source, 2, [[0]], sites=("*.cross.weights", "logits"))
    assert first["decoder.0.cross.weights"].value.shape == (1, 4, 1, 6)
    assert second["decoder.0.cross.weights"].value.shape == (1, 4, 2, 6)
    assert second.tokens == ("0", str(int(first["logits"].value[0, -1].argmax())))


def test_what_cannot_be_generated_is_refused() -> None:
    model, encoder = build(), build("encoder")
    with pytest.raises(InputError, match="does not write text"):
        trace_generation(encoder, [[1]], 2)
    with pytest.raises(InputError, match="give 1 or more"):
        trace_generation(model, [[1]], 0)
    with pytest.raises(InputError, match="one at a time"):
        trace_generation(model, [[1], [2]], 1)
    with pytest.raises(InputError, match="needs 13 positions"):
        trace_generation(build(position=c.Learned()), ids(model, 1, 11)[0], 3)
