"""Models, texts and tolerances for the tests of the lens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from pellucid.lens.trace import Trace
from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.tokenizer import FastTokenizer
from tests.model import small

# What is promised of every step.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
DTYPES = tuple(TOLERANCE)


def build(
    stacks: str = "decoder", *, kernel: str = "fused", dtype: torch.dtype = torch.float64, **changes: Any
) -> Model:
    network = small.network(stacks, kernel=kernel, **changes).to(dtype)
    return Model(network.config, network)


def of_config(config: c.ModelConfig, dtype: torch.dtype = torch.float64) -> Model:
    return Model(config, Transformer(config, seed=0).to(dtype).eval())


def with_words(model: Model) -> Model:
    """The same with a tokenizer: a, b, c, ... are the ids 0, 1, 2, ..."""
    vocab = {chr(ord("a") + index): index for index in range(model.config.vocab)}
    pipeline = Tokenizer(models.WordLevel(vocab, unk_token="a"))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    return replace(model, tokenizer=FastTokenizer(pipeline))


def ids(model: Model, *shape: int) -> list[Tensor]:
    """The arguments of a trace: one text, or for an encoder-decoder two of different lengths."""
    draw = torch.Generator().manual_seed(7)
    batch, length = shape
    target = torch.randint(model.config.vocab, (batch, length), generator=draw)
    vocab = model.config.source_vocab or model.config.vocab
    source = torch.randint(vocab, (batch, length + 2), generator=draw)
    return [source, target] if model.config.is_encoder_decoder else [target]


def check(trace: Trace, dtype: torch.dtype) -> None:
    """Every step is right to the tolerance; the message names those that are not."""
    wrong = {step.site: step.error for step in trace.steps if not step.error < TOLERANCE[dtype]}
    assert not wrong
