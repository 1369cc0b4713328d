"""The spectra of weights agree with those of the products, formed, in every family."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.model import config as c
from pellucid.model.attention import Attention
from pellucid.model.presets import PRESETS, preset
from pellucid.model.transformer import Transformer
from pellucid.spectra.rank import singular_values
from pellucid.spectra.weights import HeadWeights, weight_spectra

TINY = [name for name in PRESETS if name.startswith("tiny-")]


def sublayer(network: Transformer, head: HeadWeights) -> Attention:
    stack = network.encoder if head.stack == "encoder" else network.decoder
    assert stack is not None
    block = stack.blocks[head.block]
    found = block.attention if head.kind == "self" else block.cross
    assert found is not None
    return found


def maps_of(attention: Attention, head: int, config: c.ModelConfig) -> dict[str, Tensor]:
    """W_Q, W_K, W_V and W_O of a head as the model applies them, from its linear maps' answers to the unit vectors."""
    unit = torch.eye(config.width, dtype=torch.float64)
    group = head // (config.heads // config.groups)

    def columns(map_: torch.nn.Linear, index: int, width: int) -> Tensor:
        return (unit @ map_.weight.detach().double().T)[:, index * width : (index + 1) * width]

    rows = slice(head * config.values_width, (head + 1) * config.values_width)
    return {
        "query": columns(attention.to_query, head, config.key_width),
        "key": columns(attention.to_key, group, config.key_width),
        "value": columns(attention.to_value, group, config.values_width),
        "output": attention.to_output.weight.detach().double().T[rows],
    }


def check(network: Transformer) -> None:
    config = network.config
    for head in weight_spectra(network, baseline_seed=None).heads:
        maps = maps_of(sublayer(network, head), head.head, config)
        maps["query_key"] = maps["query"] @ maps["key"].T
        maps["value_output"] = maps["value"] @ maps["output"]
        for name, matrix in maps.items():
            found = getattr(head, name)
            dense = singular_values(matrix)
            count = len(found.singular_values)
            assert sorted(found.ranks.shape) == sorted(matrix.shape)
            torch.testing.assert_close(
                torch.tensor(found.singular_values).double(), dense[:count], rtol=1e-6, atol=1e-9
            )
            assert float(dense[count:].sum()) < 1e-12 * float(dense[0]) * len(dense)
            assert found.ranks.energy == pytest.approx(float(matrix.square().sum()), rel=1e-12)
        assert head.query_key.ranks.numerical <= config.key_width


@pytest.mark.parametrize("name", TINY)
def test_every_family(name: str) -> None:
    network = Transformer(preset(name), seed=0)
    check(network)
    config = network.config
    crosses = config.decoder_blocks if config.is_encoder_decoder else 0
    heads = weight_spectra(network, baseline_seed=None).heads
    assert len(heads) == (config.encoder_blocks + config.decoder_blocks + crosses) * config.heads
    assert len({(head.stack, head.block, head.kind, head.head) for head in heads}) == len(heads)


@pytest.mark.parametrize("changes", [{"key_value_heads": 1}, {"head_width": 6, "value_width": 3}, {"head_width": 40}])
def test_other_shapes(changes: dict[str, int]) -> None:
    """Among them heads that are wider than the model, whose factors are not thin."""
    check(Transformer(preset("tiny-gpt2").model_copy(update=changes), seed=0))


def test_grouped_heads_share_keys_and_values() -> None:
    first, second, third, _ = weight_spectra(Transformer(preset("tiny-llama"), seed=0), baseline_seed=None).heads[:4]
    assert (first.group, second.group, third.group) == (0, 0, 1)
    assert first.key is second.key
    assert first.value is second.value
    assert first.key != third.key
    assert first.query_key != second.query_key


def test_a_planted_rank_is_found() -> None:
    network = Transformer(preset("tiny-gpt2"), seed=0)
    assert network.decoder is not None
    attention = network.decoder.blocks[1].attention
    with torch.no_grad():
        attention.to_query.weight[8:16] = torch.ones(8, 1) @ torch.randn(1, 32)
        attention.to_output.weight[:, 16:24] = 0
    heads = {(head.block, head.head): head for head in weight_spectra(network, baseline_seed=None).heads}
    assert heads[1, 1].query.ranks.numerical == heads[1, 1].query_key.ranks.numerical == 1
    assert heads[1, 2].value_output.ranks.numerical == heads[1, 2].output.ranks.numerical == 0
    assert heads[1, 2].value_output.ranks.stable == 0
    assert heads[0, 1].query.ranks.numerical == heads[1, 0].query_key.ranks.numerical == 8


def test_baseline_is_the_same_shape_with_other_weights() -> None:
    network = Transformer(preset("tiny-bert"), seed=5)
    found = weight_spectra(network, baseline_seed=3)
    assert found.baseline is not None
    assert found.baseline.heads == weight_spectra(Transformer(preset("tiny-bert"), seed=3), baseline_seed=None).heads
    assert found.baseline.heads != found.heads
    assert weight_spectra(network, baseline_seed=3) == found


def test_bfloat16_weights_are_the_numbers_that_they_are() -> None:
    config = preset("tiny-gpt2").model_copy(update={"width": 256, "heads": 4})
    network = Transformer(config, seed=0).bfloat16()
    head = weight_spectra(network, baseline_seed=None).heads[0]
    assert head.query_key.ranks.numerical == 64
    assert head.query_key.ranks.dtype == "float32"


def test_json() -> None:
    found = json.loads(json.dumps(weight_spectra(Transformer(preset("tiny-t5"), seed=0)).to_json(), allow_nan=False))
    head = found["heads"][-1]
    assert (head["stack"], head["block"], head["kind"], head["head"]) == ("decoder", 1, "cross", 3)
    assert len(head["query_key"]["singular_values"]) == 8
    assert len(found["baseline"]["heads"]) == len(found["heads"])


def test_weights_that_are_not_finite_are_named() -> None:
    network = Transformer(preset("tiny-gpt2"), seed=0)
    assert network.decoder is not None
    with torch.no_grad():
        network.decoder.blocks[1].attention.to_value.weight[0, 0] = math.nan
    with pytest.raises(InputError, match=r"decoder\.1\.attention\.to_value\.weight"):
        weight_spectra(network)
