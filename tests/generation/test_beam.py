"""Beam search finds what a search of everything finds, where it has the room to."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from pellucid.generation.decode import generate
from pellucid.generation.request import Beams, Stop
from pellucid.model.config import Gated, ModelConfig, Rotary
from pellucid.pretrained.facade import Model, Origin

from .models import PROMPTS, ids, model, network

VOCAB, STEPS = 4, 3


@pytest.fixture(scope="module", params=["decoder", "both"])
def tiny(request: pytest.FixtureRequest) -> Model:
    stacks = {"decoder_blocks": 1} | ({"encoder_blocks": 1} if request.param == "both" else {})
    config = ModelConfig(vocab=VOCAB, width=8, heads=2, feed_forward=Gated(hidden=12), position=Rotary(), **stacks)
    origin = Origin(config={"decoder_start_token_id": 3, "eos_token_id": 0})
    return Model(config, network(config, request.param), origin=origin)


def every_text(model: Model, prompt: list[int], penalty: float) -> list[tuple[float, tuple[int, ...]]]:
    """All texts of up to STEPS tokens that end, or are that long, with their scores, the best first."""
    texts = []
    for length in range(1, STEPS + 1):
        for text in product(range(VOCAB), repeat=length):
            if 0 in text[:-1] or (length < STEPS and text[-1] != 0):
                continue
            both = model.config.is_encoder_decoder
            start = [3] if both else prompt
            read = torch.tensor([[*start, *text[:-1]]])
            scores = model.logits([prompt], read) if both else model.logits(read)
            shares = scores[0].log_softmax(-1)[-length:]
            total = float(shares[range(length), list(text)].sum())
            texts.append((total / length**penalty, (*start, *text)))
    return sorted(texts, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_text(tiny: Model, penalty: float):
    beams = VOCAB ** (STEPS - 1)
    prompts = [[1, 2], [3], [2, 2, 1]]
    # A prompt is done when nothing that still runs looks better, which a penalty above 1 may make premature.
    found = generate(tiny, prompts, max_tokens=STEPS, beams=Beams(beams, penalty), samples=3)
    for prompt, result in zip(prompts, found, strict=True):
        wanted = every_text(tiny, prompt, penalty)
        best = [(each.score, each.ids) for each in result.continuations]
        for (score, text), (wanted_score, wanted_text) in zip(best, wanted, strict=False):
            assert text == wanted_text
            assert score == pytest.approx(wanted_score, abs=1e-5)


def test_log_probabilities_of_a_beam_are_those_of_its_own_tokens(tiny: Model):
    (result,) = generate(tiny, [1, 2], max_tokens=STEPS, beams=4, samples=3)
    for each in result.continuations:
        assert each.score == pytest.approx(sum(each.logprobs) / len(each.logprobs), abs=1e-5)
        assert each.ended == ("token" if each.ids[-1] == 0 else "length")


def test_one_beam_is_greedy():
    opened = model("tiny-gpt2")
    assert ids(generate(opened, PROMPTS, max_tokens=6, beams=1)) == ids(generate(opened, PROMPTS, max_tokens=6))


def test_more_beams_score_no_less():
    opened, stop = model("tiny-llama"), Stop(model_end=False)
    scores = [
        generate(opened, PROMPTS[0], max_tokens=8, beams=Beams(count, 0.0), stop=stop)[0].continuations[0].score
        for count in (2, 16, 64)
    ]
    greedy = sum(generate(opened, PROMPTS[0], max_tokens=8, stop=stop)[0].logprobs)
    assert greedy <= scores[2] + 1e-5
    assert scores[0] <= scores[2] + 1e-5
