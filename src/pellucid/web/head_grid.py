"""All heads of a model on a text, measured once and kept: the grids of the page show their ranks and statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from pellucid.errors import InputError
from pellucid.spectra.measure import spectrum
from pellucid.spectra.results import Head, Measured, Spectra
from pellucid.spectra.spectrum import Effort, Method
from pellucid.spectra.watch import places
from pellucid.web.asking import Ids, words
from pellucid.web.low_rank import EXACT, is_exact, site_of
from pellucid.web.payloads import Array
from pellucid.web.refusal import refused_by
from pellucid.web.shelf import Book
from pellucid.web.work import Job

TAUS = (0.9, 0.99)
STATISTICS = ("stable", "entropy", "sink")


def measured(book: Book, ids: Ids, job: Job) -> Spectra:
    return book.keep(("spectra", ids), lambda: _measure(book, ids, job))


def _measure(book: Book, ids: Ids, job: Job) -> Spectra:
    job.expect(2 * len(places(book.model.network)) * book.model.config.heads)
    text: Any = tuple(list(one) for one in ids) if len(ids) > 1 else list(ids[0])
    method: Method = "dense" if is_exact(book, ids) else "free"
    try:
        return spectrum(book.model, text, effort=Effort(tau=TAUS), method=method, progress=job.report)
    except InputError as error:
        raise refused_by(error, "no_spectrum", "text", exact=EXACT) from None


def heads_at(found: Spectra, book: Book, place: int) -> tuple[Head, ...]:
    """Heads come place by place."""
    count = book.model.config.heads
    return found.heads[place * count : (place + 1) * count]


def grid_of(book: Book, ids: Ids, found: Spectra) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the grid's rows and columns are, and the numbers of every head in the order of `names`."""
    known = list(places(book.model.network))
    firsts = [heads_at(found, book, row)[0] for row in range(len(known))]
    said = {
        "tokens": words(book.model, ids[-1]),
        "source": words(book.model, ids[0]) if len(ids) > 1 else None,
        "places": [
            {"site": site_of(place), **vars(place), "queries": first.tokens, "keys": first.keys}
            for place, first in zip(known, firsts, strict=True)
        ],
        "heads": book.model.config.heads,
        "tau": TAUS,
        "names": [*(f"rank_{tau}_{end}" for tau in TAUS for end in ("low", "high")), *STATISTICS],
        "method": firsts[0].measured.spectrum.method,
    }
    shape = (len(known), book.model.config.heads, -1)
    own = np.array([_numbers(one.measured) for one in found.heads], np.float32).reshape(shape)
    random = np.array([_numbers(one.baseline) for one in found.heads], np.float32).reshape(shape)
    return said, {"own": own, "baseline": random}


def _numbers(found: Measured | None) -> list[float]:
    """In the order of `names`."""
    assert found is not None
    ends = [float(end) for tau in TAUS for end in found.spectrum.effective[tau]]
    known = {**found.statistics.to_json(), "stable": found.spectrum.stable}
    return [*ends, *(known[name] for name in STATISTICS)]
