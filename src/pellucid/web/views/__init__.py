"""The views, in the order of the page's tabs. A view is a file here (its routes) and `static/views/NAME.js`."""

from __future__ import annotations

from fastapi import APIRouter

from pellucid.web.views import attention, cache, compare, positions, spectra, trace, training
from pellucid.web.views import map as head_map

VIEWS: dict[str, APIRouter] = {
    "trace": trace.router,
    "attention": attention.router,
    "map": head_map.router,
    "spectra": spectra.router,
    "positions": positions.router,
    "cache": cache.router,
    "compare": compare.router,
    "training": training.router,
}
