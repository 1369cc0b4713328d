"""The tensors of a run, one lane per text being written, and the step that all lanes take together.

A step changes the tensors in place, has fixed shapes and waits for nothing: it runs as it is, compiled or captured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from pellucid.errors import InputError
from pellucid.generation.sampling import Dials, Keys, choose
from pellucid.model.cache import Cache
from pellucid.model.transformer import Transformer

Scores = Float[Tensor, "batch vocab"]


@dataclass(kw_only=True)
class Lanes(ABC):
    """token: what each lane reads next. count: how many tokens each has written. broken: whose scores were no numbers.

    cache: None where everything is recomputed for each token.
    """

    token: Int[Tensor, "batch 1"]
    count: Int[Tensor, ""]
    broken: Bool[Tensor, " batch"]
    dials: Dials
    cache: Cache | None = None

    @abstractmethod
    def take(self, scores: Scores) -> None:
        """Choose the next tokens by their scores, and write them down."""

    @property
    @abstractmethod
    def written(self) -> Int[Tensor, "batch room"]:
        """The tokens of each lane, in room for more."""

    @abstractmethod
    def own_tensors(self) -> Iterator[Tensor]:
        """Those of this kind of lanes."""

    @property
    @abstractmethod
    def shape(self) -> tuple[object, ...]:
        """All that a graph of the step depends on, besides the cache."""

    def tensors(self) -> Iterator[Tensor]:
        """All that a step reads or writes, in a fixed order."""
        yield from (self.token, self.count, self.broken)
        yield from (getattr(self.dials, name) for name in self.dials.parts)
        yield from self.own_tensors()
        if self.cache is not None:
            yield from self.cache.tensors()

    def check(self) -> None:
        if bool(self.broken.any()):
            raise InputError(
                "the model's scores are not numbers (NaN or infinite), so no token can be chosen: check the weights, "
                "or use a dtype of a wider range (float32, bfloat16)"
            )


@dataclass(kw_only=True)
class Drawn(Lanes):
    """Each lane is a text of its own: the likeliest token, or a draw.

    seen: which tokens the text of each lane holds; None where no penalty asks for it.
    """

    out: Int[Tensor, "batch limit"]
    logprobs: Float[Tensor, "batch limit"]
    keys: Keys
    seen: Bool[Tensor, "batch vocab"] | None = None

    def take(self, scores: Scores) -> None:
        token = choose(scores, self.dials, self.keys, self.count, self.seen)[:, None]
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        total = scores.logsumexp(-1, keepdim=True)
        self.broken.logical_or_(~total[:, 0].isfinite())
        place = self.count[None]
        self.out.index_copy_(1, place, token)
        self.logprobs.index_copy_(1, place, (scores.gather(1, token) - total).float())
        self.token.copy_(token)
        if self.seen is not None:
            self.seen.scatter_(1, token, True)
        self.count.add_(1)

    @property
    def written(self) -> Int[Tensor, "batch room"]:
        return self.out

    def own_tensors(self) -> Iterator[Tensor]:
        yield from (self.out, self.logprobs, self.keys)
        if self.seen is not None:
            yield self.seen

    @property
    def shape(self) -> tuple[object, ...]:
        return ("drawn", *self.out.shape, self.dials.parts)


def drawn(keys: Keys, dials: Dials, limit: int, seen: Bool[Tensor, "batch vocab"] | None) -> Drawn:
    batch, device = keys.shape[0], keys.device
    return Drawn(
        token=torch.zeros(batch, 1, dtype=torch.long, device=device),
        count=torch.tensor(0, device=device),
        broken=torch.zeros(batch, dtype=torch.bool, device=device),
        dials=dials,
        out=torch.zeros(batch, limit, dtype=torch.long, device=device),
        logprobs=torch.zeros(batch, limit, device=device),
        keys=keys,
        seen=seen,
    )


def step(network: Transformer, lanes: Lanes) -> None:
    """Read the last token of each lane, and write the next."""
    assert lanes.cache is not None
    lanes.take(network.step(lanes.token, lanes.cache))


def padded(
    prompts: Sequence[Sequence[int]], device: torch.device, *, left: bool, to: int | None = None
) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"] | None]:
    """Ragged ids as one tensor, and which of them are real; None where all are. Decoders are padded on the left."""
    longest = max(max(map(len, prompts)), to or 0)
    room = [longest - len(ids) for ids in prompts]
    sides = [(more, 0) if left else (0, more) for more in room]
    ids = torch.stack([functional.pad(torch.tensor(each), side) for each, side in zip(prompts, sides, strict=True)])
    real = torch.stack(
        [
            functional.pad(torch.ones(len(each), dtype=torch.bool), side)
            for each, side in zip(prompts, sides, strict=True)
        ]
    )
    return ids.to(device), None if not any(room) else real.to(device)


def tokens_seen(prompts: Sequence[Sequence[int]], vocab: int, device: torch.device) -> Bool[Tensor, "batch vocab"]:
    seen = torch.zeros(len(prompts), vocab, dtype=torch.bool)
    for row, ids in enumerate(prompts):
        seen[row, list(ids)] = True
    return seen.to(device)
