"""What a few singular values and the exact energy say for certain about all of them.

A has the energy E. An orthonormal basis U of k columns gives b_1 >= ... >= b_k, the singular values of U'A; they hold
c = sum b_i^2, and the residual (I - UU')A holds R = E - c. mu bounds the square of the residual's spectral norm.

At least: the top j singular values of A hold at least S_j = sum_{i<=j} b_i^2 (interlacing), and past k at least
c + (j - k) R / (N - k), because an even residual is the worst case.

At most: the top j eigenvalues of a positive semidefinite matrix sum to at most those of its two diagonal blocks. For
AA' in the basis (U, its complement) that is S_j + min(R, j mu).

At most, once the first p have settled: the Ritz vector of b_i couples to the complement of U by e_i, which one more
product tells. AA' is then diag(b_1^2 .. b_p^2), a rest of trace R_p = E - S_p whose eigenvalues are at most
m_p = min(b_{p+1}^2 + mu, max(b_{p+1}^2, mu) + |e_{>p}|), and a coupling of some rank r whose top eigenvalues sum to
sqrt(min(p, r)) |e_{<=p}| at most. So, for any p, the top j hold at most
sum_{i<=min(j,p)} max(b_i^2, m_p) + min(R_p, (j - p) m_p) + sqrt(min(p, r)) |e_{<=p}|.

Rounding widens all of them: a product is off by `rounding` in the Frobenius norm, the energy by `energy_rounding`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

import torch
from jaxtyping import Float64
from torch import Tensor

Values = Float64[Tensor, " captured"]


@dataclass(frozen=True)
class Coupling:
    """norms: e_i. largest: the spectral norm of all of them together. rank: how many columns they come from."""

    norms: Values
    largest: float
    rank: int


@dataclass(frozen=True)
class Captured:
    """What is known of a spectrum.

    size: how many singular values there are. mu: None where only R bounds it. coupling: None where it is unknown.
    """

    values: Values
    energy: float
    size: int
    mu: float | None = None
    coupling: Coupling | None = None
    rounding: float = 0.0
    energy_rounding: float = 0.0

    def bracket(self, tau: float) -> tuple[int, int]:
        """The ends between which the effective rank at tau lies."""
        low, high = 1, self._first_that_surely_reaches(tau)
        wanted, beyond = tau * self.energy * (1 - self.energy_rounding), high
        while low < beyond:
            middle = (low + beyond) // 2
            low, beyond = (low, middle) if self.most(middle) >= wanted else (middle + 1, beyond)
        return low, high

    def share_of_top(self, count: int) -> tuple[float, float]:
        """The ends between which the share of the top `count` singular values in the energy lies."""
        least, most = (self.energy * (1 + sign * self.energy_rounding) for sign in (-1, 1))
        return min(self.least(count) / most, 1.0), min(self.most(count) / least, 1.0)

    @property
    def captured(self) -> float:
        return float(self._held[-1])

    def least(self, count: int) -> float:
        """What the top `count` hold at least."""
        known = len(self.values)
        held = float(self._fewer[min(count, known)])
        if count > known:
            even = (count - known) / (self.size - known)
            held += even * max(self.energy * (1 - self.energy_rounding) - float(self._more[-1]), 0.0)
        return held

    def most(self, count: int) -> float:
        """What the top `count` hold at most."""
        known = min(count, len(self.values))
        plain = float(self._more[known]) + min(self.residual, count * self._mu)
        return plain if self.coupling is None else min(plain, self._most_when_settled(count))

    @property
    def residual(self) -> float:
        """The largest energy that the residual can have."""
        return max(self.energy * (1 + self.energy_rounding) - float(self._fewer[-1]), 0.0)

    def _first_that_surely_reaches(self, tau: float) -> int:
        wanted = tau * self.energy * (1 + self.energy_rounding)
        reached = (self._fewer >= wanted).nonzero()
        if len(reached):
            return int(reached[0])
        # The share of an even residual that is missing grows with the energy and falls with what was captured.
        energy, captured = self.energy * (1 + self.energy_rounding), float(self._fewer[-1])
        rest = self.size - len(self.values)
        return min(len(self.values) + max(ceil((wanted - captured) / (energy - captured) * rest), 1), self.size)

    def _most_when_settled(self, count: int) -> float:
        """The smallest of the bounds of all p."""
        settled = torch.arange(1, len(self.values))
        rest, inside = self._rest
        inside_count = settled.clamp(max=count)
        larger = torch.minimum(inside_count, self._above_rest)
        widened = (self._more - self._held)[inside_count]
        held = self._held[larger] + (inside_count - larger) * rest + widened
        over = (count - settled).clamp(min=0) * rest
        energy = self.energy * (1 + self.energy_rounding)
        bounds = held + torch.minimum(over, energy - self._fewer[settled]) + inside
        return float(bounds.min()) if len(bounds) else float("inf")

    @cached_property
    def _rest(self) -> tuple[Tensor, Tensor]:
        """For p = 1, 2, ...: m_p, and the most that the coupling of the first p adds to a sum of eigenvalues."""
        assert self.coupling is not None
        blurred = 3 * self.rounding * float(self.values[0]) * self.captured**0.5
        energy, count = self.coupling.norms.square(), torch.arange(1, len(self.values))
        inside = count.clamp(max=self.coupling.rank).sqrt() * energy.cumsum(0)[:-1].sqrt() + count.sqrt() * blurred
        outside = energy.flip(0).cumsum(0).flip(0)[1:].sqrt().clamp(max=self.coupling.largest) + blurred
        following = (self.values[1:] + self.rounding * self.captured**0.5).square()
        coupled = torch.maximum(following, torch.full_like(following, self._mu)) + outside
        return torch.minimum(following + self._mu, coupled), inside

    @cached_property
    def _above_rest(self) -> Tensor:
        """How many of the b_i^2 are at least m_p, for every p."""
        return torch.searchsorted(-self.values.square(), -self._rest[0], right=True)

    @property
    def _mu(self) -> float:
        return self.residual if self.mu is None else min(self.mu, self.residual)

    @cached_property
    def _held(self) -> Tensor:
        return torch.cat((torch.zeros(1, dtype=torch.float64), self.values.square().cumsum(0)))

    @cached_property
    def _fewer(self) -> Tensor:
        """S_0, S_1, ..., each moved down by the most that rounding can have moved it."""
        return (self._held.sqrt() - self.rounding * self.captured**0.5).clamp(min=0).square()

    @cached_property
    def _more(self) -> Tensor:
        return (self._held.sqrt() + self.rounding * self.captured**0.5).square()
