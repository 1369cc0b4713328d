"""Writing a text step by step beside the same steps without a cache: what is computed, what is kept, that both agree.

Every step is run twice: as `generate` runs it, after the kept keys and values, and from scratch, on the whole text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.generation.request import banned_ids
from pellucid.generation.runner import resting
from pellucid.model import config as c
from pellucid.model.cache import Cache, KeysAndValues
from pellucid.model.flops import decode_flops
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model

CANDIDATES = 5
Ids = Int[Tensor, "1 _"]
Scores = Float[Tensor, " vocab"]


@dataclass(frozen=True)
class Frame:
    """One step: it reads `read` tokens after `past` kept ones, and writes `token`.

    largest: the largest score of any word; change: the most that a score differs without the cache; row_change: the
    same of a kept number, None where no rows are kept. queries: the rows of queries that were computed in a block.
    held: bytes of keys and values by block; of_source: those of the source's, in all blocks.
    """

    past: int
    read: int
    token: int
    candidates: tuple[tuple[int, float], ...]
    largest: float
    change: float
    row_change: float | None
    queries: int
    queries_without: int
    held: tuple[int, ...]
    of_source: int
    flops: int
    flops_without: int


@dataclass(frozen=True, eq=False)
class Film:
    """ids: the prompt and what was written. Rows are [blocks, heads, tokens, numbers]; keys and values by group.

    end: whether the model itself ended the text. allowed: the share of the largest score that rounding may change.
    """

    ids: tuple[int, ...]
    prompt: int
    source: int
    frames: tuple[Frame, ...]
    end: bool
    allowed: float
    queries: Float[Tensor, "blocks heads tokens key_width"]
    keys: Float[Tensor, "blocks groups tokens key_width"] | None = None
    values: Float[Tensor, "blocks groups tokens value_width"] | None = None
    source_keys: Float[Tensor, "blocks groups source key_width"] | None = None
    source_values: Float[Tensor, "blocks groups source value_width"] | None = None


def why_no_cache(config: c.ModelConfig) -> str | None:
    """A word for what a model is that has nothing to keep; None for one that has."""
    if config.decoder_blocks == 0:
        return "encoder"
    if not isinstance(config.head, c.Unembed):
        return "head"
    return None if config.causal else "not_causal"


def room_for(config: c.ModelConfig, prompt: int, asked: int) -> int:
    """How many tokens can be written after a prompt: the last one is not read."""
    return asked if config.context is None else min(asked, config.context - prompt + 1)


@torch.no_grad()
def film(model: Model, ids: Sequence[Sequence[int]], tokens: int) -> Film:
    """Write up to so many tokens, each the likeliest. ids: the text, or the source and the text begun."""
    if why_no_cache(model.config) is not None:
        raise InputError("this model keeps nothing from token to token: only a causal decoder that writes text does")
    return _Shooting(model, ids).shoot(tokens)


@dataclass
class _Rows:
    """What passed through the sites of the decoder's attentions, block by block."""

    query: list[Tensor] = field(default_factory=list)
    key: list[Tensor] = field(default_factory=list)
    value: list[Tensor] = field(default_factory=list)


class _Shooting:
    def __init__(self, model: Model, ids: Sequence[Sequence[int]]) -> None:
        self.model, self.network = model, resting(model.network)
        *before, text = [torch.tensor([list(part)], device=model.device) for part in ids]
        self.source: Ids | None = before[0] if before else None
        self.text: Ids = text
        self.prompt, self.ends = text.shape[1], model.end_ids()
        self.banned = torch.tensor(banned_ids(model), dtype=torch.long, device=model.device)
        self.queries: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def shoot(self, tokens: int) -> Film:
        cache = self.network.new_cache(1, self.prompt + tokens)
        frames: list[Frame] = []
        while len(frames) < tokens and not (frames and frames[-1].token in self.ends):
            frames.append(self._frame(cache))
            written = torch.tensor([[frames[-1].token]], device=self.text.device)
            self.text = torch.cat((self.text, written), 1)
        config = self.model.config
        source = None if self.source is None else _of_source(cache)
        return Film(
            ids=tuple(self.text[0].tolist()),
            prompt=self.prompt,
            source=0 if self.source is None else self.source.shape[1],
            frames=tuple(frames),
            end=frames[-1].token in self.ends,
            allowed=_allowed(config, self.model.dtype),
            queries=torch.cat(self.queries, 2),
            keys=torch.cat(self.keys, 2) if self.keys else None,
            values=torch.cat(self.values, 2) if self.values else None,
            source_keys=None if source is None else source[0],
            source_values=None if source is None else source[1],
        )

    def _frame(self, cache: Cache) -> Frame:
        past = cache.length
        read = self.text.shape[1] - past
        with _watched(self.network) as computed:
            scores = self._read(cache)
        with _watched(self.network) as again:
            without = self._from_scratch()
        if not bool((scores + without).isfinite().all()):
            raise InputError("the model's scores are NaN or infinite, so it cannot write: check its weights")
        self.queries.append(torch.stack(computed.query)[:, 0].cpu())
        kept = _kept(cache)
        if kept is not None:
            self.keys.append(torch.stack(computed.key)[:, 0].cpu())
            self.values.append(torch.stack(computed.value)[:, 0].cpu())
        source = 0 if self.source is None else self.source.shape[1]
        config, allowed = self.model.config, scores.index_fill(0, self.banned, -torch.inf)
        chances, words = allowed.softmax(-1).topk(min(CANDIDATES, len(scores)))
        return Frame(
            past=past,
            read=read,
            token=int(allowed.argmax()),
            candidates=tuple(zip(words.tolist(), chances.tolist(), strict=True)),
            largest=float(without.abs().max()),
            change=float((scores - without).abs().max()),
            row_change=None if kept is None else _largest_change(kept, again),
            queries=computed.query[0].shape[2],
            queries_without=again.query[0].shape[2],
            held=tuple(_held(cache)),
            of_source=_source_bytes(cache),
            flops=decode_flops(config, read, past, source, source_kept=past > 0),
            flops_without=decode_flops(config, past + read, 0, source),
        )

    def _read(self, cache: Cache) -> Scores:
        """As generation does: the prompt at once, then a token a step."""
        if cache.length == 0:
            scores = self.network.decode(self.text, self._memory(), cache=cache, last=True)[0, 0]
            cache.start_steps(self.text.device)
            return scores.double()
        scores = self.network.step(self.text[:, -1:], cache)[0]
        cache.advance(1)
        return scores.double()

    def _from_scratch(self) -> Scores:
        return self.network.decode(self.text, self._memory(), last=True)[0, 0].double()

    def _memory(self) -> Tensor | None:
        return None if self.source is None else self.network.encode(self.source)


@contextmanager
def _watched(network: Transformer) -> Iterator[_Rows]:
    assert network.decoder is not None
    seen = _Rows()

    def keep(into: list[Tensor], module: nn.Module, inputs: Any, value: Tensor) -> None:
        into.append(value)

    hooks = [
        site.register_forward_hook(partial(keep, into))
        for block in network.decoder.blocks
        for site, into in zip(
            (block.attention.query, block.attention.key, block.attention.value),
            (seen.query, seen.key, seen.value),
            strict=True,
        )
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _kept(cache: Cache) -> list[tuple[Tensor, Tensor]] | None:
    """The rows that each block holds, oldest first; None where it holds sums."""
    found = []
    for block in cache.blocks:
        if not isinstance(block.own, KeysAndValues):
            return None
        filled = min(cache.length, block.own.size)
        slots = torch.arange(cache.length - filled, cache.length, device=block.own.key.device) % block.own.size
        found.append((block.own.key[0, :, slots], block.own.value[0, :, slots]))
    return found


def _largest_change(kept: list[tuple[Tensor, Tensor]], again: _Rows) -> float:
    pairs = zip(kept, again.key, again.value, strict=True)
    return max(
        float((mine.double() - other[0, :, -mine.shape[1] :].double()).abs().max())
        for (key, value), new_key, new_value in pairs
        for mine, other in ((key, new_key), (value, new_value))
    )


def _held(cache: Cache) -> Iterator[int]:
    for block in cache.blocks:
        match block.own:
            case KeysAndValues(key, value):
                filled = min(cache.length, block.own.size)
                yield key[:, :, :filled].nbytes + value[:, :, :filled].nbytes
            case running:
                yield running.state.moments.nbytes + running.state.normalizer.nbytes


def _of_source(cache: Cache) -> tuple[Tensor, Tensor] | None:
    kept = [block.cross for block in cache.blocks if isinstance(block.cross, tuple)]
    if not kept:
        return None
    return torch.stack([key[0] for key, _ in kept]).cpu(), torch.stack([value[0] for _, value in kept]).cpu()


def _source_bytes(cache: Cache) -> int:
    total = 0
    for block in cache.blocks:
        match block.cross:
            case (key, value):
                total += key.nbytes + value.nbytes
            case None:
                pass
            case state:
                total += state.moments.nbytes + state.normalizer.nbytes
    return total


def _allowed(config: c.ModelConfig, dtype: torch.dtype) -> float:
    """Each part of a block rounds its sums by a few last places, and so many of them add up like a root."""
    return 8 * torch.finfo(dtype).eps * sqrt(2 * config.decoder_blocks + 1)
