import pytest
from pydantic import ValidationError

from pellucid.errors import ConfigError, PellucidError
from pellucid.model import config as c
from pellucid.model.presets import PRESETS


def tiny(**changes):
    """A small decoder, changed."""
    shape = {"vocab": 10, "width": 8, "heads": 2, "decoder_blocks": 2, "feed_forward": c.Plain(hidden=16)}
    return c.ModelConfig(**{**shape, **changes})


def encoder(**changes):
    return tiny(**{"decoder_blocks": 0, "encoder_blocks": 2, **changes})


LINFORMER = {"attention": c.Linformer(rank=2), "context": 8}

# What is refused, and what the message must say: the values seen, and what to do.
REFUSED = {
    "no blocks": ({"decoder_blocks": 0}, r"set encoder_blocks, decoder_blocks or both"),
    "width not divisible by heads": ({"heads": 3}, r"width 8 .* heads 3: choose another number of heads, or give head"),
    "heads not a multiple of groups": ({"heads": 4, "key_value_heads": 3}, r"heads 4 .* key_value_heads 3"),
    "a window per block, too few": ({"window": (4,)}, r"1 entries for 2 blocks: give one per block, or one for all"),
    "a source vocabulary without a source": ({"source_vocab": 9}, r"source_vocab is for encoder-decoders"),
    "learned positions without a context": ({"position": c.Learned()}, r"learned positions need context"),
    "buckets that cannot be halved twice": ({"position": c.T5Buckets(buckets=30)}, r"multiple of 4 .* not 30"),
    "buckets beyond the largest distance": (
        {"position": c.T5Buckets(buckets=32, max_distance=16)},
        r"max_distance 16 with 32 buckets: .* more than 16",
    ),
    "an odd number to turn": ({"head_width": 5, "position": c.Rotary()}, r"5 numbers per head .* choose an even"),
    "an odd fraction to turn": ({"position": c.Rotary(fraction=0.75)}, r"3 numbers per head .* choose an even"),
    "nothing to turn": ({"position": c.Rotary(fraction=0.1)}, r"0 numbers per head .* choose an even"),
    "an odd number of features to turn": (
        {"attention": c.Linear(features=c.PositiveRandom(count=7)), "position": c.Rotary()},
        r"7 numbers per head .* choose an even",
    ),
    "one pair, stretched": (
        {"head_width": 2, "position": c.Rotary(scaling=c.NtkScaling(factor=2.0))},
        r"only one pair is turned: choose 4 or more",
    ),
    "causal Linformer": (LINFORMER, r"Linformer cannot be causal: .* Use an encoder"),
    "score bias with linear attention": (
        {"attention": c.Linear(), "position": c.ALiBi()},
        r"alibi positions with linear attention: .* Use rotary, sinusoidal or learned",
    ),
    "window with linear attention": ({"attention": c.Linear(), "window": 4}, r"window with linear .* Use softmax"),
}

REFUSED_ENCODERS = {
    "Linformer without a context": ({"attention": c.Linformer(rank=2)}, r"Linformer needs context"),
    "Linformer with a score bias": (
        {**LINFORMER, "position": c.T5Buckets()},
        r"t5_buckets positions with Linformer: .* Use sinusoidal or learned",
    ),
    "Linformer with turns": (
        {**LINFORMER, "position": c.Rotary()},
        r"rotary positions with Linformer: .* Use sinusoidal or learned",
    ),
    "Linformer with a window": ({**LINFORMER, "window": 4}, r"window with linformer .* Use softmax"),
    "a tagging encoder-decoder": (
        {"decoder_blocks": 1, "head": c.Tag(labels=3)},
        r"an encoder-decoder writes text: its head is unembed, not tag",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused(name):
    changes, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


@pytest.mark.parametrize("name", REFUSED_ENCODERS)
def test_what_cannot_be_right_in_an_encoder_is_refused(name):
    changes, message = REFUSED_ENCODERS[name]
    with pytest.raises(ConfigError, match=message):
        encoder(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"widht": 8}, r"widht: .*got 8"),
        ({"width": 0}, r"width: .*greater than 0.*got 0"),
        ({"dropout": 1.0}, r"dropout: .*less than 1.*got 1.0"),
        ({"placement": "sandwich"}, r"placement: .*'pre' or 'post'.*got 'sandwich'"),
        ({"attention": {"kind": "hard"}}, r"attention: .*'hard'.*'softmax'"),
        ({"window": (4, 0)}, r"window.*greater than 0.*got 0"),
    ],
)
def test_a_bad_value_is_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


def test_a_bad_value_within_a_part_is_refused_where_it_stands():
    with pytest.raises(ConfigError, match=r"rank: .*greater than 0.*got 0"):
        c.Linformer(rank=0)
    with pytest.raises(ConfigError, match=r"feed_forward\.plain.*hidden: .*got -1"):
        tiny(feed_forward={"kind": "plain", "hidden": -1})


def test_a_config_error_is_one_of_ours_and_a_value_error():
    assert issubclass(ConfigError, PellucidError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    "accepted",
    [
        lambda: encoder(**LINFORMER),
        lambda: tiny(**LINFORMER, causal=False),
        lambda: tiny(attention=c.Linear(), position=c.Rotary()),
        lambda: tiny(window=(None, 4)),
        lambda: tiny(heads=3, head_width=5),
        lambda: encoder(decoder_blocks=1, source_vocab=9, window=(4, None)),
        lambda: tiny(position=c.T5Buckets(buckets=32, max_distance=17)),
    ],
)
def test_what_stands_next_to_a_refusal_is_accepted(accepted):
    accepted()


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_survives_json(name):
    config = PRESETS[name]
    assert c.ModelConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": c.Linear(features=c.PositiveRandom(count=6, orthogonal=False), chunk=3)},
        {"position": c.Rotary(scaling=c.YarnScaling(factor=4, original_context=16)), "window": (None, 3)},
        {"attention": c.NormalizedRelu(), "norm": c.Identity(), "head": c.Classify(labels=3, hidden=None)},
        {"position": c.Relative(max_distance=3), "head": c.Tag(labels=2), "query_key_norm": True},
    ],
)
def test_unusual_parts_survive_json_as_their_own_types(changes):
    config = tiny(**changes)
    back = c.ModelConfig.model_validate_json(config.model_dump_json())
    assert back == config
    for name, part in changes.items():
        assert type(getattr(back, name)) is type(part)


def test_configs_are_frozen():
    config = tiny()
    with pytest.raises(ValidationError, match="frozen"):
        config.width = 16
    with pytest.raises(ValidationError, match="frozen"):
        config.attention.temperature = 2.0
    assert hash(config) == hash(tiny())


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 4**-0.5),
        ({"head_width": 9}, 1 / 3),
        ({"attention": c.Softmax(scale=1.0)}, 1.0),
        ({"attention": c.Softmax(temperature=2.0)}, 0.25),
        ({"attention": c.Softmax(scale=3.0, temperature=2.0)}, 1.5),
        ({"attention": c.Linear(features=c.PositiveRandom(scale=0.3))}, 0.3),
    ],
)
def test_scale(changes, scale):
    assert tiny(**changes).scale == pytest.approx(scale, rel=1e-15)


def test_widths_and_groups_have_defaults_that_follow():
    assert (tiny().groups, tiny().key_width, tiny().values_width) == (2, 4, 4)
    config = tiny(key_value_heads=1, head_width=6)
    assert (config.groups, config.key_width, config.values_width) == (1, 6, 6)
    assert tiny(value_width=5).values_width == 5


def test_a_final_norm_goes_with_pre_norm_unless_told():
    assert tiny().has_final_norm
    assert not tiny(placement="post").has_final_norm
    assert tiny(placement="post", final_norm=True).has_final_norm
    assert not tiny(final_norm=False).has_final_norm


def test_windows_are_one_for_all_blocks_or_one_for_each():
    assert [tiny(window=3).window_of(block) for block in range(2)] == [3, 3]
    assert [tiny(window=(None, 5)).window_of(block) for block in range(2)] == [None, 5]
