"""Files of Llama and its relatives as they are found: older tensors, leftovers, missing heads, embedders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pellucid
from pellucid.errors import CheckpointError
from pellucid.model.config import Classify, ModelConfig, Pool, Unembed
from pellucid.model.presets import llama
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import export

FREE = llama(2, 16, 4, 2, 24, vocab=24)
TIED = llama(2, 16, 4, 2, 24, vocab=24, tied=True)
IDS = [[3, 4, 5, 6]]


def write(folder: Path, config: ModelConfig, edit: Callable[[dict[str, Tensor]], object] = len) -> Path:
    export(Model(config, Transformer(config, seed=0).eval()), folder, family="llama")
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def without_prefix(tensors: dict[str, Tensor]) -> None:
    tensors.pop("lm_head.weight", None)
    for name in list(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


def test_frequencies_in_older_files_are_ignored(tmp_path: Path) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        for block in range(2):
            tensors[f"model.layers.{block}.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
        tensors["model.rotary_emb.inv_freq"] = torch.ones(2)

    wanted = pellucid.load(write(tmp_path / "plain", FREE)).logits(IDS)
    assert torch.equal(pellucid.load(write(tmp_path / "old", FREE, add)).logits(IDS), wanted)


def test_a_tied_unembedding_may_be_repeated_but_not_differ(tmp_path: Path) -> None:
    def repeat(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def differ(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1

    pellucid.load(write(tmp_path / "repeated", TIED, repeat))
    with pytest.raises(CheckpointError, match=r"ties lm_head\.weight to model\.embed_tokens\.weight"):
        pellucid.load(write(tmp_path / "different", TIED, differ))


def test_a_missing_unembedding_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks lm_head\.weight"):
        pellucid.load(write(tmp_path / "cut", FREE, lambda tensors: tensors.pop("lm_head.weight")))


def test_a_classifier_may_bring_the_unembedding_that_it_grew_from(tmp_path: Path) -> None:
    config = FREE.model_copy(update={"head": Classify(labels=1, pooling="last", hidden=None, bias=False)})

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = torch.ones(24, 16)

    model = pellucid.load(write(tmp_path / "reward", config, add))
    assert model.logits(IDS).shape == (1, 1)
    export(model, tmp_path / "again")
    assert torch.equal(load_file(tmp_path / "again" / "model.safetensors")["lm_head.weight"], torch.ones(24, 16))


@pytest.mark.parametrize(("config", "head"), [(TIED, Unembed()), (FREE, Pool(pooling="last"))])
def test_a_bare_model_unembeds_with_its_table_or_gives_its_last_state(
    tmp_path: Path, config: ModelConfig, head: Unembed | Pool
) -> None:
    folder = write(tmp_path / "bare", config, without_prefix)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"architectures": ["LlamaModel"]}))
    model = pellucid.load(folder)
    assert model.config.head == head
    assert model.logits(IDS).shape == ((1, 4, 24) if isinstance(head, Unembed) else (1, 16))


def test_files_beside_an_embedder_say_how_it_pools(tmp_path: Path) -> None:
    folder = write(tmp_path / "embedder", FREE, without_prefix)
    names = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{name}", "path": f"1_{name}"} for name in names]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    model = pellucid.load(folder)
    assert model.config.head == Pool(pooling="last", normalize=True)
    torch.testing.assert_close(model.logits(IDS).norm(dim=-1), torch.ones(1))
