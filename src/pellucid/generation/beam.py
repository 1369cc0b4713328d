"""Beam search as tensors: the likeliest beginnings of each prompt's text, and the best texts that have ended.

The rules are those of transformers. Of the `count` likeliest beginnings, those that end are set aside by their score,
sum of log-probabilities / length**length_penalty; enough others are kept that as many go on. A prompt is done when its
likeliest beginning, at its present length, scores less than the worst of `count` texts set aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.generation.lanes import Lanes, Scores
from pellucid.generation.request import Beams
from pellucid.generation.sampling import Dials, adjusted
from pellucid.model.cache import store

# Less than the sum of any text, but finite: a beam that never was is still ranked.
NEVER = -1.0e9


@dataclass
class Texts:
    """Texts of equal rank side by side: their ids, the log-probabilities of these, and what the texts score."""

    ids: Int[Tensor, "prompt beam limit"]
    logprobs: Float[Tensor, "prompt beam limit"]
    scores: Float[Tensor, "prompt beam"]
    lengths: Int[Tensor, "prompt beam"]

    def pick(self, which: Int[Tensor, "prompt chosen"]) -> Texts:
        along = which[..., None].expand(-1, -1, self.ids.shape[-1])
        ids, logprobs = self.ids.gather(1, along), self.logprobs.gather(1, along)
        return Texts(ids, logprobs, self.scores.gather(1, which), self.lengths.gather(1, which))

    def beside(self, other: Texts) -> Texts:
        return Texts(*(torch.cat(pair, 1) for pair in zip(self.tensors(), other.tensors(), strict=True)))

    def become(self, other: Texts) -> None:
        store(list(self.tensors()), list(other.tensors()))

    def copy(self) -> Texts:
        return Texts(*(tensor.clone() for tensor in self.tensors()))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.ids, self.logprobs, self.scores, self.lengths


@dataclass(kw_only=True)
class Searched(Lanes):
    """The lanes of a prompt are its beams. limit: the most tokens. open: prompts whose texts may still get better."""

    beams: Beams
    running: Texts
    ended: Texts
    stops: Bool[Tensor, " vocab"]
    stop_count: int
    limit: Int[Tensor, ""]
    open: Bool[Tensor, "prompt 1"]
    done: Bool[Tensor, ""]
    seen: Bool[Tensor, "batch vocab"] | None = None

    def take(self, scores: Scores) -> None:
        shares, sums = self._sums(scores)
        kept = min(max(2, 1 + self.stop_count) * self.beams.count, sums.shape[1])
        best, flat = sums.topk(kept)
        vocab = scores.shape[-1]
        parent, token = flat // vocab, flat % vocab
        ends = self.stops[token] | (self.count + 1 >= self.limit)
        texts = self._longer(parent, token, shares.flatten(1).gather(1, flat), best)
        self._set_aside(texts, ends)
        going_on = (best + ends * NEVER).topk(self.beams.count)
        self._go_on(texts.pick(going_on.indices), going_on.values, parent.gather(1, going_on.indices))
        self.count.add_(1)
        self._look_ahead()
        self.done.copy_(~self.open.any() | ends.all())

    def _sums(self, scores: Scores) -> tuple[Tensor, Float[Tensor, "prompt candidates"]]:
        """The log-probability of each token, by prompt and beam, and that of the text that it would make."""
        scores = scores.float()
        shares = scores.log_softmax(-1)
        self.broken.logical_or_(shares.isnan().any(-1))
        prompts, count = self.running.scores.shape
        allowed = adjusted(shares, self.dials, self.seen).reshape(prompts, count, -1)
        sums = allowed + self.running.scores[..., None]
        return shares.reshape(prompts, count, -1), sums.flatten(1)

    def _longer(self, parent: Tensor, token: Tensor, share: Tensor, sums: Tensor) -> Texts:
        """The beams that were chosen, each with one more token."""
        texts = self.running.pick(parent)
        place = self.count[None]
        ids = texts.ids.index_copy(2, place, token[..., None])
        return Texts(ids, texts.logprobs.index_copy(2, place, share[..., None]), sums, texts.lengths + 1)

    def _set_aside(self, texts: Texts, ends: Bool[Tensor, "prompt kept"]) -> None:
        """Of the best `count`, those that have ended: kept if their prompt is open and they beat what is there."""
        among_best = torch.arange(ends.shape[1], device=ends.device) < self.beams.count
        scores = texts.scores / (self.count + 1).float() ** self.beams.length_penalty
        scores = scores + (~(ends & among_best)) * NEVER + (~self.open) * NEVER
        both = self.ended.beside(Texts(texts.ids, texts.logprobs, scores, texts.lengths))
        self.ended.become(both.pick(both.scores.topk(self.beams.count).indices))

    def _go_on(self, texts: Texts, sums: Tensor, parent: Tensor) -> None:
        prompts, count = parent.shape
        rows = (parent + count * torch.arange(prompts, device=parent.device)[:, None]).flatten()
        self.running.become(Texts(texts.ids, texts.logprobs, sums, texts.lengths))
        token = texts.ids.index_select(2, self.count[None]).reshape(-1, 1)
        self.token.copy_(token)
        if self.seen is not None:
            store([self.seen], [self.seen.index_select(0, rows).scatter(1, token, True)])
        if self.cache is not None:
            self.cache.reorder(rows)

    def _look_ahead(self) -> None:
        """Whether the likeliest beginning of each prompt may still become better than the worst text set aside."""
        hope = self.running.scores[:, :1] / self.count.float() ** self.beams.length_penalty
        worst = self.ended.scores.amin(1, keepdim=True)
        self.open.logical_and_(hope > worst.masked_fill(worst <= NEVER / 2, NEVER))

    @property
    def written(self) -> Int[Tensor, "batch room"]:
        return self.running.ids.flatten(0, 1)

    def own_tensors(self) -> Iterator[Tensor]:
        yield from (*self.running.tensors(), *self.ended.tensors())
        yield from (self.stops, self.limit, self.open, self.done)
        if self.seen is not None:
            yield self.seen

    @property
    def shape(self) -> tuple[object, ...]:
        return ("searched", *self.running.ids.shape, self.beams, self.stop_count, self.dials.parts)


def searched(
    prompts: int,
    beams: Beams,
    stops: Sequence[int],
    dials: Dials,
    room: int,
    limit: int,
    seen: Bool[Tensor, "batch vocab"] | None,
    vocab: int,
    device: torch.device,
) -> Searched:
    """Before the first token. room: how many tokens the tensors hold, at least `limit`."""

    def texts(first: float) -> Texts:
        shape = (prompts, beams.count)
        # All beams begin alike: only the first counts, or every text would be found `count` times.
        scores = torch.full(shape, NEVER, device=device)
        scores[:, 0] = first
        ids = torch.zeros(*shape, room, dtype=torch.long, device=device)
        lengths = torch.zeros(shape, dtype=torch.long, device=device)
        return Texts(ids, torch.zeros(*shape, room, device=device), scores, lengths)

    ends = torch.zeros(vocab, dtype=torch.bool, device=device)
    ends[list(stops)] = True
    return Searched(
        token=torch.zeros(prompts * beams.count, 1, dtype=torch.long, device=device),
        count=torch.tensor(0, device=device),
        broken=torch.zeros(prompts * beams.count, dtype=torch.bool, device=device),
        dials=dials,
        beams=beams,
        running=texts(0.0),
        ended=texts(NEVER),
        stops=ends,
        stop_count=len(stops),
        limit=torch.tensor(limit, device=device),
        open=torch.ones(prompts, 1, dtype=torch.bool, device=device),
        done=torch.tensor(False, device=device),
        seen=seen,
    )
