"""The spectrum of one head: exactly where the matrix can be formed, from products with it where it cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.operator import AttentionOperator
from pellucid.spectra.bracket import Captured
from pellucid.spectra.density import density_of_values, lanczos_density, quadrature, tridiagonals
from pellucid.spectra.krylov import Block, Krylov, multiply, multiply_transposed, project_out
from pellucid.spectra.rank import TAUS, effective_rank, entropy_rank, stable_rank
from pellucid.spectra.results import Decay, Spectrum

Method = Literal["auto", "dense", "free"]
DENSE_LIMIT = 2048  # queries or keys: up to here the exact way is also the fast one
ENERGY_ROUNDING = {torch.float64: 1e-12}
PROBES, LANCZOS_STEPS, FAILURE = 32, 6, 1e-8


@dataclass(frozen=True)
class Effort:
    """How far to go.

    top: how many singular values must have settled: their relative errors, estimated from how fast they still change,
      are below `settled`. 64, or all of fewer, unless given.
    narrow: brackets may be this share of their upper end wide.
    budget: the most columns of the basis. block: how many it grows by.
    certify: spend products on raising the lower ends of brackets that are not narrow. density: and on the whole spread.
    """

    tau: tuple[float, ...] = TAUS
    top: int | None = None
    narrow: float = 0.05
    settled: float = 2e-5
    budget: int = 512
    block: int | None = None
    certify: bool = True
    density: bool = False

    def __post_init__(self) -> None:
        for tau in self.tau:
            if not 0 < tau < 1:
                raise InputError(f"tau is a share of the energy strictly between 0 and 1, not {tau}: try 0.9")
        for name in ("top", "budget", "block"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: give 1 or more")
        if self.top is not None and self.budget < self.top:
            raise InputError(f"a budget of {self.budget} columns cannot give the top {self.top}: raise the budget")

    def check(self, queries: int, keys: int) -> None:
        if self.top is not None and self.top > min(queries, keys):
            raise InputError(
                f"the top {self.top} singular values were asked for, but {queries} queries and {keys} keys have "
                f"only {min(queries, keys)}: ask for fewer, or give a longer text"
            )

    def top_of(self, size: int) -> int:
        return min(64, size, self.budget) if self.top is None else self.top


def head_spectrum(
    operator: AttentionOperator, effort: Effort = Effort(), *, method: Method = "auto", seed: int = 0
) -> Spectrum:
    """The spectrum of an operator of one head."""
    if operator.query.shape[:2] != (1, 1):
        raise InputError(f"one head at a time, not {list(operator.query.shape[:2])} texts and heads: cut one out")
    sides = (operator.view.queries, operator.view.keys)
    effort.check(*sides)
    if method == "auto":
        method = "dense" if max(sides) <= DENSE_LIMIT else "free"
    return dense_spectrum(operator, effort) if method == "dense" else free_spectrum(operator, effort, seed=seed)


def dense_spectrum(operator: AttentionOperator, effort: Effort = Effort()) -> Spectrum:
    """Of the matrix itself, in float64. Its Gram matrix gives values down to 1e-8 of the largest."""
    weights = operator.tile(slice(0, operator.view.queries), slice(0, operator.view.keys))[0, 0]
    return spectrum_of_matrix(weights, effort)


def spectrum_of_matrix(weights: Float[Tensor, "query key"], effort: Effort = Effort()) -> Spectrum:
    weights = weights.double()
    gram = weights @ weights.T if weights.shape[0] <= weights.shape[1] else weights.T @ weights
    values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0).cpu()
    energy, tenth = float(values.square().sum()), max(values.shape[0] // 10, 1)
    if energy == 0:
        raise InputError("every query of this head may look at nothing, so it has no spectrum: check the mask")
    share = float(values[:tenth].square().sum()) / energy
    return Spectrum(
        method="dense",
        size=values.shape[0],
        energy=energy,
        values=tuple(values.tolist()),
        captured=1.0,
        effective={tau: (rank, rank) for tau in effort.tau for rank in [effective_rank(values.square(), tau)]},
        stable=stable_rank(values),
        decay=decay(values[: effort.top_of(len(values))], 1e-7),
        top_tenth=(share, share),
        density=density_of_values(values) if effort.density else None,
        entropy_rank=entropy_rank(values),
    )


@torch.no_grad()
def free_spectrum(operator: AttentionOperator, effort: Effort = Effort(), *, seed: int = 0) -> Spectrum:
    """From products alone. The basis grows until the brackets are narrow and the top has settled, or to the budget."""
    generator = torch.Generator(operator.query.device).manual_seed(seed)
    energy = float(operator.energy())
    if energy == 0:
        raise InputError("every query of this head may look at nothing, so it has no spectrum: check the mask")
    block = effort.block or (128 if operator.query.device.type == "cuda" else 64)
    top = effort.top_of(min(operator.view.queries, operator.view.keys))
    settling = _Settling(top, 2 * torch.finfo(torch.promote_types(operator.query.dtype, torch.float32)).eps)
    krylov = Krylov(operator, block=block, budget=effort.budget, generator=generator)
    known, settled = _known(operator, krylov, energy), False
    while not krylov.exhausted:
        size = krylov.size
        krylov.extend()
        if size < krylov.size < top and not krylov.exhausted:
            continue
        known = _known(operator, krylov, energy)
        settled = settling.error_of(known.values) <= effort.settled or krylov.size == size
        if settled and krylov.size >= top and all(_is_narrow(known.bracket(tau), effort) for tau in effort.tau):
            break
    if effort.certify and not all(_is_narrow(known.bracket(tau), effort) for tau in effort.tau):
        known = _certify(operator, krylov, known, generator)
    density = lanczos_density(operator, generator) if effort.density else None
    return Spectrum(
        method="free",
        size=known.size,
        energy=energy,
        values=tuple(known.values.tolist()),
        captured=min(known.captured / energy, 1.0),
        effective={tau: known.bracket(tau) for tau in effort.tau},
        stable=energy / float(known.values[0]) ** 2,
        decay=decay(known.values[:top], operator.rounding),
        top_tenth=known.share_of_top(max(known.size // 10, 1)),
        density=density,
        entropy_rank=None if density is None else density.entropy_rank,
        settled=settled or krylov.size == known.size,
        failure=0.0 if known.mu is None else FAILURE,
    )


def residual_energy_bound(operator: AttentionOperator, left: Block, generator: torch.Generator) -> float:
    """A bound on the largest eigenvalue of M'M, where M = (I - UU')A, that fails with probability FAILURE at most.

    After m Lanczos steps from a uniformly random direction, the largest eigenvalue is below 1 / (1 - e) of its estimate
    except with probability 1.648 sqrt(N) exp(-sqrt(e) (2m - 1)) (Kuczynski and Wozniakowski 1992); of several
    independent directions, all must fail.
    """
    start = torch.randn(operator.view.keys, PROBES, generator=generator, device=left.device).to(left)
    steps = min(LANCZOS_STEPS, operator.view.keys)
    nodes, _ = quadrature(
        tridiagonals(lambda x: multiply_transposed(operator, project_out(multiply(operator, x), left)), start, steps)
    )
    root = math.log(1.648 * math.sqrt(operator.view.keys) / FAILURE ** (1 / PROBES)) / (2 * steps - 1)
    if root >= 1:
        return math.inf
    # A product with what is orthogonal to the large directions cancels: its error is that of any random direction.
    blur = 2 * operator.rounding * math.sqrt(float(operator.energy()) / min(operator.view.queries, operator.view.keys))
    return (math.sqrt(max(float(nodes.max()), 0.0)) + blur) ** 2 / (1 - root**2)


def decay(values: Float64[Tensor, " top"], floor: float) -> Decay:
    """The power law C i^-alpha that fits best in logarithms, over the values above the floor."""
    usable = values[values > floor * values[0]].log()
    index = torch.arange(1, len(usable) + 1, dtype=torch.float64).log()
    if len(usable) < 3:
        return Decay(alpha=None, scale=None, r2=None)
    x, y = index - index.mean(), usable - usable.mean()
    slope = float((x * y).sum() / x.square().sum())
    spread = float(y.square().sum())
    error = float((y - slope * x).square().sum())
    scale = math.exp(float(usable.mean()) - slope * float(index.mean()))
    return Decay(alpha=-slope, scale=scale, r2=1 - error / spread if spread > 0 else 1.0)


def _certify(operator: AttentionOperator, krylov: Krylov, known: Captured, generator: torch.Generator) -> Captured:
    """Spend a few products on how large and how coupled the residual is: it raises the lower ends."""
    values, coupling = krylov.coupling()
    mu = residual_energy_bound(operator, krylov.left, generator)
    return replace(known, values=values, coupling=coupling, mu=mu)


def _known(operator: AttentionOperator, krylov: Krylov, energy: float) -> Captured:
    return Captured(
        values=krylov.values(),
        energy=energy,
        size=min(operator.view.queries, operator.view.keys),
        rounding=operator.rounding,
        energy_rounding=ENERGY_ROUNDING.get(operator.query.dtype, 1e-6),
    )


def _is_narrow(bracket: tuple[int, int], effort: Effort) -> bool:
    low, high = bracket
    return high - low <= max(effort.narrow * high, 1)


@dataclass
class _Settling:
    """Watches the top values from step to step. floor: how far rounding moves a value, as a share of the largest."""

    top: int
    floor: float
    before: Tensor | None = None
    change: float = math.inf

    def error_of(self, values: Tensor) -> float:
        """The largest relative error that is left, if the changes go on shrinking as they last did."""
        now, before, last = values[: self.top], self.before, self.change
        self.before = now
        if before is None or len(before) != len(now):
            return math.inf
        moved = ((now - before).abs() - self.floor * now[0]).clamp(min=0)
        self.change = float((moved / now.clamp(min=torch.finfo(now.dtype).tiny)).max())
        ratio = min(self.change / last, 0.95) if last > 0 else 0.0
        return self.change * ratio / (1 - ratio) if math.isfinite(last) else 19 * self.change
