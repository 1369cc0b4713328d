"""Spectra as rows for charts: places in words, brackets with their middles, curves thinned to what an axis can show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pellucid.errors import InputError
from pellucid.spectra.results import Head, Measured, Spectra

MEASURED, BASELINE = "measured", "random weights"
POINTS, LEAST_POINTS, ALL_POINTS = 48, 12, 16_000  # of a curve, and of all curves of a chart
_FLOOR = 1e-5  # of the largest singular value: what is smaller holds no energy that an axis could show
_WIDE = 0.1  # a bracket wider than this share of its upper end is marked

Row = dict[str, Any]


def some(spectra: Spectra) -> tuple[Head, ...]:
    if not spectra.heads:
        raise InputError("these spectra hold no head, so there is nothing to draw")
    return spectra.heads


def _both(head: Head) -> Iterable[tuple[str, Measured]]:
    yield MEASURED, head.measured
    if head.baseline is not None:
        yield BASELINE, head.baseline


def _where(head: Head) -> Row:
    return {
        "attention": f"{head.stack} {head.kind}",
        "place": head.place,
        "block": head.block,
        "name": str(head.head),
        "number": head.head,
        "text": str(head.text),
    }


def rank_rows(head: Head, tau: float) -> Iterable[Row]:
    for of, found in _both(head):
        low, high = found.spectrum.effective[tau]
        row = {**_where(head), "tau": f"{tau:g}", "of": of, "low": low, "high": high, "rank": (low + high) / 2}
        row["bracket"] = str(low) if low == high else f"[{low}, {high}]"
        row["wide"] = high - low > _WIDE * high
        if of == MEASURED and head.baseline is not None:
            other = sum(head.baseline.spectrum.effective[tau]) / 2
            row["ratio"], row["times"] = math.log2(row["rank"] / other), row["rank"] / other
        yield row


def curve_rows(head: Head, points: int) -> Iterable[Row]:
    for of, found in _both(head):
        values = [value for value in found.spectrum.values if value > _FLOOR * found.spectrum.values[0]]
        kept = _spaced(len(values), points)
        fit, energy = found.spectrum.decay, found.spectrum.energy
        held, total = [], 0.0
        for value in values:
            total += value * value
            held.append(min(total / energy, 1.0))
        fitted = [None if fit.alpha is None or fit.scale is None else fit.scale * (i + 1) ** -fit.alpha for i in kept]
        yield {
            **{name: value for name, value in _where(head).items() if name not in ("attention", "block")},
            "of": of,
            "index": [i + 1 for i in kept],
            "value": [_short(values[i]) for i in kept],
            "held": [_short(held[i]) for i in kept],
            "fit": [None if of == BASELINE or value is None else _short(value) for value in fitted],
            "alpha": None if fit.alpha is None else _short(fit.alpha),
        }


def _spaced(count: int, points: int) -> list[int]:
    """At most so many places of `count`, evenly spaced on a logarithmic axis, both ends among them."""
    ratio = math.log(count) / max(points - 1, 1)
    return sorted({min(round(math.exp(step * ratio)), count) - 1 for step in range(points)})


def statistic_rows(head: Head, fields: Sequence[str]) -> Iterable[Row]:
    for of, found in _both(head):
        values = {**found.statistics.to_json(), "alpha": found.spectrum.decay.alpha, "r2": found.spectrum.decay.r2}
        row = {**_where(head), "of": of, "heaviest_key": values["heaviest_key"]}
        yield row | {field: _known(values[field]) for field in fields}


def density_rows(head: Head) -> Iterable[Row]:
    for of, found in _both(head):
        density = found.spectrum.density
        if density is not None:
            # A count holds from its lower edge up to the next; the largest edge closes the last of them.
            counts = [_short(count) for count in (density.counts[0], *density.counts)]
            yield {**_where(head), "of": of, "size": [_short(edge) for edge in density.edges], "count": counts}


def _known(value: float | None) -> float | None:
    """A statistic that a short text does not have is no number: a chart leaves it out."""
    return None if value is None or not math.isfinite(value) else value


def _short(value: float) -> float:
    """Five digits: more than a chart shows, and half the size."""
    return float(f"{value:.5g}")
