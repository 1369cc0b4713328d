"""Our own layout: what `save` writes, `load` opens to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import CheckpointError, PellucidError
from pellucid.model.config import (
    Classify,
    EluPlusOne,
    Linear,
    Linformer,
    ModelConfig,
    NoPositions,
    Pool,
    PositiveRandom,
    Relative,
    Rotary,
    Sinusoidal,
    Tag,
)
from pellucid.model.presets import PRESETS, bert, gpt2
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import save
from tests.pretrained.checkpoints import GPT2, assert_same, edit_json, write

LINEAR = gpt2(2, 16, 2, vocab=24, context=20)
ENCODER = bert(2, 16, 2, vocab=24, context=20)


def with_(config: ModelConfig, **changes: Any) -> ModelConfig:
    return ModelConfig(**{**dict(config), **changes})


CONFIGS = {name: config for name, config in PRESETS.items() if name.startswith("tiny-")} | {
    "linear, elu": with_(LINEAR, attention=Linear(features=EluPlusOne())),
    "linear, random features": with_(LINEAR, attention=Linear(features=PositiveRandom(count=8))),
    "linear, rotary random features": with_(
        LINEAR, attention=Linear(features=PositiveRandom(count=8)), position=Rotary(), context=None
    ),
    "linformer": with_(ENCODER, attention=Linformer(rank=4)),
    "linformer, fixed projections": with_(ENCODER, attention=Linformer(rank=4, learned=False)),
    "relative": with_(LINEAR, position=Relative(max_distance=3), context=None),
    "no positions, huge context": with_(LINEAR, position=NoPositions(), context=10**9),
    "windows": with_(LINEAR, position=Sinusoidal(), window=(10**9, None)),
    "tagger": with_(LINEAR, head=Tag(labels=3)),
    "classifier": with_(ENCODER, head=Classify(labels=3)),
    "sentence encoder": with_(ENCODER, head=Pool(pooling="mean", normalize=True)),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_saved_model_opens_to_the_bit(tmp_path: Path, config: ModelConfig, dtype: torch.dtype) -> None:
    model = Model(config, Transformer(config, seed=3).eval().to(dtype), labels=("a", "b", "c"))
    again = pellucid.load(save(model, tmp_path / "saved"))
    assert_same(again, model)
    assert again.labels == model.labels
    ids = [[1, 2, 3, 4]]
    texts = (ids, ids) if config.is_encoder_decoder else (ids,)
    # Not to the bit: a mapped tensor starts elsewhere in memory, and the order of a product's sums depends on that.
    torch.testing.assert_close(again.logits(*texts), model.logits(*texts))


def test_a_family_and_its_tokenizer_survive(tmp_path: Path) -> None:
    model = pellucid.load(write(tmp_path / "theirs", GPT2, "gpt2"))
    again = pellucid.load(save(model, tmp_path / "ours"))
    assert_same(again, model)
    assert (again.origin.family, again.origin.config) == (model.origin.family, model.origin.config)
    assert again.encode("the cat sat") == model.encode("the cat sat")
    assert_same(pellucid.load(pellucid.export(again, tmp_path / "back")), model)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda saved: saved.update({"optimizer": {}}), ["optimizer"]),
        (lambda saved: saved.pop("model"), ["no model"]),
        (lambda saved: saved.update({"model": None}), ["no model"]),
        (lambda saved: saved.update({"model": []}), ["model = []"]),
        (lambda saved: saved.update({"labels": "abc"}), ["labels = 'abc'"]),
        (lambda saved: saved.update({"labels": [1]}), ["labels = [1]"]),
        (lambda saved: saved.update({"family": 3}), ["family = 3"]),
        (lambda saved: saved.update({"source": []}), ["source = []"]),
        (lambda saved: saved["model"].update({"decoder_blocks": 10**9}), ["1000000000 blocks"]),
        (lambda saved: saved["model"].update({"heads": 10**9, "head_width": 1}), ["heads = 1000000000"]),
        (lambda saved: saved["model"].update({"position": {"kind": "relative", "max_distance": 10**30}}), ["distance"]),
        (lambda saved: saved["model"]["position"].update({"skip": 10**30}), ["context"]),
        (lambda saved: saved["model"].update({"vocab": 25}), ["tokens.weight", "[25, 16]", "[24, 16]"]),
    ],
)
def test_what_cannot_be_right_is_named(tmp_path: Path, edit: Any, words: list[str]) -> None:
    folder = save(Model(GPT2, Transformer(GPT2)), tmp_path / "saved")
    edit_json(folder / "pellucid.json", edit)
    with pytest.raises(CheckpointError) as caught:
        pellucid.load(folder)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("where", [(), ("position",), ("feed_forward",)])
def test_unknown_keys_of_the_model_are_refused(tmp_path: Path, where: tuple[str, ...]) -> None:
    folder = save(Model(GPT2, Transformer(GPT2)), tmp_path / "saved")

    def add(saved: dict[str, Any]) -> None:
        part = saved["model"]
        for step in where:
            part = part[step]
        part["unheard"] = 1

    edit_json(folder / "pellucid.json", add)
    with pytest.raises(PellucidError, match="unheard"):
        pellucid.load(folder)
