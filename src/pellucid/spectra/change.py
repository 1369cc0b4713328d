"""What a comparison of two models gives: frozen data that the command line and a notebook format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pellucid.spectra.weights import Spectrum


@dataclass(frozen=True)
class Change:
    """The difference of two matrices.

    relative: its Frobenius norm over that of the base's matrix. floor: how large rounding alone can make a singular
      value, which the numerical rank allows for. factored: whether it was never written down.
    """

    spectrum: Spectrum
    relative: float
    floor: float
    factored: bool

    @property
    def is_zero(self) -> bool:
        return self.spectrum.ranks.energy == 0

    def to_json(self) -> dict[str, Any]:
        return {
            **self.spectrum.to_json(),
            "relative": self.relative,
            "rounding_floor": self.floor,
            "factored": self.factored,
        }


@dataclass(frozen=True)
class HeadChange:
    """One head on one text. weights: of query, key, value and output. scores: None where there are none.

    baseline: the same of the base with noise of the same size in each changed weight.
    """

    stack: str
    block: int
    head: int
    kind: str
    text: int
    weights: dict[str, Change]
    scores: Change | None
    attention: Change
    baseline: HeadChange | None = None

    @property
    def changes(self) -> dict[str, Change]:
        """All that there are, by name."""
        scores = {} if self.scores is None else {"scores": self.scores}
        return {**self.weights, **scores, "attention": self.attention}

    def to_json(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "block": self.block,
            "head": self.head,
            "kind": self.kind,
            "text": self.text,
            "weights": {name: change.to_json() for name, change in self.weights.items()},
            "scores": None if self.scores is None else self.scores.to_json(),
            "attention": self.attention.to_json(),
            "baseline": None if self.baseline is None else self.baseline.to_json(),
        }


@dataclass(frozen=True)
class Against:
    """All heads of a model beside those of its base."""

    model: str
    base: str
    tokens: int
    tau: tuple[float, ...]
    heads: tuple[HeadChange, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "against": self.base,
            "tokens": self.tokens,
            "tau": list(self.tau),
            "heads": [head.to_json() for head in self.heads],
        }

    def rows(self) -> list[dict[str, Any]]:
        """A flat row per head and matrix, without singular values; the baseline beside it."""
        return [
            {
                **{key: getattr(head, key) for key in ("stack", "block", "head", "kind", "text")},
                "matrix": name,
                **_flat(change, self.tau),
                **(
                    {}
                    if head.baseline is None
                    else {f"baseline_{key}": each for key, each in _flat(head.baseline.changes[name], self.tau).items()}
                ),
            }
            for head in self.heads
            for name, change in head.changes.items()
        ]


def _flat(change: Change, taus: tuple[float, ...]) -> dict[str, Any]:
    ranks = change.spectrum.ranks
    effective = {f"rank_{tau:g}": ranks.at(tau) for tau in taus}
    return {
        "size": min(ranks.shape),
        "relative": change.relative,
        **effective,
        "numerical": ranks.numerical,
        "stable": ranks.stable,
    }
