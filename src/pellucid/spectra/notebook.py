"""Spectra as a light piece of HTML for a notebook: a row per head, the baseline beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from pellucid.spectra.results import Measured, Spectra
from pellucid.spectra.summary import sentences

_ROWS = 64
_COLUMNS: dict[str, Callable[[Measured], float | None]] = {
    "stable rank": lambda found: found.spectrum.stable,
    "decay": lambda found: found.spectrum.decay.alpha,
    "entropy": lambda found: found.statistics.entropy,
    "sink": lambda found: found.statistics.sink,
    "distance": lambda found: found.statistics.distance,
}


def spectra_fragment(spectra: Spectra) -> str:
    """The first rows, and the summary; all rows are in `rows()` and `to_frame()`."""
    names = ["head", "tokens", *(f"rank at {tau:g}" for tau in spectra.tau), *_COLUMNS]
    rows = ""
    for head in spectra.heads[:_ROWS]:
        both = [head.measured, *([] if head.baseline is None else [head.baseline])]
        cells = [f"{head.name}{f', text {head.text}' if head.text else ''}", str(head.tokens)]
        cells += [" | ".join(bracket(found.spectrum.effective[tau]) for found in both) for tau in spectra.tau]
        cells += [" | ".join(_number(value(found)) for found in both) for value in _COLUMNS.values()]
        rows += "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    more = len(spectra.heads) - _ROWS
    rest = f"<p>{more} more: <code>to_frame()</code> has all.</p>" if more > 0 else ""
    return (
        f"<div><p><b>{escape(spectra.model)}</b>: {len(spectra.heads)} heads. Measured | random weights.</p>"
        f"<table><thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{rest}<p>{escape(' '.join(sentences(spectra)))}</p></div>"
    )


def bracket(ends: tuple[int, int]) -> str:
    """One number where it is exact."""
    low, high = ends
    return str(low) if low == high else f"[{low}, {high}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
