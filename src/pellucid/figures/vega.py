"""What a page needs to draw charts with no network: Vega from the installed package, and how charts fit the page."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from importlib.resources import files


@cache
def vega(ending: str) -> str:
    """Vega, Vega-Lite and Vega-Embed as a script. Its last line is `ending`, which sees `vegaEmbed`."""
    from vl_convert import javascript_bundle

    bundle: str = javascript_bundle(ending)
    return bundle


def vega_version() -> str:
    return version("vl-convert-python")


def fitting() -> str:
    """The module that fits charts to their page."""
    return files("pellucid.figures").joinpath("fit.js").read_text(encoding="utf-8")
