import pytest
import torch

from pellucid.errors import ConfigError
from pellucid.model.presets import PRESETS, preset
from pellucid.model.transformer import Transformer

# As the released checkpoints have it, each tied table counted once.
PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "bloom-560m": 559_214_592,
    "bloom-1b7": 1_722_408_960,
    "bloom-7b1": 7_069_016_064,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name):
    with torch.device("meta"):
        network = Transformer(preset(name))
    assert sum(parameter.numel() for parameter in network.parameters()) == PUBLISHED[name]


def test_every_large_preset_with_a_published_count_is_counted():
    # Vaswani et al. 2017 published 65 and 213 million, rounded, with a vocabulary given as "about 37000".
    uncounted = {name for name in PRESETS if not name.startswith("tiny-")} - set(PUBLISHED)
    assert uncounted == {"original-base", "original-big"}


@pytest.mark.parametrize(("name", "millions"), [("original-base", 65), ("original-big", 213)])
def test_the_original_is_as_large_as_its_paper_says(name, millions):
    with torch.device("meta"):
        network = Transformer(preset(name))
    count = sum(parameter.numel() for parameter in network.parameters())
    assert count == pytest.approx(millions * 1e6, rel=0.035)


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_tiny_presets_run(name):
    network = Transformer(preset(name), seed=0)
    ids = torch.arange(10).reshape(2, 5)
    scores = network(ids, ids) if network.config.is_encoder_decoder else network(ids)
    assert scores.shape[0] == 2
    assert scores.isfinite().all()


@pytest.mark.parametrize(
    ("name", "near"), [("gpt2-smal", "gpt2-small"), ("llama-2-7B", "llama-2-7b"), ("t5base", "t5-base")]
)
def test_an_unknown_name_brings_near_ones(name, near):
    with pytest.raises(ConfigError, match=f"no preset is called '{name}'; did you mean .*{near}"):
        preset(name)


def test_a_name_near_nothing_brings_them_all():
    with pytest.raises(ConfigError, match=r"'xyzzy'; there are: .*gpt2-small.*tiny-bloom"):
        preset("xyzzy")
