"""Spectra as one offline HTML file: what they say in words, charts, and a table of heads that sorts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from pellucid.figures.gallery import GALLERY, Figure
from pellucid.figures.vega import fitting, vega
from pellucid.lens.view import readable
from pellucid.spectra.results import Head, Spectra
from pellucid.spectra.summary import sentences

# The page forbids itself the network, and Vega runs without eval; whoever opens it needs not take our word.
_POLICY = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_BRACKET = (
    "The energy of a head is the sum of its squared singular values, and is known exactly. The effective rank at tau "
    "is how many of the largest singular values hold the share tau of it. Where not all of them were computed, two "
    "numbers stand in its place: the rank is at least the first and at most the second. Both ends follow from the "
    "exact energy and the values that were computed, with rounding counted against them: no confidence interval."
)


def spectrum_page(spectra: Spectra, *, title: str | None = None) -> str:
    """The whole page."""
    name = escape(_line(title or f"Spectra of {PurePath(spectra.model).name or spectra.model}"))
    drawn = [figure for figure in GALLERY.values() if figure.fits(spectra)]
    specs = [figure.draw(spectra).to_dict() for figure in drawn]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{_resource('page.css')}{_resource('spectrum.css')}</style></head><body>",
            f"<header><h1>{name}</h1>{_summary(spectra)}</header><main>",
            *(_section(figure, place) for place, figure in enumerate(drawn)),
            _table(spectra),
            _explanations(spectra),
            "</main>",
            f'<script type="application/json" id="charts">{_data(specs)}</script>',
            f"<script>{_vega()}</script>",
            f'<script type="module">{fitting()}{_resource("spectrum.js")}</script></body></html>\n',
        ]
    )


def _resource(name: str) -> str:
    return files("pellucid.report").joinpath(name).read_text(encoding="utf-8")


def _vega() -> str:
    bundle = vega("window.vegaEmbed = vegaEmbed;")
    assert "</script" not in bundle
    return bundle


def _line(text: str) -> str:
    return " ".join(readable(word) for word in text.split()) or "∅"


def _data(value: Any) -> str:
    """No `<` survives, so that no name can end the element."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _summary(spectra: Spectra) -> str:
    methods = sorted({head.measured.spectrum.method for head in spectra.heads})
    ways = {"dense": "from the matrix itself", "free": "without forming the matrix"}
    texts = len({head.text for head in spectra.heads})
    read = f"{texts} texts of up to {spectra.tokens:,} tokens" if texts > 1 else f"{spectra.tokens:,} tokens"
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(spectra))
    return (
        f'<p class="lead">{len(spectra.heads)} heads of <code>{escape(_line(spectra.model))}</code> on {read}, '
        f'measured {" or ".join(ways[method] for method in methods)}.</p><ul class="said">{said}</ul>'
    )


def _section(figure: Figure, place: int) -> str:
    return (
        f'<section class="card"><h2>{escape(figure.title)}</h2><p class="axes">{escape(figure.words)}</p>'
        f'<div class="chart" id="chart-{place}" role="group" aria-label="{escape(figure.title)}"></div></section>'
    )


# ---- the table of heads ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """keys: of a row, one, or the two ends of a bracket. words: what it is."""

    name: str
    keys: tuple[str, ...]
    words: str
    numbers: str = "#.3g"


def _columns(spectra: Spectra) -> list[_Column]:
    ranks = [
        _Column(
            f"rank {tau:g}",
            (f"rank_{tau}_low", f"rank_{tau}_high"),
            f"Effective rank at tau {tau:g}: how many singular values hold {tau:.4g} of the energy.",
            "d",
        )
        for tau in spectra.tau
    ]
    return [*ranks, *_STATISTICS]


_STATISTICS = (
    _Column("stable rank", ("stable_rank",), "The energy over the square of the largest singular value."),
    _Column("decay", ("alpha",), "Alpha of the power law i^-alpha that fits the largest singular values best."),
    _Column("fit", ("r2",), "R squared of that fit, in logarithms: 1 is perfect."),
    _Column(
        "top tenth",
        ("top_tenth_low", "top_tenth_high"),
        "The share of the energy in the largest tenth of the singular values.",
        ".3f",
    ),
    _Column("captured", ("captured",), "The share of the energy in the singular values that were computed.", ".3f"),
    _Column(
        "entropy", ("entropy",), "Of a row, in nats, averaged over queries: e to it is how many keys it spreads over."
    ),
    _Column("sink", ("sink",), "The mean weight on the first key."),
    _Column("heaviest", ("heaviest",), "The largest mean weight of a key."),
    _Column("which key", ("heaviest_key",), "The slot of that key, counted from 0.", "d"),
    _Column("distance", ("distance",), "The mean distance from query to key, in tokens."),
    _Column("own", ("diagonal",), "The mean weight on the query's own slot."),
    _Column("previous", ("previous",), "The mean weight on the slot before the query's."),
)


def _table(spectra: Spectra) -> str:
    columns = _columns(spectra)
    named = ["attention", "head", *(["text"] if any(head.text for head in spectra.heads) else []), "tokens"]
    heads = "".join(
        f'<th scope="col"><button type="button">{escape(name)}</button></th>'
        for name in [*named, *(column.name for column in columns)]
    )
    rows = enumerate(zip(spectra.heads, spectra.rows(), strict=True))
    body = "".join(_row(place, head, row, named, columns) for place, (head, row) in rows)
    return (
        '<section class="card"><h2>Every head</h2><p class="axes">Measured, and below it in grey the same of random '
        "weights. A column sorts when its name is clicked. * marks heads whose top values have not settled.</p>"
        '<div class="scroll heads" tabindex="0" role="region" aria-label="Table of heads"><table id="heads">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _row(place: int, head: Head, row: dict[str, Any], named: list[str], columns: list[_Column]) -> str:
    cells = f'<th scope="row" data-v="{place}">{escape(head.place)}</th>'
    mark = "" if row["settled"] else "*"
    cells += f'<td data-v="{row["head"]}">{row["head"]}{mark}</td>'
    cells += "".join(f'<td data-v="{row[name]}">{row[name]}</td>' for name in named[2:])
    return f"<tr>{cells}{''.join(_cell(row, column) for column in columns)}</tr>"


def _cell(row: dict[str, Any], column: _Column) -> str:
    ends = [row[key] for key in column.keys]
    middle = "" if ends[0] is None else repr(sum(ends) / len(ends))
    other = [row.get(f"baseline_{key}") for key in column.keys]
    below = "" if other[0] is None else f"<small>{_written(other, column.numbers)}</small>"
    return f'<td data-v="{middle}">{_written(ends, column.numbers)}{below}</td>'


def _written(ends: list[Any], numbers: str) -> str:
    if ends[0] is None:
        return "&ndash;"
    words = list(dict.fromkeys(format(end, ".0f" if numbers == "#.3g" and end >= 100 else numbers) for end in ends))
    return words[0] if len(words) == 1 else f"[{', '.join(words)}]"


def _explanations(spectra: Spectra) -> str:
    entries = "".join(f"<dt>{escape(column.name)}</dt><dd>{escape(column.words)}</dd>" for column in _columns(spectra))
    baseline = (
        "The same model with random weights, on the same text: same shape, positions and mask. Random attention is "
        "low-rank too, so only the difference says what training did. It is one draw: another seed gives other "
        "numbers, in deep blocks by a factor of two and more, so small differences say little."
    )
    return (
        '<section class="card"><h2>How to read it</h2><dl class="words">'
        f"<dt>[low, high]</dt><dd>{_BRACKET}</dd><dt>random weights</dt><dd>{baseline}</dd>{entries}</dl></section>"
    )
