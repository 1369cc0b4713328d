"""From scores to a token: penalty, temperature, the cut of the tail, and noise.

All of it is plain tensor operations without a state, so that a captured graph can hold it. A sample is the largest of
score + Gumbel noise, and the noise is a hash of (seed, sample, step, token): it does not depend on what else is in the
batch, on the device, or on how often anything was drawn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.errors import InputError

Scores = Float[Tensor, "batch vocab"]
Keys = Int[Tensor, "batch 2"]


@dataclass(frozen=True)
class Filters:
    """Which tokens can be drawn, and a penalty on those that the text holds already.

    top_k: only the k likeliest. top_p: only the likeliest that together reach this probability. min_p: only those at
    least this share as likely as the likeliest. repetition_penalty: scores of tokens of the text are divided by it if
    positive, and multiplied if negative (Keskar et al. 2019); it counts for the likeliest token too.
    """

    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k is {self.top_k}: give 1 or more, or leave it out")
        for name, value in (("top_p", self.top_p), ("min_p", self.min_p)):
            if value is not None and not 0 < value <= 1:
                raise InputError(f"{name} is {value}: give a share above 0 and up to 1, or leave it out")
        if not 0 < self.repetition_penalty < float("inf"):
            raise InputError(
                f"repetition_penalty is {self.repetition_penalty}: give a number above 0; 1 changes nothing"
            )

    @property
    def cut(self) -> bool:
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


@dataclass(frozen=True)
class Dials:
    """The options as tensors, so that turning one needs no new graph; which of them are there is part of the graph.

    temperature: None takes the likeliest. banned: tokens that are never written.
    """

    temperature: Float[Tensor, ""] | None = None
    top_k: Int[Tensor, ""] | None = None
    top_p: Float[Tensor, ""] | None = None
    min_p: Float[Tensor, ""] | None = None
    penalty: Float[Tensor, ""] | None = None
    banned: Bool[Tensor, " vocab"] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of those that are there."""
        return tuple(name for name, value in vars(self).items() if value is not None)


def dials_of(temperature: float, filters: Filters, banned: Sequence[int], vocab: int, device: torch.device) -> Dials:
    def dial(value: float | int | None) -> Tensor | None:
        return None if value is None else torch.tensor(value, device=device)

    none = torch.zeros(vocab, dtype=torch.bool, device=device)
    drawn = temperature > 0
    return Dials(
        dial(float(temperature)) if drawn else None,
        dial(filters.top_k and min(filters.top_k, vocab)) if drawn else None,
        dial(filters.top_p and float(filters.top_p)) if drawn else None,
        dial(filters.min_p and float(filters.min_p)) if drawn else None,
        dial(float(filters.repetition_penalty)) if filters.repetition_penalty != 1 else None,
        none.index_fill(0, torch.tensor(list(banned), device=device), True) if banned else None,
    )


def choose(
    scores: Scores, dials: Dials, keys: Keys, step: Int[Tensor, ""], seen: Bool[Tensor, "batch vocab"] | None
) -> Int[Tensor, " batch"]:
    """The next token of each text. seen: which tokens its text holds, for the penalty."""
    scores = adjusted(scores, dials, seen)
    if dials.temperature is None:
        return scores.argmax(-1)
    scores = cut(scores / dials.temperature, dials)
    return (scores + gumbel(keys, step, scores.shape[-1])).argmax(-1)


def adjusted(scores: Scores, dials: Dials, seen: Bool[Tensor, "batch vocab"] | None) -> Scores:
    """In float32 at least, with the penalty and without banned tokens."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if dials.penalty is not None and seen is not None:
        harder = torch.where(scores > 0, scores / dials.penalty, scores * dials.penalty)
        scores = torch.where(seen, harder, scores)
    return scores if dials.banned is None else scores.masked_fill(dials.banned, -torch.inf)


def cut(scores: Scores, dials: Dials) -> Scores:
    """-inf for what the filters leave out: each is a least score, and the highest of them counts."""
    least = torch.full_like(scores[:, :1], -torch.inf)
    if dials.top_k is not None or dials.top_p is not None:
        ranked = scores.sort(-1, descending=True).values
        if dials.top_k is not None:
            rank = torch.arange(ranked.shape[-1], device=scores.device)
            ranked = ranked.masked_fill(rank >= dials.top_k, -torch.inf)
        if dials.top_p is not None:
            shares = ranked.softmax(-1)
            before = shares.cumsum(-1) - shares
            ranked = ranked.masked_fill(before >= dials.top_p, -torch.inf)
        kept = ranked.masked_fill(ranked == -torch.inf, torch.inf)
        least = kept.amin(-1, keepdim=True)
    if dials.min_p is not None:
        least = torch.maximum(least, scores.amax(-1, keepdim=True) + dials.min_p.log())
    return scores.masked_fill(scores < least, -torch.inf)


# --- noise ---

_WORD = 0xFFFFFFFF


def noise_keys(seeds: Sequence[int], samples: int, device: torch.device) -> Keys:
    """Two words per text; the samples of a text stand side by side."""
    rows = [(seed, sample) for seed in seeds for sample in range(samples)]
    numbers = torch.tensor([(seed & _WORD, (seed >> 32) & _WORD, sample) for seed, sample in rows], device=device)
    low = mix(mix(numbers[:, 0] + 0x9E3779B9) ^ numbers[:, 2])
    return torch.stack((low, mix(mix(numbers[:, 1] ^ low) + numbers[:, 2])), 1)


def gumbel(keys: Keys, step: Int[Tensor, ""], vocab: int) -> Float[Tensor, "batch vocab"]:
    """-log(-log(1 - u)): the largest of these + log p is a draw from p. Exact to the last bit where it matters,
    which is where u is small and the noise large.
    """
    return -(-torch.log1p(-uniform(keys, step, vocab))).log()


def uniform(keys: Keys, step: Int[Tensor, ""], vocab: int) -> Float[Tensor, "batch vocab"]:
    """Between 0 and 1, both left out."""
    token = torch.arange(vocab, device=keys.device)
    first = mix(keys[:, 0] ^ mix(step + 0x7F4A7C15))
    second = mix(keys[:, 1] + step)
    bits = mix(mix(token[None] ^ first[:, None]) ^ second[:, None])
    return ((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)


def mix(x: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
    """A one-to-one scrambling of 32-bit words, held in 64 bits: no product overflows, so every device agrees."""
    x = x & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x45D9F3B) & _WORD
    return x ^ (x >> 16)
