"""What cannot be generated is refused before anything runs, with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pellucid.errors import CacheError, InputError
from pellucid.generation import runner
from pellucid.generation.decode import generate, stream
from pellucid.generation.memory import check_room, first_capacity, free_bytes
from pellucid.generation.request import Beams, Run, Stop
from pellucid.model import config as c
from pellucid.model.cache import cache_bytes, source_bytes
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model

from .models import ALL, MECHANISMS, PROMPTS, model, network, writer

ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"max_tokens": 0}, "max_tokens is 0: give 1 or more"),
    "fewer than none": ({"max_tokens": -3}, "max_tokens is -3"),
    "cold": ({"temperature": -0.1}, r"temperature is -0.1: give 0 \(the likeliest token\) or more"),
    "no number": ({"temperature": float("nan")}, "temperature is nan"),
    "no samples": ({"samples": 0}, "0 samples were asked for"),
    "equal samples": ({"samples": 2}, "2 samples at temperature 0 would be equal"),
    "drawn beams": ({"beams": 2, "temperature": 1.0}, "beams look for the likeliest text and draw nothing"),
    "too many of the beams": ({"beams": 2, "samples": 3}, "3 texts were asked for of 2 beams"),
    "unknown id": ({"stop": Stop(tokens=(96,))}, r"stop token 96 is not in the vocabulary: give an id in 0..95"),
    "unknown word": ({"stop": Stop(tokens=("x",))}, "stop token 'x': this model came without a tokenizer"),
    "stop text": ({"stop": Stop(texts=("x",))}, "stop texts need a tokenizer"),
    "seeds": ({"seed": [1, 2]}, "2 seeds came for 1 prompts: give one for all, or one each"),
    "compiled without a cache": ({"run": Run(compile=True), "cache": False}, "compile is for steps with a cache"),
}


@pytest.mark.parametrize(("asked", "message"), ASKED.values(), ids=ASKED)
def test_options_that_cannot_be_are_refused(asked: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        generate(model("tiny-gpt2"), PROMPTS[0], **asked)


PROMPTED: dict[str, tuple[Any, str]] = {
    "nothing": ([], "there are no prompts: give at least one"),
    "an empty prompt": ([[5], []], "prompt 1 is empty: give at least one token to start from"),
    "a wrong id": ([[5, 96]], r"prompt 0 holds 96, but ids are whole numbers in 0..95"),
    "no id": ([[5, 1.5]], "prompt 0 holds 1.5"),
    "a text": ("hello", "this model came without a tokenizer"),
}


@pytest.mark.parametrize(("prompts", "message"), PROMPTED.values(), ids=PROMPTED)
def test_prompts_that_cannot_be_are_refused(prompts: Any, message: str):
    with pytest.raises(InputError, match=message):
        generate(model("tiny-gpt2"), prompts)


def test_an_empty_text_is_refused():
    with pytest.raises(InputError, match="prompt 0 is empty"):
        generate(writer(), "")


def test_a_word_that_is_no_token_is_refused_and_one_that_is_is_taken():
    with pytest.raises(InputError, match="stop token 'nope' is not in the vocabulary: give an id, or a stop text"):
        generate(writer(), "ab", stop=Stop(tokens=("nope",)))
    assert generate(writer(), "ab", max_tokens=2, stop=Stop(tokens=("<end>",)))[0].text is not None


def test_beams_and_stops_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="0 beams were asked for"):
        Beams(0)
    with pytest.raises(InputError, match="length_penalty is nan: give a number"):
        Beams(2, float("nan"))
    with pytest.raises(InputError, match="a stop text is empty"):
        Stop(texts=("",))
    with pytest.raises(InputError, match="beams end at tokens, not at stop texts"):
        generate(writer(), "ab", beams=2, stop=Stop(texts=("x",)))


def test_learned_positions_end_at_the_context_and_the_message_says_what_fits():
    with pytest.raises(InputError, match=r"prompt of 60 tokens and 6 more do not fit in the model's 64 .* 5 or fewer"):
        generate(model("tiny-gpt2"), [5] * 60, max_tokens=6)
    assert len(generate(model("tiny-gpt2"), [5] * 60, max_tokens=5)[0].ids) == 65
    with pytest.raises(InputError, match="a prompt has 65 tokens, but the model has 64 positions"):
        generate(model("tiny-gpt2"), [5] * 65, max_tokens=1)


def test_other_positions_go_on_past_the_context():
    assert len(generate(model("tiny-llama"), [5] * 60, max_tokens=10, stop=Stop(model_end=False))[0].ids) == 70


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (c.Tag(labels=3), r"head 'tag' and writes no text: use model.tag\(text\)"),
        (c.Classify(labels=3), r"head 'classify' and writes no text: use model.classify\(text\)"),
        (c.Pool(), r"head 'pool' and writes no text: use model.embed\(texts\)"),
        (c.Unembed(), r"an encoder \(a masked language model\): it fills in tokens, and writes no text"),
    ],
)
def test_encoders_answer_with_their_own_verbs(head: c.Head, message: str):
    config = preset("tiny-bert").model_copy(update={"head": head})
    with pytest.raises(InputError, match=message):
        generate(Model(config, Transformer(config)), [[5, 6]])


def test_a_model_that_is_not_causal_writes_without_a_cache_only():
    config = preset("tiny-gpt2").model_copy(update={"causal": False})
    opened = Model(config, network(config))
    with pytest.raises(InputError, match=r"is not causal: .* Use cache=False \(--no-cache\)"):
        generate(opened, [[5, 6]])
    assert len(generate(opened, [[5, 6]], cache=False, max_tokens=3)[0].ids) == 5


def test_an_encoder_decoder_without_a_start_token_is_refused():
    config = preset("tiny-t5")
    with pytest.raises(InputError, match="no decoder_start_token_id"):
        generate(Model(config, network(config)), [[5, 6]])


@pytest.mark.parametrize("how", [{}, {"cache": False}, {"beams": 2}, {"temperature": 1.0}])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_no_numbers_are_refused_not_sampled(how: dict[str, Any], value: float):
    opened = model("tiny-gpt2")
    with torch.no_grad():
        opened.network.final.normalize.weight[0] = value
    with pytest.raises(InputError, match=r"scores are not numbers \(NaN or infinite\)"):
        generate(opened, PROMPTS, max_tokens=3, **how)


def test_a_stream_checks_before_its_first_token_is_asked_for():
    with pytest.raises(InputError, match="max_tokens is 0"):
        stream(model("tiny-gpt2"), PROMPTS[0], max_tokens=0)


# --- memory ---


@pytest.mark.parametrize("name", ALL)
def test_the_formula_is_what_a_cache_takes(name: str):
    opened = model(name)
    cache = opened.network.new_cache(3, 20)
    taken = sum(tensor.nbytes for tensor in cache.own_tensors())
    assert cache_bytes(opened.config, 3, 20, torch.float64) == taken


def test_the_formula_is_twice_blocks_heads_width_bytes():
    config = preset("llama-3.2-1b")
    assert cache_bytes(config, 1, 1, torch.bfloat16) == 2 * 16 * 8 * 64 * 2


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers():
    config = preset("llama-3-8b")
    with pytest.raises(CacheError, match=r"8 texts of 131072 tokens takes 128 GB \(128 KB per token\), but 100 GB are"):
        check_room(config, 8, 131_072, torch.bfloat16, 100 * 2**30)
    with pytest.raises(CacheError, match=r"2 copies for a moment"):
        check_room(config, 8, 131_072, torch.bfloat16, 200 * 2**30, copies=2)
    check_room(config, 8, 131_072, torch.bfloat16, None)


def test_free_memory_is_known_here():
    assert (free_bytes(torch.device("cpu")) or 0) > 2**20
    assert free_bytes(torch.device("meta")) is None


def test_room_is_a_power_of_two_for_the_prompt_and_the_first_tokens():
    assert first_capacity(5, 3) == 8
    assert first_capacity(100, 10_000) == 512


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-original", "both linear", "both relu"])
def test_the_formula_is_what_a_source_takes(name: str):
    opened = model(name)
    cache, source = opened.network.new_cache(2, 4), torch.full((2, 10), 5)
    opened.network.decode(torch.zeros(2, 1, dtype=torch.long), opened.network.encode(source), cache=cache)
    taken = sum(tensor.nbytes for tensor in cache.tensors()) - sum(tensor.nbytes for tensor in cache.own_tensors())
    assert source_bytes(opened.config, 2, 10, torch.float64) == taken
    assert source_bytes(MECHANISMS["window"], 2, 10, torch.float32) == 0


@pytest.mark.parametrize("how", [{}, {"beams": 3}])
def test_the_source_counts_when_room_is_looked_for(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    opened = model("tiny-t5")
    own = cache_bytes(opened.config, 2 * how.get("beams", 1), 8, torch.float64)
    sources = source_bytes(opened.config, 2, 7, torch.float64)
    monkeypatch.setattr(runner, "free_bytes", lambda device: own + sources)
    generate(opened, [[5] * 7, [6] * 3], max_tokens=5, **how)
    monkeypatch.setattr(runner, "free_bytes", lambda device: own + sources - 1)
    with pytest.raises(CacheError, match=r"per token, 14 KB for the sources\), but"):
        generate(opened, [[5] * 7, [6] * 3], max_tokens=5, **how)
