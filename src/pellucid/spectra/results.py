"""What a measurement of heads gives: frozen data that the command line, the page and a notebook format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

    from pellucid.spectra.density import Density


@dataclass(frozen=True)
class Decay:
    """sigma_i = scale i^-alpha, fitted in logarithms; None where there are fewer than three values to fit."""

    alpha: float | None
    scale: float | None
    r2: float | None

    def to_json(self) -> dict[str, float | None]:
        return {"alpha": self.alpha, "scale": self.scale, "r2": self.r2}


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of one head.

    size: how many singular values there are; values: those that were computed, the largest first.
    captured: the share of the energy that the computed values hold.
    effective: for each tau, the ends between which the effective rank lies; equal where it is exact.
    top_tenth: the ends between which the share of energy in the top tenth lies.
    entropy_rank: exp of the entropy of the singular values; None where it was not asked for.
    settled: whether the top values stopped changing before the budget was spent.
    failure: the probability with which a lower end may be too high; 0 where it is certain.
    """

    method: str
    size: int
    energy: float
    values: tuple[float, ...]
    captured: float
    effective: dict[float, tuple[int, int]]
    stable: float
    decay: Decay
    top_tenth: tuple[float, float]
    density: Density | None = None
    entropy_rank: float | None = None
    settled: bool = True
    failure: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "size": self.size,
            "energy": self.energy,
            "singular_values": list(self.values),
            "captured": self.captured,
            "effective_rank": {str(tau): list(ends) for tau, ends in self.effective.items()},
            "stable_rank": self.stable,
            "decay": self.decay.to_json(),
            "top_tenth": list(self.top_tenth),
            "entropy_rank": self.entropy_rank,
            "density": None if self.density is None else self.density.to_json(),
            "settled": self.settled,
            "failure": self.failure,
        }


@dataclass(frozen=True)
class Statistics:
    """Means over the queries that may look at something.

    entropy: of a row, in nats. sink: the weight on the first key. heaviest: the largest mean weight of a key.
    distance: between query and key. diagonal, previous: the weight on the query's own slot and on the one before.
    """

    entropy: float
    sink: float
    heaviest: float
    heaviest_key: int
    distance: float
    diagonal: float
    previous: float

    def to_json(self) -> dict[str, float]:
        return {
            "entropy": self.entropy,
            "sink": self.sink,
            "heaviest": self.heaviest,
            "heaviest_key": self.heaviest_key,
            "distance": self.distance,
            "diagonal": self.diagonal,
            "previous": self.previous,
        }


@dataclass(frozen=True)
class Measured:
    """One head on one text."""

    spectrum: Spectrum
    statistics: Statistics

    def to_json(self) -> dict[str, Any]:
        return {**self.spectrum.to_json(), **self.statistics.to_json()}


@dataclass(frozen=True)
class Head:
    """Where a head stands, what was measured of it, and the same of random weights."""

    stack: str
    block: int
    head: int
    kind: str
    text: int
    tokens: int
    keys: int
    measured: Measured
    baseline: Measured | None = None

    @property
    def place(self) -> str:
        """The attention it belongs to, in words."""
        return f"{self.stack} {self.block}" + (" cross" if self.kind == "cross" else "")

    @property
    def name(self) -> str:
        return f"{self.place} head {self.head}"

    def to_json(self) -> dict[str, Any]:
        return {
            "stack": self.stack,
            "block": self.block,
            "head": self.head,
            "kind": self.kind,
            "text": self.text,
            "tokens": self.tokens,
            "keys": self.keys,
            **self.measured.to_json(),
            "baseline": None if self.baseline is None else self.baseline.to_json(),
        }


@dataclass(frozen=True)
class Spectra:
    """All measured heads of a model."""

    model: str
    tokens: int
    tau: tuple[float, ...]
    heads: tuple[Head, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokens": self.tokens,
            "tau": list(self.tau),
            "heads": [head.to_json() for head in self.heads],
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per head, without singular values: the table that all places show."""
        return [_row(head, self.tau) for head in self.heads]

    def to_frame(self) -> DataFrame:
        """The rows as a pandas DataFrame."""
        try:
            from pandas import DataFrame
        except ImportError:
            from pellucid.errors import InputError

            raise InputError("a DataFrame needs pandas: pip install pandas, or use rows()") from None
        return DataFrame(self.rows())

    def _repr_html_(self) -> str:
        """What a notebook shows: a row per head, the baseline beside what was measured."""
        from pellucid.spectra.notebook import spectra_fragment

        return spectra_fragment(self)


def _row(head: Head, taus: tuple[float, ...]) -> dict[str, Any]:
    row: dict[str, Any] = {
        name: getattr(head, name) for name in ("stack", "block", "head", "kind", "text", "tokens", "keys")
    }
    for prefix, measured in (("", head.measured), ("baseline_", head.baseline)):
        if measured is None:
            continue
        row |= {f"{prefix}{name}": value for name, value in _flat(measured, taus).items()}
    return row


def _flat(measured: Measured, taus: tuple[float, ...]) -> dict[str, Any]:
    found = measured.spectrum
    flat: dict[str, Any] = {"method": found.method, "energy": found.energy, "stable_rank": found.stable}
    for tau in taus:
        flat[f"rank_{tau}_low"], flat[f"rank_{tau}_high"] = found.effective[tau]
    flat |= {"alpha": found.decay.alpha, "r2": found.decay.r2, "captured": found.captured}
    flat |= {"top_tenth_low": found.top_tenth[0], "top_tenth_high": found.top_tenth[1]}
    flat |= {"entropy_rank": found.entropy_rank, "settled": found.settled, "failure": found.failure}
    return {**flat, **measured.statistics.to_json()}
