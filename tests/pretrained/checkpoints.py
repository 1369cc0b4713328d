"""Tiny checkpoints to break: written once by `export`, then copied and damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers
from torch import Tensor

from pellucid.model.config import ModelConfig, Unembed
from pellucid.model.presets import bloom, gpt2
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import export

WEIGHTS = "model.safetensors"
GPT2 = gpt2(2, 16, 2, vocab=24, context=20)
BLOOM = bloom(2, 24, 6, vocab=24)
FREE = GPT2.model_copy(update={"head": Unembed(tied=False)})


def write(folder: Path, config: ModelConfig, family: str) -> Path:
    """A checkpoint with a tokenizer, in the Hugging Face layout."""
    export(Model(config, Transformer(config, seed=0).eval()), folder, family=family)
    words = {word: index for index, word in enumerate(["[UNK]", *"abcdefg", "the", "cat", "sat", "on", "mat"])}
    pipeline = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    pipeline.save(str(folder / "tokenizer.json"))
    return folder


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def assert_same(found: Model, wanted: Model) -> None:
    """The same config, and every tensor equal to the bit."""
    assert found.config == wanted.config
    ours, theirs = found.network.state_dict(), wanted.network.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(bits(ours[name]), bits(tensor)), name


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
