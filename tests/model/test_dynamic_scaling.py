"""Rotary positions whose base grows with the length of the text."""

from __future__ import annotations

import pytest
import torch

from pellucid.errors import ConfigError
from pellucid.model import config as c
from pellucid.model.positions import RotaryPositions, rotary_angles
from pellucid.model.presets import llama
from pellucid.model.transformer import Transformer


def scheme(factor: float, context: int, base: float = 10_000.0, precision: c.Precision = "float64") -> c.Rotary:
    scaling = c.DynamicNtkScaling(factor=factor, original_context=context)
    return c.Rotary(base=base, scaling=scaling, precision=precision)


@pytest.mark.parametrize("length", [1, 7, 8])
def test_within_the_original_context_nothing_is_scaled(length: int) -> None:
    places = torch.arange(length)[None]
    angles, factor = rotary_angles(places, scheme(3.3, 8), 10)
    assert torch.equal(angles, rotary_angles(places, c.Rotary(), 10)[0])
    assert factor == 1.0


@pytest.mark.parametrize("length", [9, 16, 43])
def test_beyond_it_the_base_grows_with_the_length(length: int) -> None:
    factor, context, width = 2.5, 8, 10
    base = 10_000.0 * (factor * (length / context - 1) + 1) ** (width / (width - 2))
    angles, _ = rotary_angles(torch.arange(length)[None], scheme(factor, context), width)
    torch.testing.assert_close(angles[0, 1], base ** -(torch.arange(5, dtype=torch.float64) / 5), rtol=1e-13, atol=0)


def test_the_longest_text_of_a_batch_decides() -> None:
    places = torch.stack((torch.arange(20), torch.arange(20).clamp(max=3)))
    together = rotary_angles(places, scheme(2.0, 8), 10)[0]
    alone = rotary_angles(places[1:], scheme(2.0, 8), 10)[0]
    assert torch.equal(together[0], rotary_angles(places[:1], scheme(2.0, 8), 10)[0][0])
    assert not torch.equal(together[1], alone[0])


@pytest.mark.parametrize("factor", [1.0, 1.7, 3.3, 8.0])
@pytest.mark.parametrize("context", [8, 13, 2048])
@pytest.mark.parametrize("base", [10_000.0, 50.0, 1234.567])
@pytest.mark.parametrize("width", [8, 10, 64])
def test_turns_in_float32_are_bit_equal_to_those_of_transformers(
    factor: float, context: int, base: float, width: int
) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    rope = {"rope_type": "dynamic", "factor": factor, "rope_theta": base}
    config = modeling.LlamaConfig(
        hidden_size=4 * width, num_attention_heads=4, max_position_embeddings=context, rope_parameters=rope
    )
    ours = RotaryPositions(scheme(factor, context, base, "float32"), width)
    for length in (1, context - 1, context, context + 1, 2 * context, 5 * context + 3):
        places = torch.arange(length)[None]
        theirs = modeling.LlamaRotaryEmbedding(config)(torch.zeros(1), places)
        rotation = ours.rotation(places, torch.float32)
        for wave, wanted in zip((rotation.cos, rotation.sin), theirs, strict=True):
            assert torch.equal(torch.cat((wave, wave), -1)[:, 0], wanted)


def test_a_cache_keeps_the_angles_of_earlier_lengths() -> None:
    """Within the original context cached and uncached scores agree; beyond it they cannot."""
    config = llama(2, 32, 4, 2, 64, vocab=24, rotary=scheme(2.0, 8, base=50.0))
    network = Transformer(config, seed=0).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4)
        for length, agree in ((8, True), (20, False)):
            ids = torch.arange(length)[None]
            cache = network.new_cache(1, length)
            cached = torch.cat([network(ids[:, i : i + 1], cache=cache) for i in range(length)], 1)
            assert torch.allclose(cached, network(ids), rtol=1e-9, atol=1e-9) == agree


def test_one_pair_cannot_be_stretched() -> None:
    with pytest.raises(ConfigError, match="only one pair"):
        llama(1, 8, 4, 4, 8, rotary=scheme(2.0, 8))
