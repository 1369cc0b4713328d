"""The charts of spectra by name, and what each shows in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pellucid.figures import spectrum as figures
from pellucid.spectra.results import Spectra, Spectrum


@dataclass(frozen=True)
class Figure:
    title: str
    words: str
    draw: Callable[[Spectra], figures.Chart]
    needs: Callable[[Spectrum], object] = lambda spectrum: True

    def fits(self, spectra: Spectra) -> bool:
        """Whether some head has what it shows."""
        return any(self.needs(head.measured.spectrum) is not None for head in spectra.heads)


GALLERY = {
    "ranks": Figure(
        "Effective rank",
        "A square per head. The colour is the middle of the bracket, on one scale for both maps; a white dot marks a "
        "bracket wider than a tenth of its upper end. On the right, brown is a lower rank than random weights give, "
        "blue a higher one.",
        figures.rank_map,
    ),
    "curves": Figure(
        "Singular values",
        "A line per head of one attention; random weights are dashed and grey. Choose a head to see the power law that "
        "was fitted to its largest values, as a dotted line.",
        figures.curves,
    ),
    "decays": Figure(
        "How fast singular values decay",
        "The exponent alpha of the power law i^-alpha, and how well it fits. A poor fit says that the singular values "
        "follow no power law.",
        figures.decays,
        needs=lambda spectrum: spectrum.decay.alpha,
    ),
    "sinks": Figure(
        "Sinks",
        "How much of their weight queries put on the first key, and on the key that gets most.",
        figures.sinks,
    ),
    "looks": Figure(
        "Where heads look", "How many keys a query spreads over, and how far away they are.", figures.looks
    ),
    "densities": Figure(
        "All singular values",
        "Counted by size, by stochastic Lanczos quadrature where they were not all computed.",
        figures.densities,
        needs=lambda spectrum: spectrum.density,
    ),
}
