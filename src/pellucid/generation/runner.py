"""Who takes the steps: a loop over a cache, a compiled graph, or, without a cache, the whole network every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.generation.beam import searched
from pellucid.generation.engine import Engine, engine_for
from pellucid.generation.lanes import Lanes, drawn, padded, step, tokens_seen
from pellucid.generation.memory import check_room, first_capacity, free_bytes
from pellucid.generation.request import Request, Run
from pellucid.generation.sampling import dials_of, noise_keys
from pellucid.generation.twin import is_true, lay_out_for_one_row
from pellucid.model.cache import source_bytes
from pellucid.model.transformer import Transformer

_RESTING: WeakKeyDictionary[Transformer, Transformer] = WeakKeyDictionary()


@runtime_checkable
class Runner(Protocol):
    """Takes steps; its lanes are where their outcome is found."""

    @property
    def lanes(self) -> Lanes: ...
    def advance(self, steps: int) -> None: ...


@dataclass
class Stepping:
    """One step after another, in room that is doubled when it is full."""

    network: Transformer
    lanes: Lanes

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        assert self.lanes.cache is not None
        for _ in range(steps):
            make_room(self.network, self.lanes, 1)
            step(self.network, self.lanes)
            self.lanes.cache.advance(1)


@dataclass
class Replaying:
    """The same steps from a graph that was captured once for lanes of this shape."""

    network: Transformer
    engine: Engine
    run: Run

    @property
    def lanes(self) -> Lanes:
        return self.engine.lanes

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        cache = self.lanes.cache
        assert cache is not None
        if cache.length + steps > cache.capacity:
            lanes = self.engine.take_lanes()
            make_room(self.network, lanes, steps)
            self.engine = engine_for(self.network, lanes, self.run)
        self.engine.replay(steps)


@dataclass
class Recomputing:
    """The whole text, source and all, through the network for every token: what a cache spares."""

    network: Transformer
    lanes: Lanes
    texts: Inputs
    written: int = 0

    @torch.no_grad()
    def advance(self, steps: int) -> None:
        for _ in range(steps):
            self.lanes.take(self._scores())
            self.written += 1

    def _scores(self) -> Float[Tensor, "batch vocab"]:
        texts, more = self.texts, self.lanes.written[:, : self.written]
        ids, padding = torch.cat((texts.ids, more), 1), texts.padding
        if texts.source is not None:
            return self.network(texts.source, ids, padding=texts.source_padding)[:, -1]
        if padding is not None:
            padding = torch.cat((padding, torch.ones_like(more, dtype=torch.bool)), 1)
        return self.network.decode(ids, padding=padding, last=True)[:, 0]


@dataclass(frozen=True)
class Inputs:
    """What is read before the first token."""

    ids: Int[Tensor, "batch length"]
    padding: Bool[Tensor, "batch length"] | None
    source: Int[Tensor, "batch source"] | None = None
    source_padding: Bool[Tensor, "batch source"] | None = None

    def repeated(self, times: int) -> Inputs:
        every = (self.ids, self.padding, self.source, self.source_padding)
        return Inputs(*(None if x is None else x.repeat_interleave(times, 0) for x in every))  # type: ignore[arg-type]


def resting(network: Transformer) -> Transformer:
    """The network on fused kernels, without dropout and with its adapters in its weights: itself, or a twin made once.

    So what was compiled or quantised for the twin is found again by the next call.
    """
    network = network.plain()
    if network.kernel == "fused" and not network.training:
        return network
    if network not in _RESTING or not is_true(_RESTING[network], network):
        _RESTING[network] = network.twin("fused").eval()
    return _RESTING[network]


@torch.no_grad()
def begin(request: Request, network: Transformer) -> Runner:
    """Read the prompts, and write the first token of each lane."""
    inputs = _inputs(request)
    lanes = _lanes(request)
    if not request.cache:
        runner = Recomputing(network, lanes, inputs.repeated(_per_prompt(request)))
        runner.advance(1)
        return runner
    if len(lanes.token) == 1 and request.model.device.type == "cpu" and request.run.quantize is None:
        lay_out_for_one_row(network)
    length, config = inputs.ids.shape[1], network.config
    capacity = first_capacity(length, request.max_tokens)
    # An engine has a cache of its own, and a third stands by while its graph is captured.
    copies = 3 if request.compiles else 1
    rows, weight = len(lanes.token), network.tokens.weight
    sources = 0
    if inputs.source is not None:
        sources = source_bytes(config, len(inputs.source), inputs.source.shape[1], weight.dtype)
    check_room(config, rows, capacity, weight.dtype, free_bytes(weight.device), copies=copies, sources=sources)
    cache = network.new_cache(len(inputs.ids), capacity)
    memory = None
    if inputs.source is not None:
        memory = network.encode(inputs.source, padding=inputs.source_padding)
    scores = network.decode(
        inputs.ids, memory, source_padding=inputs.source_padding, padding=inputs.padding, cache=cache, last=True
    )
    cache.repeat(_per_prompt(request))
    cache.start_steps(inputs.ids.device)
    lanes.cache = cache
    lanes.take(scores[:, 0].repeat_interleave(_per_prompt(request), 0))
    if not request.compiles or request.max_tokens == 1:
        return Stepping(network, lanes)
    return Replaying(network, engine_for(network, lanes, request.run), request.run)


def make_room(network: Transformer, lanes: Lanes, steps: int) -> None:
    """Double the cache until so many more tokens fit."""
    cache = lanes.cache
    assert cache is not None
    capacity = cache.capacity
    while cache.length + steps > capacity:
        capacity *= 2
    if capacity > cache.capacity:
        weight = network.tokens.weight
        check_room(network.config, cache.batch, capacity, weight.dtype, free_bytes(weight.device))
        cache.grow(capacity)


def bucket(count: int) -> int:
    """The next power of two: a graph is captured for each of these, not for every number."""
    return 1 << (count - 1).bit_length()


def _per_prompt(request: Request) -> int:
    return request.beams.count if request.beams.count > 1 else request.samples


def _inputs(request: Request) -> Inputs:
    """For a graph, the first prompt stands in for those that the bucket has too few."""
    device = request.model.device
    more = bucket(len(request.prompts)) - len(request.prompts) if request.compiles else 0
    ids, padding = padded((*request.prompts, *request.prompts[:1] * more), device, left=True)
    if request.sources is None:
        return Inputs(ids, padding)
    sources = (*request.sources, *request.sources[:1] * more)
    longest = max(16, bucket(max(map(len, sources)))) if request.compiles else None
    source, real = padded(sources, device, left=False, to=longest)
    if request.compiles and real is None:
        real = torch.ones_like(source, dtype=torch.bool)
    return Inputs(ids, padding, source, real)


def _lanes(request: Request) -> Lanes:
    device, vocab = request.model.device, request.model.config.vocab
    compiles, each = request.compiles, _per_prompt(request)
    prompts = bucket(len(request.prompts)) if compiles else len(request.prompts)
    room = bucket(max(64, request.max_tokens)) if compiles else request.max_tokens
    dials = dials_of(request.temperature, request.filters, request.banned, vocab, device)
    seen = None
    if dials.penalty is not None:
        more = request.prompts[:1] * (prompts - len(request.prompts))
        seen = tokens_seen((*request.prompts, *more), vocab, device).repeat_interleave(each, 0)
    if request.beams.count > 1:
        stops = sorted(request.stop_ids)
        return searched(prompts, request.beams, stops, dials, room, request.max_tokens, seen, vocab, device)
    seeds = (*request.seeds, *request.seeds[:1] * (prompts - len(request.seeds)))
    return drawn(noise_keys(seeds, request.samples, device), dials, room, seen)
