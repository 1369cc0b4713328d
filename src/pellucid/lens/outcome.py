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


def outcome(model: Model, edited: Edited) -> Outcome:
    """Of the first text."""
    before, after = edited.before[0], edited.after[0]
    if isinstance(model.config.head, c.Pool):
        return Outcome("vector", vector=float((after - before).norm() / before.norm().clamp(min=1e-30)))
    if before.dim() == 1:
        return Outcome("text", **_said(model, before, after))
    variations, changed = _over_tokens(before, after)
    writes = isinstance(model.config.head, c.Unembed) and model.config.decoder_blocks > 0
    place = len(before) - 1 if writes else int(variations.argmax())
    said = _said(model, before[place], after[place])
    return Outcome("next" if writes else "token", place, **said, changed=changed, places=len(before))


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
    best = {i for row in (p, q) for i in row.topk(min(TOP, row.numel())).indices.tolist()}
    ranked = sorted(best, key=lambda i: -float(p[i]))
    # A share that underflowed counts as the smallest number: an infinite divergence would say less.
    tiny = torch.finfo(torch.float64).tiny
    return {
        "entries": tuple((readable(_name(model, i)), float(p[i]), float(q[i])) for i in ranked),
        "variation": float((p - q).abs().sum() / 2),
        "divergence": max(float((p * (p.clamp(min=tiny) / q.clamp(min=tiny)).log()).sum()), 0.0),
    }


def _name(model: Model, entry: int) -> str:
    if isinstance(model.config.head, c.Classify | c.Tag):
        return model.labels[entry] if entry < len(model.labels) else f"LABEL_{entry}"
    return str(entry) if model.tokenizer is None else model.tokenizer.token(entry)
