"""Tiny models that write: every family and every mechanism, in float64, with weights that make texts vary."""

from __future__ import annotations

import zlib
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from pellucid.generation.results import Result
from pellucid.model import config as c
from pellucid.model.config import ModelConfig
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model, Origin
from pellucid.pretrained.tokenizer import FastTokenizer

START, END = 0, 1
SETTINGS = {"decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": START}
PROMPTS = [[5, 6, 7, 8], [9, 4], [3, 2, 8, 8, 8, 7, 2]]

FAMILIES = ("tiny-gpt2", "tiny-llama", "tiny-bloom", "tiny-t5", "tiny-original")


def _shape(stacks: dict[str, int], **changes: Any) -> ModelConfig:
    parts: dict[str, Any] = {
        "vocab": 40,
        "width": 16,
        "heads": 4,
        "key_value_heads": 2,
        "context": 64,
        "feed_forward": c.Gated(hidden=24),
        "position": c.Rotary(),
    }
    return ModelConfig(**parts | stacks | changes)


DECODER, BOTH = {"decoder_blocks": 2}, {"encoder_blocks": 1, "decoder_blocks": 2}
MECHANISMS: dict[str, ModelConfig] = {
    "relu": _shape(DECODER, attention=c.NormalizedRelu(), position=c.Relative(max_distance=4)),
    "linear elu": _shape(DECODER, attention=c.Linear(chunk=4)),
    "linear relu": _shape(DECODER, attention=c.Linear(features=c.Relu(), chunk=4), position=c.Learned()),
    "linear random": _shape(DECODER, attention=c.Linear(features=c.PositiveRandom(count=8, scale=0.05), chunk=4)),
    "window": _shape(DECODER, window=3, position=c.ALiBi()),
    "two windows": _shape(DECODER, window=(4, None), head_width=6, value_width=5),
    "no positions": _shape(DECODER, position=c.NoPositions(), norm=c.RMSNorm(), query_key_norm=True),
    "both linear": _shape(BOTH, attention=c.Linear(chunk=4)),
    "both relu": _shape(BOTH, attention=c.NormalizedRelu()),
    "both window": _shape(BOTH, window=(3, None), source_vocab=30, position=c.Sinusoidal()),
}
ALL = (*FAMILIES, *MECHANISMS)


def model(name: str, tokenizer: FastTokenizer | None = None, **settings: Any) -> Model:
    config = MECHANISMS[name] if name in MECHANISMS else preset(name)
    return Model(config, network(config, name), tokenizer, origin=Origin(config=SETTINGS | settings))


def network(config: ModelConfig, name: str = "") -> Transformer:
    built = Transformer(config, seed=0).double().eval()
    draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64), alpha=0.25)
    return built


def ids(results: list[Result]) -> list[tuple[int, ...]]:
    return [each.ids for result in results for each in result.continuations]


def byte_tokenizer() -> FastTokenizer:
    """A token per byte: most characters of other scripts take several. Ids 0 and 1 are special."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<start>": START, "<end>": END} | {letter: place + 2 for place, letter in enumerate(letters)}
    pipeline = tokenizers.Tokenizer(models.BPE(vocab, []))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pipeline.decoder = decoders.ByteLevel()
    pipeline.add_special_tokens(["<start>", "<end>"])
    return FastTokenizer(pipeline)


def writer() -> Model:
    """A GPT-2 over bytes."""
    config = preset("tiny-gpt2").model_copy(update={"vocab": 258})
    return Model(config, network(config, "writer"), byte_tokenizer(), origin=Origin(config=SETTINGS))
