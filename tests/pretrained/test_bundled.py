"""The models that come with the package: small, described, made by the run files, and able to do what they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import pellucid
from pellucid.errors import CheckpointError
from pellucid.pretrained.bundled import HERE, bundled_card, bundled_config, bundled_folder, bundled_models
from pellucid.training.finish import trained_config
from pellucid.training.recording import read_recording
from pellucid.training.runfile import read_run

RUNS = Path(__file__).parents[2] / "examples/runs"
TRAINED = [name for name, _ in bundled_models() if name != "worked-example"]
SIBLINGS = [name for name in TRAINED if name.startswith("tiny-")]


@pytest.mark.parametrize("name", [name for name, _ in bundled_models()])
def test_it_opens_and_is_described(name: str) -> None:
    assert dict(bundled_models())[name]
    assert pellucid.load(name).config == bundled_config(name)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match="'example' is not a bundled model; there are stories, translate-en-zh"):
        bundled_folder("example")


def test_all_of_them_fit_into_40_megabytes() -> None:
    assert sum(file.stat().st_size for file in HERE.rglob("*") if file.is_file()) <= 40_000_000


@pytest.mark.parametrize("name", TRAINED)
def test_the_weights_are_stored_in_bfloat16_and_open_in_float32(name: str) -> None:
    with safe_open(bundled_folder(name) / "model.safetensors", "pt") as file:
        assert {file.get_slice(key).get_dtype() for key in file.keys()} == {"BF16"}  # noqa: SIM118
    assert pellucid.load(name).dtype == torch.float32
    assert pellucid.load(name, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("name", TRAINED)
def test_the_card_names_the_run_file_that_made_it(name: str) -> None:
    card = bundled_card(name)
    assert card is not None
    published = read_run(RUNS / card.run)
    trained = trained_config(bundled_folder(name))
    assert trained is not None
    assert trained.model_copy(update={"data": published.data}) == published
    assert card.licence
    assert card.data
    assert card.scores["loss"] > 0
    assert card.samples


@pytest.mark.parametrize("name", TRAINED)
def test_no_file_names_a_folder_of_the_machine_it_was_made_on(name: str) -> None:
    for file in bundled_folder(name).glob("*.json*"):
        if file.name != "tokenizer.json":
            assert '"/' not in file.read_text(encoding="utf-8"), file.name


@pytest.mark.parametrize("name", TRAINED)
def test_its_training_can_be_played(name: str) -> None:
    played = read_recording(bundled_folder(name))
    assert played is not None
    assert len(played.steps) > 1
    assert played.losses[-1] is not None


def test_the_siblings_differ_in_one_thing_each() -> None:
    plain = json.loads(bundled_config("tiny-softmax").model_dump_json())
    for name in SIBLINGS[1:]:
        other = json.loads(bundled_config(name).model_dump_json())
        changed = {key for key in plain if plain[key] != other[key]}
        assert changed in ({"attention"}, {"position"}), name
    sizes = [sum(one.numel() for one in pellucid.load(name).network.parameters()) for name in SIBLINGS]
    assert max(sizes) < 1_000_000


def test_the_story_model_has_the_shape_it_promises() -> None:
    config = bundled_config("stories")
    size = sum(one.numel() for one in pellucid.load("stories").network.parameters())
    assert 3_000_000 <= size <= 6_000_000
    assert (config.position.kind, config.norm.kind, config.placement, config.feed_forward.kind) == (
        "rotary",
        "rms_norm",
        "pre",
        "gated",
    )
    assert (config.context, config.vocab) == (512, 4096)


def test_the_story_model_ends_its_stories() -> None:
    model = pellucid.load("stories")
    written = pellucid.generate(model, "Once upon a time,", max_tokens=500, temperature=0.7)[0]
    assert model.tokenizer is not None
    assert model.tokenizer.token(written.ids[-1]) == "<|end|>"


def test_the_translator_loves_you() -> None:
    model = pellucid.load("translate-en-zh")
    assert pellucid.generate(model, "I love you.", beams=4)[0].text in ("我爱你。", "我愛你。")
    assert model.tokenizer is not None
    written = model.encode_target("我爱你。")
    assert [model.tokenizer.token(token) for token in written] == ["<|start|>", "我爱", "你", "。"]


def test_the_tagger_tells_a_verb_from_a_noun() -> None:
    model = pellucid.load("tag-en")
    assert dict(model.tag("They work here."))["work"] == "VERB"
    assert dict(model.tag("The work is good."))["work"] == "NOUN"
