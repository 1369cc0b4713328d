"""What configs of Llama, Mistral and Qwen say, in the words of transformers 4 and 5, and what they may not say."""

from __future__ import annotations

from typing import Any

import pytest

from pellucid.errors import CheckpointError
from pellucid.model.config import (
    Biases,
    DynamicNtkScaling,
    LinearScaling,
    ModelConfig,
    NtkScaling,
    Rotary,
    Unembed,
    YarnScaling,
)
from pellucid.model.presets import preset
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.family import ConfigReader
from tests.pretrained.llama_releases import (
    LLAMA_2,
    MISTRAL_1,
    OURS_25,
    QWEN2_BIASES,
    QWEN3,
    QWEN25,
    RELEASED,
    TINY,
    TINY_LLAMA,
    changed,
    rotary,
)


def opened(config: dict[str, Any]) -> ModelConfig:
    reader = ConfigReader(config)
    model = FAMILIES[config["model_type"]].read(reader, (config.get("architectures") or [""])[0])
    reader.finish()
    return model


every_release = pytest.mark.parametrize("name", RELEASED)


@every_release
def test_released_configs_open(name: str) -> None:
    theirs, ours = RELEASED[name]
    assert opened(theirs) == ours


@every_release
def test_what_is_read_can_be_written_and_read_again(name: str) -> None:
    theirs, ours = RELEASED[name]
    family = FAMILIES[theirs["model_type"]]
    written = family.express(ours, getattr(ours.head, "labels", 0))
    assert written is not None
    again = opened(written)
    if ours.key_value_heads is None:
        again = changed(again, key_value_heads=None)
    assert again == ours


@every_release
def test_an_unknown_key_is_refused_by_name(name: str) -> None:
    theirs, _ = RELEASED[name]
    with pytest.raises(CheckpointError, match="logit_softcap = 30"):
        opened(theirs | {"logit_softcap": 30})


def scaling(**words: Any) -> Any:
    position = opened(TINY_LLAMA | {"rope_scaling": words}).position
    assert isinstance(position, Rotary)
    return position.scaling


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def test_dynamic_scaling_starts_at_the_context() -> None:
    assert scaling(type="dynamic", factor=2.0) == DynamicNtkScaling(factor=2.0, original_context=2048)
    same = scaling(type="dynamic", factor=2, original_max_position_embeddings=2048)
    assert same == DynamicNtkScaling(factor=2.0, original_context=2048)
    with pytest.raises(CheckpointError, match="original_max_position_embeddings = 512"):
        scaling(type="dynamic", factor=2.0, original_max_position_embeddings=512)


def test_every_key_of_yarn_is_read() -> None:
    assert scaling(**YARN) == YarnScaling(factor=4.0, original_context=512)
    assert scaling(type="yarn", factor=4.0) == YarnScaling(factor=4.0, original_context=2048)
    assert scaling(**YARN | {"factor": None}) == YarnScaling(factor=4.0, original_context=512)
    all_keys = scaling(**YARN, beta_fast=16, beta_slow=2, attention_factor=1.5, truncate=False)
    assert all_keys == YarnScaling(
        factor=4.0, original_context=512, fast=16.0, slow=2.0, attention_factor=1.5, whole_pairs=False
    )


def test_the_scales_of_deepseek_are_an_attention_factor() -> None:
    assert scaling(**YARN, mscale=1.0, mscale_all_dim=1.0).attention_factor == 1.0
    assert scaling(**YARN, mscale=1.0, mscale_all_dim=0).attention_factor is None
    assert scaling(**YARN, mscale=1.0).attention_factor is None
    assert scaling(**YARN, mscale=2.0, mscale_all_dim=1.0).attention_factor == pytest.approx(1.2772588 / 1.1386294)
    assert scaling(**YARN, mscale=2.0, mscale_all_dim=1.0, attention_factor=1.5).attention_factor == 1.5


def test_the_original_context_beside_the_dictionary_wins() -> None:
    beside = TINY_LLAMA | {"rope_scaling": YARN, "original_max_position_embeddings": 256}
    assert opened(beside).position == rotary(1e4, YarnScaling(factor=4.0, original_context=256))


def test_inner_words_for_rotary_win_over_outer_ones() -> None:
    both = {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert opened(TINY_LLAMA | both).position == rotary(5e5)
    assert opened(TINY_LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}} | both).position == rotary(
        1e4, LinearScaling(factor=2.0)
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}, "rope_type = 'longrope', but only default"),
        ({"rope_type": "longrope", "factor": 4.0}, "rope_type = 'longrope', but only default"),
        ({"type": "mrope", "mrope_section": [2, 3, 3]}, "'mrope'"),
        ({"type": "linear"}, "'factor'"),
        ({"type": "linear", "factor": "two"}, "factor = 'two'"),
        ({"type": "linear", "factor": 2.0, "slope": 3}, "slope = 3"),
        ({"rope_type": "default", "factor": 4.0}, "factor = 4.0"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_type": "llama3", "factor": 8.0}, "'low_freq_factor'"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
    ],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_rotary_words_that_cannot_be_built_are_refused(words: dict[str, Any], complaint: str, key: str) -> None:
    config = {name: value for name, value in TINY_LLAMA.items() if name != "rope_scaling"}
    with pytest.raises(CheckpointError, match=complaint):
        opened(config | {key: words})


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (TINY_LLAMA | {"quantization_config": {"bits": 4}}, "quantization_config"),
        (TINY_LLAMA | {"architectures": ["LlamaForQuestionAnswering"]}, "LlamaForQuestionAnswering"),
        (QWEN25 | {"architectures": ["Qwen2ForRewardModel"]}, "Qwen2ForRewardModel"),
        (TINY_LLAMA | {"rope_interleaved": True}, "rope_interleaved"),
        (TINY_LLAMA | {"sliding_window": 64}, "sliding_window"),
        (MISTRAL_1 | {"attention_bias": True}, "attention_bias"),
        (MISTRAL_1 | {"layer_types": ["full_attention"] * 32}, "layer_types"),
        (MISTRAL_1 | {"is_causal": False}, "is_causal"),
        (QWEN25 | {"use_mrope": True}, "use_mrope"),
        (QWEN25 | {"layer_types": ["sliding_attention"] * 28}, "layer_types"),
        (QWEN25 | {"layer_types": ["full_attention"] * 27}, "28 entries"),
        (QWEN25 | {"layer_types": ["chunked_attention"] * 28, "use_sliding_window": True}, "chunked_attention"),
        ({key: value for key, value in TINY_LLAMA.items() if key != "hidden_size"}, "hidden_size"),
    ],
)
def test_what_would_compute_something_else_is_refused(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        opened(config)


def test_a_missing_key_is_what_transformers_takes_it_for() -> None:
    def without(config: dict[str, Any], *keys: str) -> ModelConfig:
        return opened({key: value for key, value in config.items() if key not in keys})

    assert without(MISTRAL_1, "sliding_window").window == 4096
    assert without(MISTRAL_1, "num_key_value_heads").groups == 8
    assert without(QWEN3, "head_dim").head_width == 128
    assert without(LLAMA_2, "num_key_value_heads").groups == 32
    assert without(LLAMA_2, "tie_word_embeddings", "architectures").head == Unembed(tied=False)


def test_windows_of_qwen_are_for_the_last_blocks() -> None:
    some = QWEN25 | {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 26}
    assert opened(some).window == (None,) * 26 + (512, 512)
    assert opened(some | {"max_window_layers": 0}).window == 512
    assert opened(some | {"max_window_layers": 28}).window is None
    kinds = ["sliding_attention", "full_attention"] * 14
    assert opened(some | {"layer_types": kinds}).window == (512, None) * 14


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", changed(TINY, position=Rotary(base=1e4).model_dump())),
        ("llama", changed(TINY, position=rotary(1e4, NtkScaling(factor=2.0)).model_dump())),
        ("llama", changed(TINY, window=64)),
        ("llama", changed(TINY, biases=QWEN2_BIASES.model_dump())),
        ("llama", changed(TINY, query_key_norm=True)),
        ("llama", changed(TINY, width=2050, head_width=64)),
        ("mistral", changed(TINY, window=(64,) + (None,) * 21)),
        ("mistral", changed(TINY, biases=Biases().model_dump())),
        ("qwen2", TINY),
        ("qwen2", changed(OURS_25, window=(64, 32) * 14)),
        ("qwen3", TINY),
        ("llama", preset("gpt2-small")),
    ],
)
def test_what_a_family_has_no_words_for_is_not_expressed(family: str, config: ModelConfig) -> None:
    assert FAMILIES[family].express(config) is None


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("llama", changed(TINY, biases=Biases().model_dump())),
        (
            "llama",
            changed(TINY, position=rotary(50.0, DynamicNtkScaling(factor=2.0, original_context=64)).model_dump()),
        ),
        ("llama", changed(TINY, causal=False)),
        ("llama", changed(TINY, head_width=64, key_value_heads=None)),
        ("mistral", changed(TINY, window=(64,) * 22)),
        ("mistral", changed(TINY, context=None, key_value_heads=None)),
        ("qwen2", changed(OURS_25, window=(None, 64) * 14)),
        ("qwen3", changed(TINY, query_key_norm=True, biases=Biases(feed_forward=False).model_dump())),
    ],
)
def test_what_a_family_has_words_for_is_expressed(family: str, config: ModelConfig) -> None:
    written = FAMILIES[family].express(config)
    assert written is not None
    assert written["model_type"] == family
