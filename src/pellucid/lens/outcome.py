"""What a change does to a model's output, in a few numbers: what it says before and after, and how far apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pellucid.lens.edit import Edited
from pellucid.lens.view import readable
from pellucid.model import config as c
from pellucid.pretrained.facade import Model

Kind = Literal["next", "token", "text", "vector"]
Shares = Float64[Tensor, "token entry"]
TOP = 5
_BAND = 2**24  # probabilities that exist in float64 at once


@dataclass(frozen=True)
class Outcome:
    """The output of one text before and after a change.

    kind: what is said: "next", of the token after the last; "token", of the one whose prediction changed most; "text";
      or "vector", where the head only pools.
    place: which token that is; None for a whole text.
    entries: (word or label, share before, share after), the likeliest of either.
    variation: half the sum of the absolute differences there; divergence: sum p ln(p/q) of before against after.
    changed, places: for how many tokens of how many another entry became the likeliest.
    vector: the relative change of the vector.
    """

    kind: Kind
    place: int | None = None
    entries: tuple[tuple[str, float, float], ...] = ()
    variation: float = 0.0
    divergence: float = 0.0
    changed: int = 0
    places: int = 0
    vector: float = 0.0

    def to_json(self) -> dict[str, Any]:
        entries = [{"token": name, "before": before, "after": after} for name, before, after in self.entries]
        return {**vars(self), "entries": entries}


def kind_of(config: c.ModelConfig) -> Kind:
    """What a model says of a text."""
    match config.head:
        case c.Pool():
            return "vector"
        case c.Classify():
            return "text"
        case c.Unembed() if config.decoder_blocks > 0:
            return "next"
        case _:
            return "token"


def outcome(model: Model, edited: Edited) -> Outcome:
    """Of the first text."""
    before, after = edited.before[0], edited.after[0]
    kind = kind_of(model.config)
    if kind == "vector":
        return Outcome(kind, vector=float((after - before).norm() / before.norm().clamp(min=1e-30)))
    if kind == "text":
        return Outcome(kind, **_said(model, before, after))
    variations, changed = _over_tokens(before, after)
    place = len(before) - 1 if kind == "next" else int(variations.argmax())
    said = _said(model, before[place], after[place])
    return Outcome(kind, place, **said, changed=changed, places=len(before))


def _over_tokens(before: Float[Tensor, "token entry"], after: Float[Tensor, "token entry"]) -> tuple[Tensor, int]:
    """The total variation of every token's prediction, and for how many another entry became the likeliest."""
    changed = int((before.argmax(-1) != after.argmax(-1)).sum())
    return torch.cat([(p - q).abs().sum(-1) / 2 for p, q in _bands(before, after)]), changed


def _bands(before: Tensor, after: Tensor) -> Iterator[tuple[Shares, Shares]]:
    step = max(_BAND // before.shape[1], 1)
    for start in range(0, len(before), step):
        yield before[start : start + step].double(), after[start : start + step].double()


def _said(model: Model, before: Float[Tensor, " entry"], after: Float[Tensor, " entry"]) -> dict[str, Any]:
    p, q = before.double(), after.double()
    # A share that underflowed counts as the smallest number: an infinite divergence would say less.
    tiny = torch.finfo(torch.float64).tiny
    return {
        "entries": likeliest_of_either(model, p, q),
        "variation": float((p - q).abs().sum() / 2),
        "divergence": max(float((p * (p.clamp(min=tiny) / q.clamp(min=tiny)).log()).sum()), 0.0),
    }


def likeliest_of_either(
    model: Model, first: Float64[Tensor, " entry"], second: Float64[Tensor, " entry"], top: int = TOP
) -> tuple[tuple[str, float, float], ...]:
    """The likeliest words or labels of two shares, with both; the likeliest of the first come first."""
    best = {i for row in (first, second) for i in row.topk(min(top, row.numel())).indices.tolist()}
    ranked = sorted(best, key=lambda i: -float(first[i]))
    return tuple((entry_name(model, i), float(first[i]), float(second[i])) for i in ranked)


def entry_name(model: Model, entry: int) -> str:
    """The word or the label that an entry of the output stands for."""
    if isinstance(model.config.head, c.Classify | c.Tag):
        return readable(model.labels[entry] if entry < len(model.labels) else f"LABEL_{entry}")
    tokenizer = model.tokenizer
    # A table of scores may be longer than the vocabulary.
    return readable(str(entry) if tokenizer is None or entry >= tokenizer.size else tokenizer.token(entry))
