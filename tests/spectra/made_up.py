"""Spectra that no model had to be run for."""

from __future__ import annotations

import math

from pellucid.spectra.density import Density
from pellucid.spectra.results import Decay, Head, Measured, Spectra, Spectrum, Statistics


def measured(
    rank: tuple[int, int] = (3, 3), *, size: int = 64, alpha: float | None = 1.5, density: bool = False
) -> Measured:
    values = tuple((i + 1) ** -1.5 for i in range(size))
    exact = rank[0] == rank[1]
    return Measured(
        Spectrum(
            method="dense" if exact else "free",
            size=size,
            energy=math.fsum(value**2 for value in values),
            values=values,
            captured=1.0,
            effective={0.9: rank, 0.95: (2 * rank[0], 2 * rank[1])},
            stable=1.25,
            decay=Decay(alpha, None if alpha is None else 1.0, None if alpha is None else 0.99),
            top_tenth=(0.9, 0.9),
            density=Density((1.0, 0.1, 0.01), (3.0, 4.5), 12.0, 0.5) if density else None,
            entropy_rank=12.0,
            settled=exact,
            failure=0.0 if exact else 1e-8,
        ),
        Statistics(2.5, 0.125, 0.375, 7, 11.5, 0.0625, 0.03125),
    )


def spectra(
    blocks: int = 2,
    heads: int = 3,
    *,
    model: str = "made-up",
    texts: int = 1,
    baseline: bool = True,
    size: int = 64,
    density: bool = False,
) -> Spectra:
    """Head 0 is far below its baseline of 10, head 1 far above, head 2 a wide bracket around it."""
    ranks = [(3, 3), (50, 50), (8, 20)]
    found = [
        Head(
            "decoder",
            block,
            head,
            "self",
            text,
            size,
            size,
            measured(ranks[head % 3], size=size, density=density),
            measured((10, 10), size=size, density=density) if baseline else None,
        )
        for text in range(texts)
        for block in range(blocks)
        for head in range(heads)
    ]
    return Spectra(model, size, (0.9, 0.95), tuple(found))
