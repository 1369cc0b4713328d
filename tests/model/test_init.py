import re

import pytest
import torch

from pellucid.model import config as c
from pellucid.model import init
from pellucid.model.presets import PRESETS
from pellucid.model.transformer import Transformer

FEED_FORWARD = c.Plain(hidden=48)


def config(**changes):
    shape = {"vocab": 96, "width": 32, "heads": 4, "decoder_blocks": 2, "feed_forward": FEED_FORWARD}
    return c.ModelConfig(**{**shape, **changes})


def encoder(**changes):
    return config(decoder_blocks=0, encoder_blocks=2, **changes)


CONFIGS = {name: shape for name, shape in PRESETS.items() if name.startswith("tiny-")} | {
    "plain": config(),
    "relative": config(position=c.Relative(max_distance=40), query_key_norm=True, key_value_heads=2),
    "learned": config(position=c.Learned(skip=2), context=40, embedding_norm=True, segments=30),
    "scaled embedding": config(scale_embedding=True, head=c.Unembed(tied=False, bias=True, transform="gelu")),
    "two vocabularies": config(encoder_blocks=3, source_vocab=64, segments=2, embedding_norm=True, placement="post"),
    "linformer": encoder(attention=c.Linformer(rank=16), context=40),
    "fixed linformer": encoder(attention=c.Linformer(rank=16, learned=False), context=40, head=c.Tag(labels=40)),
    "random features": config(attention=c.Linear(features=c.PositiveRandom(count=128))),
    "plain random features": config(attention=c.Linear(features=c.PositiveRandom(count=128, orthogonal=False))),
    "gated": config(feed_forward=c.Gated(hidden=48), norm=c.RMSNorm(), biases=c.Biases.none()),
    "no norm": config(norm=c.Identity(), attention=c.NormalizedRelu(), value_width=5),
    "classify": encoder(head=c.Classify(labels=40)),
    "pool": encoder(head=c.Pool(project=True), norm=c.LayerNorm(bias=False)),
}
every_config = pytest.mark.parametrize("name", CONFIGS)


def tensors(network):
    return dict([*network.named_parameters(), *network.named_buffers()])


@every_config
@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_exactly_one_row_of_the_table_fits_each_tensor(name, kernel):
    shape = CONFIGS[name]
    with torch.device("meta"):
        network = Transformer(shape, kernel=kernel)
    rows = init.table(shape)
    for tensor in tensors(network):
        assert sum(bool(re.fullmatch(pattern, tensor)) for pattern in rows) == 1, tensor


def test_every_row_of_the_table_is_needed():
    used = set()
    for shape in CONFIGS.values():
        with torch.device("meta"):
            network = Transformer(shape)
        used |= {row for row in init.table(shape) for tensor in tensors(network) if re.fullmatch(row, tensor)}
    assert used == set(init.table(config()))


@every_config
def test_variances_are_those_of_the_table(name):
    shape = CONFIGS[name]
    rows = init.table(shape)
    for tensor_name, tensor in tensors(Transformer(shape, seed=0)).items():
        row = init.distribution_of(tensor_name, rows)
        if isinstance(row, init.Constant):
            assert (tensor == row.value).all(), tensor_name
        elif tensor.numel() >= 500:
            # A variance of n numbers has a relative deviation of sqrt(2/n) if they are normal, less if uniform.
            # Five of them: over all tensors here, one false alarm in some ten thousand seeds.
            expected, deviation = row.variance(tensor), (2 / tensor.numel()) ** 0.5
            sample = tensor.detach().double()
            assert float(sample.var()) == pytest.approx(expected, rel=5 * deviation), tensor_name
            assert abs(float(sample.mean())) < 5 * (expected / tensor.numel()) ** 0.5, tensor_name


@pytest.mark.parametrize(
    ("shape", "tensor", "variance"),
    [
        ("plain", "tokens.weight", 0.02**2),
        ("scaled embedding", "tokens.weight", 1 / 32),
        ("two vocabularies", "source_tokens.weight", 0.02**2),
        ("scaled embedding", "head.weight", 0.02**2),
        ("plain", "decoder.0.attention.to_key.weight", 2 / (32 + 32)),
        ("plain", "decoder.0.feed_forward.up.weight", 2 / (32 + 48)),
        ("plain", "decoder.1.feed_forward.down.weight", 2 / (32 + 48) / 4),
        ("two vocabularies", "decoder.1.cross.to_output.weight", 2 / (32 + 32) / 6),
        ("relative", "decoder.positions.table.weight", 0.02**2),
        ("linformer", "encoder.0.attention.mechanism.key_projection", 1 / 16),
        ("fixed linformer", "encoder.1.attention.mechanism.value_projection", 1 / 16),
        ("random features", "decoder.0.attention.mechanism.map.projection", 1.0),
    ],
)
def test_the_table_in_numbers(shape, tensor, variance):
    with torch.device("meta"):
        found = tensors(Transformer(CONFIGS[shape]))[tensor]
    assert init.distribution_of(tensor, init.table(CONFIGS[shape])).variance(found) == pytest.approx(variance)


@every_config
def test_a_seed_gives_the_same_network_to_the_bit_and_another_seed_another(name):
    shape = CONFIGS[name]
    first = Transformer(shape, seed=1).state_dict()
    torch.rand(1)  # what else was drawn does not matter
    again, other = (Transformer(shape, seed=seed).state_dict() for seed in (1, 2))
    rows = init.table(shape)
    for tensor in first:
        assert torch.equal(first[tensor], again[tensor]), tensor
        if not isinstance(init.distribution_of(tensor, rows), init.Constant):
            assert not torch.equal(first[tensor], other[tensor]), tensor


def test_the_seed_leaves_the_global_state_of_drawing_to_torch_alone():
    """The weights come from the seed even where the global state differs."""
    torch.manual_seed(3)
    first = Transformer(config(), seed=7).state_dict()
    torch.manual_seed(4)
    again = Transformer(config(), seed=7).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_without_a_seed_the_state_of_torch_decides():
    networks = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        networks.append(Transformer(config()).tokens.weight)
    assert torch.equal(networks[0], networks[1])
    assert not torch.equal(networks[0], networks[2])


@pytest.mark.parametrize(("shape", "depth"), [(config(decoder_blocks=8), 8), (config(encoder_blocks=6), 6)])
def test_what_is_added_to_the_residual_shrinks_with_the_depth(shape, depth):
    rows = init.table(shape)
    weight = torch.empty(32, 32)
    for name in ("decoder.0.attention.to_output.weight", "decoder.1.feed_forward.down.weight"):
        inner = init.distribution_of("decoder.0.attention.to_query.weight", rows).variance(weight)
        assert init.distribution_of(name, rows).variance(weight) == pytest.approx(inner / (2 * depth), rel=1e-12)


def test_a_scaled_embedding_starts_with_variance_one():
    network = Transformer(config(scale_embedding=True), seed=0)
    vectors = network.tokens.weight.detach() * 32**0.5
    assert float(vectors.var()) == pytest.approx(1.0, rel=5 * (2 / vectors.numel()) ** 0.5)
