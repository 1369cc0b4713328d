"""What is written does not depend on the cache, on the batch, or on how it is asked for."""

from __future__ import annotations

import gc
from dataclasses import replace
from weakref import ref

import pytest
import torch

import pellucid
from pellucid.generation import memory
from pellucid.generation.decode import generate, stream
from pellucid.generation.request import Beams, Run, Stop
from pellucid.generation.runner import resting
from pellucid.generation.sampling import Filters
from pellucid.model.mechanisms import KernelName

from .models import ALL, END, MECHANISMS, PROMPTS, ids, model, writer

DRAWN = {
    "temperature": 1.3,
    "samples": 2,
    "seed": 5,
    "filters": Filters(top_k=25, top_p=0.95, min_p=0.01, repetition_penalty=1.3),
}
HOW = {"greedy": {}, "drawn": DRAWN, "beams": {"beams": Beams(3, 0.7), "samples": 2}}
every_way = pytest.mark.parametrize("how", HOW.values(), ids=HOW)


@every_way
@pytest.mark.parametrize("name", ALL)
def test_cached_equals_uncached_and_a_batch_equals_its_prompts_alone(name: str, how: dict[str, object]):
    asked = {"max_tokens": 10, **how}
    wanted = generate(model(name), PROMPTS, **asked)
    assert ids(generate(model(name), PROMPTS, cache=False, **asked)) == ids(wanted)
    assert [text for prompt in PROMPTS for text in ids(generate(model(name), prompt, **asked))] == ids(wanted)


@every_way
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-t5", "two windows", "linear elu", "both window"])
def test_a_cache_that_grows_changes_nothing(name: str, how: dict[str, object], monkeypatch: pytest.MonkeyPatch):
    wanted = generate(model(name), PROMPTS, max_tokens=20, **how)
    monkeypatch.setattr(memory, "FIRST_ROOM", 1)
    assert ids(generate(model(name), PROMPTS, max_tokens=20, **how)) == ids(wanted)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-t5"])
def test_greedy_is_the_likeliest_token_of_the_logits(name: str):
    opened = model(name)
    (result,) = generate(opened, PROMPTS[0], max_tokens=6, stop=Stop(model_end=False))
    both = opened.config.is_encoder_decoder
    scores = opened.logits([PROMPTS[0]], [list(result.ids[:-1])]) if both else opened.logits([list(result.ids[:-1])])
    shares = scores[0].log_softmax(-1)[-6:]
    if both:
        scores[..., 0] = -torch.inf  # padding is never written
    assert list(result.ids[-6:]) == scores[0, -6:].argmax(-1).tolist()
    wanted = shares.gather(1, torch.tensor(result.ids[-6:])[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(result.logprobs, dtype=torch.float64), wanted, rtol=1e-6, atol=1e-6)
    assert result.continuations[0].score == pytest.approx(sum(result.logprobs))
    assert result.continuations[0].ended == "length"


def test_the_public_name_is_the_function():
    assert pellucid.generate is generate


def test_one_prompt_several_prompts_and_a_tensor_are_all_taken():
    opened = model("tiny-gpt2")
    (alone,) = generate(opened, [5, 6, 7], max_tokens=4)
    assert alone.prompt_ids == (5, 6, 7)
    assert alone.ids[:3] == (5, 6, 7)
    assert alone.text is None
    assert generate(opened, torch.tensor([[5, 6, 7], [5, 6, 7]]), max_tokens=4) == [alone, alone]


def test_ids_of_an_encoder_decoder_are_those_of_its_own_text():
    (result,) = generate(model("tiny-t5"), [5, 6, 7], max_tokens=4)
    assert result.prompt_ids == (5, 6, 7)
    assert result.ids[0] == 0
    assert len(result.ids) == 5


def test_a_stop_token_ends_a_text_and_is_its_last_id():
    opened = model("tiny-gpt2")
    (whole,) = generate(opened, PROMPTS[0], max_tokens=12)
    token = whole.ids[len(PROMPTS[0]) + 2]
    found = generate(opened, PROMPTS, max_tokens=12, stop=Stop(tokens=(token,)))
    assert found[0].continuations[0].ended == "token"
    assert found[0].ids == whole.ids[: whole.ids.index(token, len(PROMPTS[0])) + 1]
    assert len(found[0].logprobs) == len(found[0].ids) - len(PROMPTS[0])


def test_the_models_own_end_counts_unless_told():
    opened = model("tiny-gpt2")
    token = generate(opened, PROMPTS[0], max_tokens=12)[0].ids[len(PROMPTS[0]) + 1]
    ending = model("tiny-gpt2", eos_token_id=[END, token])
    assert len(generate(ending, PROMPTS[0], max_tokens=12)[0].logprobs) <= 2
    assert len(generate(ending, PROMPTS[0], max_tokens=12, stop=Stop(model_end=False))[0].logprobs) == 12


def test_seeds_are_per_prompt_and_samples_differ():
    opened = model("tiny-gpt2")
    drawn = {"max_tokens": 8, "temperature": 1.5}
    twice = generate(opened, [[5, 6], [5, 6]], seed=[3, 4], **drawn)
    assert twice[0].ids != twice[1].ids
    assert twice[0].ids == generate(opened, [5, 6], seed=3, **drawn)[0].ids
    assert twice[1].ids == generate(opened, [5, 6], seed=4, **drawn)[0].ids
    (three,) = generate(opened, [5, 6], seed=3, samples=3, **drawn)
    assert len(set(ids([three]))) == 3
    assert three.continuations[0].ids == twice[0].ids


def test_banned_tokens_are_never_written():
    opened = model("tiny-gpt2", bad_words_ids=[[token] for token in range(20, 96)] + [[3, 4]])
    (result,) = generate(opened, PROMPTS[0], max_tokens=20, temperature=2.0)
    assert max(result.ids) < 20


def test_a_network_in_training_writes_without_dropout_and_stays_in_training():
    opened = model("tiny-gpt2")
    wanted = generate(opened, PROMPTS, max_tokens=6)
    dropping = opened.config.model_copy(update={"dropout": 0.5})
    for module in opened.network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    opened.network.train()
    assert ids(generate(opened, PROMPTS, max_tokens=6)) == ids(wanted)
    assert opened.network.training
    assert dropping.dropout == 0.5


@pytest.mark.parametrize("kernel", ["fused", "reference", "flex"])
def test_a_network_that_needs_a_twin_gets_one_once(kernel: KernelName):
    opened = model("tiny-gpt2")
    wanted = generate(opened, PROMPTS, max_tokens=4)
    other = replace(opened, network=opened.network.twin(kernel).train(kernel == "fused"))
    assert ids(generate(other, PROMPTS, max_tokens=4)) == ids(wanted)
    twin = resting(other.network)
    assert resting(other.network) is twin
    assert (twin.kernel, twin.training, twin.tokens.weight is other.network.tokens.weight) == ("fused", False, True)
    other.network.tokens.weight = torch.nn.Parameter(other.network.tokens.weight.detach().clone())
    assert resting(other.network) is not twin
    assert resting(opened.network) is opened.network


def test_a_twin_goes_with_its_network():
    network = model("tiny-gpt2").network.train()
    twin = ref(resting(network))
    del network
    gc.collect()
    assert twin() is None


def test_weights_keep_their_values_when_they_are_laid_out_anew():
    opened = model("tiny-gpt2")
    before = {name: tensor.clone() for name, tensor in opened.network.state_dict().items()}
    generate(opened, PROMPTS[0], max_tokens=2)
    assert opened.network.tokens.weight.stride(0) == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in opened.network.state_dict().items())


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-t5"])
def test_a_stream_tells_of_every_token_in_turn(name: str):
    opened = model(name)
    asked = {"max_tokens": 8, "temperature": 1.2, "samples": 2}
    results = generate(opened, PROMPTS, **asked)
    seen: dict[tuple[int, int], list[int]] = {}
    for event in stream(opened, PROMPTS, **asked):
        seen.setdefault((event.prompt, event.sample), []).append(event.id)
    for prompt, result in enumerate(results):
        for sample, each in enumerate(result.continuations):
            assert tuple(seen[prompt, sample]) == each.new_ids


def test_a_stream_leaves_gradients_as_they_are():
    events = stream(model("tiny-gpt2"), PROMPTS[0], max_tokens=5)
    next(events)
    assert torch.is_grad_enabled()


def test_a_stream_can_be_left():
    events = stream(model("tiny-gpt2"), PROMPTS[0], max_tokens=50)
    assert [next(events).id for _ in range(3)] == list(
        generate(model("tiny-gpt2"), PROMPTS[0], max_tokens=3)[0].ids[4:]
    )


def test_streamed_text_is_the_results_text():
    opened = writer()
    asked = {"max_tokens": 30, "temperature": 1.5, "seed": 2}
    (result,) = generate(opened, "añ語", **asked)
    events = list(stream(opened, "añ語", **asked))
    assert "".join(event.text for event in events) == result.text
    assert events[-1].ended == "length"
    assert result.prompt == "añ語"
    assert result.text is not None


def test_a_stop_text_cuts_the_text_and_ends_it():
    opened = writer()
    whole = generate(opened, "ab", max_tokens=30, temperature=1.5)[0].text
    assert whole is not None
    stop = whole[4:6]
    (result,) = generate(opened, "ab", max_tokens=30, temperature=1.5, stop=Stop(texts=(stop, "never there")))
    assert result.text == whole[: whole.index(stop)]
    assert result.continuations[0].ended == "text"
    events = stream(opened, "ab", max_tokens=30, temperature=1.5, stop=Stop(texts=(stop,)))
    assert "".join(event.text for event in events) == result.text


def test_results_as_json_and_in_a_notebook():
    (result,) = generate(writer(), "a<b", max_tokens=3)
    assert result.to_json()["continuations"][0]["ids"] == list(result.ids)
    assert set(result.to_json()) == {"prompt", "prompt_ids", "continuations"}
    assert "a&lt;b" in result._repr_html_()


def test_windows_keep_no_more_than_their_window():
    opened = model("window")
    cache = opened.network.new_cache(1, 50)
    assert [block.own.key.shape[2] for block in cache.blocks] == [3, 3]
    assert MECHANISMS["window"].window == 3


def test_run_options_are_data():
    assert Run() == Run(compile="auto", quantize=None)
