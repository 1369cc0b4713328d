"""What a report on a cache gives: frozen data that the command line and a notebook format."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pellucid.spectra.rank import Ranks

Part = Literal["key", "value", "key before rotation"]


@dataclass(frozen=True)
class Room:
    """What the cache of one text of so many tokens takes, and what the keys and values of its source do on top."""

    context: int
    bytes: int
    source_bytes: int


@dataclass(frozen=True)
class Growth:
    """How a cache grows. per_token: bytes, while no window is full; 0 where nothing is kept per token."""

    per_token: int
    formula: str
    rooms: tuple[Room, ...]

    def to_json(self) -> dict[str, Any]:
        return {"per_token": self.per_token, "formula": self.formula, "contexts": [asdict(room) for room in self.rooms]}


@dataclass(frozen=True)
class PartSpectrum:
    """One matrix of tokens x width: its singular values, the largest first, and its ranks."""

    values: tuple[float, ...]
    ranks: Ranks

    @property
    def shares(self) -> dict[float, float]:
        """The effective ranks over the width of the head: 1 where every direction is needed."""
        return {tau: rank / self.ranks.shape[1] for tau, rank in self.ranks.effective}

    def to_json(self) -> dict[str, Any]:
        shares = {str(tau): share for tau, share in self.shares.items()}
        return {**self.ranks.to_json(), "share_of_width": shares, "singular_values": list(self.values)}


@dataclass(frozen=True)
class CachedHead:
    """The keys or the values that one key-value head keeps, and the same of random weights."""

    block: int
    head: int
    kind: Literal["self", "cross"]
    part: Part
    measured: PartSpectrum
    baseline: PartSpectrum | None = None

    def to_json(self) -> dict[str, Any]:
        place = {"block": self.block, "head": self.head, "kind": self.kind, "part": self.part}
        baseline = None if self.baseline is None else self.baseline.to_json()
        return {**place, **self.measured.to_json(), "baseline": baseline}


@dataclass(frozen=True)
class Change:
    """What altering the cache did to the scores of the tokens after it.

    bytes: what the altered cache takes; of: what it took before.
    mean, largest: of the absolute changes of the scores. divergence: KL(unaltered || altered) of the distributions, in
      nats, mean over tokens. loss: how much the loss rose, in nats per token. agreement: how often the likeliest
      token stayed the same.
    """

    cache: str
    bytes: int
    of: int
    mean: float
    largest: float
    divergence: float
    loss: float
    agreement: float

    def to_json(self) -> dict[str, Any]:
        return {
            "cache": self.cache,
            "bytes": self.bytes,
            "share": self.bytes / self.of,
            "mean_change": self.mean,
            "max_change": self.largest,
            "kl": self.divergence,
            "loss_change": self.loss,
            "agreement": self.agreement,
        }


@dataclass(frozen=True)
class KvReport:
    """All of it. tokens: of the text. cached: how many of them were in the cache that was altered.

    loss: of the rest of the text with the cache as it is; None where nothing was altered.
    """

    model: str
    dtype: str
    tokens: int
    cached: int
    tau: tuple[float, ...]
    growth: Growth
    heads: tuple[CachedHead, ...]
    loss: float | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dtype": self.dtype,
            "tokens": self.tokens,
            "cached": self.cached,
            "tau": list(self.tau),
            "bytes": self.growth.to_json(),
            "heads": [head.to_json() for head in self.heads],
            "loss": self.loss,
            "changes": [change.to_json() for change in self.changes],
            "notes": list(self.notes),
        }
