"""What two models say of one text: how far apart they are at every place, and what each holds likeliest.

With p and q the shares that the first and the second give to all words (or labels) at a place:
variation    half the sum of |p - q|: the probability that would have to move
divergence   the sum of p ln(p / q) in nats (Kullback and Leibler)
loss         the mean of -ln of the share that the text's own next token gets, for models that write
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn import functional

from pellucid.errors import InputError
from pellucid.lens.outcome import TOP, Kind, entry_name, kind_of, likeliest_of_either
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.pretrained.tokenizer import Tokenizer

Ids = tuple[tuple[int, ...], ...]
Entry = tuple[str, float, float]
# Why predictions have no partner: another kind of output, two texts against one, other labels, other words, the text
# cut into other tokens.
Reason = Literal["kind", "texts", "labels", "vocabulary", "tokens"]
_BAND = 2**22  # shares that exist in float64 at once


@dataclass(frozen=True)
class Said:
    """What one model says of a text. scores: before the softmax, or the vector where the model only pools."""

    model: Model
    ids: Ids
    kind: Kind
    scores: Float[Tensor, "place entry"]

    def likeliest(self, place: int, top: int = TOP) -> tuple[tuple[str, float], ...]:
        """Words or labels with their shares; none for a vector."""
        if self.kind == "vector":
            return ()
        shares = self.scores[place].double().softmax(-1)
        best = shares.topk(min(top, shares.numel()))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple((entry_name(self.model, entry), share) for entry, share in pairs)


@dataclass(frozen=True)
class Place:
    """entries: (word or label, share of the first, share of the second), the likeliest of either."""

    variation: float
    divergence: float
    changed: bool
    entries: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        entries = [{"token": name, "first": first, "second": second} for name, first, second in self.entries]
        return {**vars(self), "entries": entries}


@dataclass(frozen=True)
class SideBySide:
    """Two models on one text. losses: where they write. distance: of their vectors, over the length of the first's.

    identical: whether they gave the same scores to the bit.
    """

    kind: Kind
    places: tuple[Place, ...]
    identical: bool
    losses: tuple[float, float] | None = None
    distance: float | None = None

    @property
    def farthest(self) -> tuple[int, ...]:
        """The places, those with the largest variation first."""
        return tuple(sorted(range(len(self.places)), key=lambda place: -self.places[place].variation))

    def to_json(self) -> dict[str, Any]:
        places = [place.to_json() for place in self.places]
        return {**vars(self), "places": places, "farthest": list(self.farthest)}


def say(model: Model, ids: Ids) -> Said:
    """Run a model on a text, or on source and target."""
    scores = model.logits(*([list(text)] for text in ids))[0]
    return Said(model, ids, kind_of(model.config), scores if scores.dim() == 2 else scores[None])


def why_apart(first: Said, second: Said) -> Reason | None:
    """Why the predictions of two models cannot be set side by side; None where they can."""
    ours, theirs = first.model.config.head, second.model.config.head
    if first.kind != second.kind or ours.kind != theirs.kind:
        return "kind"
    if len(first.ids) != len(second.ids):
        return "texts"
    if isinstance(ours, c.Tag | c.Classify) and not _same_labels(first, second):
        return "labels"
    if first.kind == "text":
        return None
    if not same_vocabulary(first.model, second.model):
        return "vocabulary"
    if first.ids != second.ids:
        return "tokens"
    return None if first.scores.shape == second.scores.shape else "kind"


def _same_labels(first: Said, second: Said) -> bool:
    return first.model.labels == second.model.labels and first.scores.shape[1] == second.scores.shape[1]


def same_vocabulary(first: Model, second: Model) -> bool:
    """Whether an id is the same word in both."""
    if first.config.vocab != second.config.vocab or first.config.source_vocab != second.config.source_vocab:
        return False
    ours, theirs = first.tokenizer, second.tokenizer
    if ours is None or theirs is None or ours is theirs:
        return ours is theirs
    known = range(first.config.vocab)
    return ours.size == theirs.size and all(_word(ours, entry) == _word(theirs, entry) for entry in known)


def _word(tokenizer: Tokenizer, entry: int) -> str | None:
    """Tables of scores are often longer than the vocabulary."""
    try:
        return tokenizer.token(entry)
    except InputError:
        return None


@torch.no_grad()
def side_by_side(first: Said, second: Said) -> SideBySide:
    """For two models between which `why_apart` finds nothing."""
    identical = torch.equal(first.scores, second.scores)
    if first.kind == "vector":
        old, new = first.scores.double(), second.scores.double()
        return SideBySide("vector", (), identical, distance=float((new - old).norm() / old.norm().clamp(min=1e-30)))
    places: list[Place] = []
    step = max(_BAND // first.scores.shape[1], 1)
    for start in range(0, len(first.scores), step):
        logs = [one.scores[start : start + step].double().log_softmax(-1) for one in (first, second)]
        places += _places(first.model, *logs)
    return SideBySide(first.kind, tuple(places), identical, _losses(first, second))


def _places(model: Model, log_p: Float64[Tensor, "place entry"], log_q: Float64[Tensor, "place entry"]) -> list[Place]:
    p, q = log_p.exp(), log_q.exp()
    variations = ((p - q).abs().sum(-1) / 2).tolist()
    # Rounding makes the divergence of equal shares a little less than nothing.
    divergences = (p * (log_p - log_q)).sum(-1).clamp(min=0).tolist()
    changed = (p.argmax(-1) != q.argmax(-1)).tolist()
    entries = (likeliest_of_either(model, *pair) for pair in zip(p, q, strict=True))
    return [Place(*found) for found in zip(variations, divergences, changed, entries, strict=True)]


def _losses(first: Said, second: Said) -> tuple[float, float] | None:
    text = first.ids[-1]
    if first.kind != "next" or len(text) < 2:
        return None
    own = torch.tensor(text[1:], device=first.scores.device)
    ours, theirs = (float(functional.cross_entropy(one.scores[:-1].double(), own)) for one in (first, second))
    return ours, theirs
