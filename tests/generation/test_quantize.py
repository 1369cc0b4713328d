"""8 bits change scores a little, and the loss is measured; figures of a run add up."""

from __future__ import annotations

import pytest
import torch

from pellucid.errors import InputError
from pellucid.generation.decode import finished, generate, search
from pellucid.generation.quantize import Int8Linear, quantized
from pellucid.generation.request import Beams, Run, Stop, request
from pellucid.generation.sampling import Filters
from pellucid.generation.stats import Stats, Watch, copy_bandwidth, quality_loss, stats_of
from pellucid.model.cache import cache_bytes

from .models import ALL, PROMPTS, ids, model

INT8 = Run(quantize="int8")


def single(name: str):
    opened = model(name)
    opened.network.float()
    return opened


@pytest.mark.parametrize("name", ALL)
def test_scores_change_a_little_and_cached_equals_uncached(name: str):
    opened = single(name)
    twin = quantized(opened.network)
    texts = [torch.tensor([[5, 6, 7, 8]])] * (2 if opened.config.is_encoder_decoder else 1)
    with torch.no_grad():
        exact, rounded = opened.network(*texts), twin(*texts)
    # One or two per cent per product, through up to four blocks of weights far larger than trained ones.
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.3
    written = generate(opened, PROMPTS[0], max_tokens=6, run=INT8)
    assert len(written[0].logprobs) >= 1
    assert not any(isinstance(module, Int8Linear) for module in opened.network.modules())


def test_the_rounding_of_a_row_is_at_most_half_a_step():
    weight = torch.randn(7, 12, generator=torch.Generator().manual_seed(0))
    found = Int8Linear(weight, None)(torch.eye(12) * 127).T / 127
    step = weight.abs().amax(1, keepdim=True) / 127
    # The input is rounded too: to 127 steps of its own range.
    assert bool(((found - weight).abs() <= step * 0.5 + weight.abs() * 0.01 + 1e-6).all())


def test_a_twin_is_made_once_and_anew_when_the_weights_change():
    opened = single("tiny-gpt2")
    first = quantized(opened.network)
    assert quantized(opened.network) is first
    with torch.no_grad():
        opened.network.decoder.blocks[0].feed_forward.up.weight.mul_(2)
    assert quantized(opened.network) is not first


def test_other_dtypes_are_refused():
    with pytest.raises(InputError, match=r"made from float32, and the model is in torch.float64: load it with"):
        generate(model("tiny-gpt2"), PROMPTS[0], run=INT8)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-t5"])
def test_the_loss_is_the_change_of_the_mean_log_probability(name: str):
    opened = single(name)
    (result,) = generate(opened, PROMPTS[0], max_tokens=8, run=INT8)
    loss = quality_loss(opened, result)
    assert loss.tokens == len(result.ids) - 1
    assert abs(loss.int8 - loss.float32) < 0.2
    assert loss.to_json()["change"] == loss.int8 - loss.float32


def asked(name: str, **changes: object):
    options = {"max_tokens": 6, "temperature": 0.0, "beams": 1, "samples": 1, "cache": True, "seed": 0}
    rest = {"filters": Filters(), "stop": Stop(model_end=False), "run": Run()}
    return request(model(name), PROMPTS, **options | rest | changes)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-t5", "linear elu"])
def test_figures_add_up(name: str):
    watch, question = Watch(), asked(name)
    from pellucid.generation.decode import events, results_of, writings_of

    writings = writings_of(question)
    list(events(question, writings, 1, watch))
    stats = stats_of(question, watch, results_of(question, writings))
    assert stats.prefill_tokens == sum(map(len, PROMPTS))
    assert (stats.decode_tokens, stats.steps) == (15, 5)
    assert stats.prefill_rate > 0
    assert (stats.decode_rate or 0) > 0
    assert (stats.share_of_bandwidth or 0) > 0
    if name == "linear elu":
        assert stats.cache_bytes_per_token is None
    else:
        assert stats.cache_bytes_per_token == stats.formula_bytes_per_token
        assert stats.formula_bytes_per_token == cache_bytes(question.model.config, 1, 1, torch.float64)
    assert set(stats.to_json()) >= {"decode_rate", "share_of_bandwidth", "bandwidth"}


def test_figures_of_beams_and_of_a_single_token():
    watch, question = Watch(), asked("tiny-gpt2", beams=Beams(2))
    stats = stats_of(question, watch, search(question, watch))
    assert stats.steps == 5
    (one,) = {asked("tiny-gpt2", max_tokens=1).max_tokens}
    assert one == 1
    still = Stats(4, 0.1, 0, 0.0, None, None, 10, 1e9, 0)
    assert (still.decode_rate, still.share_of_bandwidth) == (None, None)
    assert ids(finished(asked("tiny-gpt2"))) == ids(
        generate(model("tiny-gpt2"), PROMPTS, max_tokens=6, stop=Stop(model_end=False))
    )


def test_a_copy_has_a_bandwidth():
    assert copy_bandwidth(torch.device("cpu"), repeats=1) > 1e8
