"""What a model looked at for each token that it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.lens.trace import Selection, Trace, read_texts, run
from pellucid.model.config import Unembed
from pellucid.pretrained.facade import Model


@torch.no_grad()
def trace_generation(
    model: Model,
    prompt: str | list[Any] | Tensor,
    tokens: int,
    target: str | list[Any] | Tensor | None = None,
    *,
    sites: Sequence[str] | None = None,
    blocks: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    memory_limit: int | None = None,
) -> list[Trace]:
    """Write so many tokens, each time the likeliest, and return the trace of the run that each came from.

    Every run reads the whole text so far: a cache would leave the earlier tokens out of the picture.
    target: what an encoder-decoder has written before, as a text ("" for nothing) or as ids with its start token.
    """
    if model.config.decoder_blocks == 0 or not isinstance(model.config.head, Unembed):
        raise InputError("this model does not write text: a generation needs a decoder with the head 'unembed'")
    if tokens < 1:
        raise InputError(f"{tokens} tokens were asked for: give 1 or more")
    texts = read_texts(model, prompt, target)
    if texts[-1].ids.shape[0] != 1:
        raise InputError(f"{texts[-1].ids.shape[0]} prompts came: trace the generation of one at a time")
    traces = []
    for _ in range(tokens):
        trace, scores = run(model, texts, Selection(sites, blocks, heads, None, memory_limit))
        traces.append(trace)
        next_id = scores[:, -1:].argmax(-1)
        texts[-1] = replace(texts[-1], ids=torch.cat((texts[-1].ids, next_id), 1))
    return traces
