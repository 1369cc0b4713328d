"""A trace as one offline HTML file: formulas, checked numbers, heat maps, and cells that open their arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import PurePath
from shlex import quote

from latex2mathml.converter import convert

from pellucid import axes
from pellucid.errors import InputError
from pellucid.lens.trace import Step, Trace
from pellucid.lens.view import Slice, allowed, block_of, labels, names_tokens, number, readable, slices
from pellucid.report.heat import LEVELS, Map, colours
from pellucid.report.trace_budget import Contents, contents, is_table

# The page forbids itself the network; whoever opens it needs not take our word.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_MANY_TOKENS = 64
# Characters for the list of what was left out, and for the names that each step's arithmetic adds.
_LEFT_OUT, _EACH_STEP = 8_000, 400


def trace_page(trace: Trace, *, budget_mb: float = 25, title: str | None = None) -> str:
    """The whole page. budget_mb: its largest size; maps get coarser and fewer cells open until it holds."""
    budget = int(budget_mb * 1e6)
    least = len(_page(trace, Contents({}, {}, {}), title).encode()) + _LEFT_OUT + _EACH_STEP * len(trace.steps)
    if least > budget:
        raise InputError(
            f"a page of {budget_mb} MB was asked for, but {len(trace.steps)} steps need {least / 1e6:.2f} MB without "
            "any heat map: raise budget_mb, or trace fewer sites or blocks"
        )
    return _page(trace, contents(trace, budget - least), title)


def _page(trace: Trace, chosen: Contents, title: str | None) -> str:
    name = escape(readable_line(title or f"Trace of {PurePath(trace.model).name or trace.model}"))
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{_resource('page.css')}</style></head><body>",
            f"<header><h1>{name}</h1>{_summary(trace)}{_prediction(trace)}",
            f"{_notes(trace, chosen)}{_legend(chosen)}</header>",
            '<main id="story">',
            *_story(trace, chosen),
            "</main>",
            _DIALOG,
            f'<script type="application/json" id="data">{_data(trace, chosen)}</script>',
            f"<script>{_resource('page.js')}</script></body></html>\n",
        ]
    )


_DIALOG = (
    '<dialog id="detail" aria-labelledby="detail-title"><form method="dialog">'
    '<h2 id="detail-title"></h2><button class="close" aria-label="Close">&times;</button></form>'
    '<div id="detail-map" hidden><canvas tabindex="0" aria-label="Heat map; arrow keys move, Enter opens a cell">'
    '</canvas><p id="detail-read" role="status"></p></div><div id="detail-sum" aria-live="polite"></div></dialog>'
)


def _resource(name: str) -> str:
    return files("pellucid.report").joinpath(name).read_text(encoding="utf-8")


def readable_line(text: str) -> str:
    """Text as it is, but for characters that would break or turn the line."""
    return " ".join(readable(word) for word in text.split()) or "∅"


def _summary(trace: Trace) -> str:
    chips = "".join(
        f'<li title="token {place}">{escape(readable(word))}</li>' for place, word in enumerate(trace.tokens)
    )
    opened = " open" if len(trace.tokens) <= _MANY_TOKENS else ""
    worst = max(trace.steps, key=lambda step: step.error)
    return (
        f'<p class="lead">{len(trace.steps)} steps, each computed again in float64 from its own inputs. '
        f"Largest error {badge(worst)} at <code>{escape(worst.site)}</code>.</p>"
        f"<details{opened}><summary>{len(trace.tokens)} tokens</summary>"
        f'<ol class="chips" start="0">{chips}</ol></details>'
    )


def badge(step: Step) -> str:
    """The error of a step, marked by whether it is rounding alone; the word says it without colour too."""
    good = step.error <= allowed(step)
    word = "verified" if good else "NOT verified"
    return f'<span class="badge {"good" if good else "bad"}">{word}, error {step.error:.1e}</span>'


def _prediction(trace: Trace) -> str:
    if not trace.prediction:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(readable(word))}</th>'
        f'<td class="bar"><meter min="0" max="1" value="{share:.6f}">{share:.4f}</meter></td><td>{share:.2%}</td></tr>'
        for word, share in trace.prediction
    )
    return f'<h2>Likeliest next tokens</h2><table class="prediction"><tbody>{rows}</tbody></table>'


def _legend(chosen: Contents) -> str:
    if not chosen.maps:
        return ""
    stops = (0, LEVELS // 4, LEVELS // 2, 3 * LEVELS // 4, LEVELS - 1)
    one, two = (",".join(f"rgb{colours(name)[stop]}" for stop in stops) for name in ("one", "two"))
    return (
        '<p class="legend">Heat maps: '
        f'<span style="background:linear-gradient(90deg,{two})"></span> negative, zero, positive; '
        f'<span style="background:linear-gradient(90deg,{one})"></span> smallest to largest where there is one sign, '
        'by cube root; <span class="masked"></span> or grey masked. Click one to enlarge it and to read its cells.</p>'
    )


def _notes(trace: Trace, chosen: Contents) -> str:
    notes = "".join(f"<li>{escape(readable_line(note))}</li>" for note in trace.notes)
    batch = max(step.value.shape[0] for step in trace.steps)
    if batch > 1:
        notes += f"<li>Values are those of the first of {batch} texts; errors are over all of them.</li>"
    missing = "".join(f"<li>{escape(line)}</li>" for line in chosen.left_out)
    if missing:
        command = escape(explain_command(trace, "SITE[...]"))
        missing = (
            '<section class="missing"><h2>Not in this page</h2>'
            f"<ul>{missing}</ul><p>Any cell is one command away: <code>{command}</code></p></section>"
        )
    return (f'<ul class="notes">{notes}</ul>' if notes else "") + missing


def explain_command(trace: Trace, cell: str) -> str:
    return f'pellucid trace {quote(readable_line(trace.model))} TEXT --explain "{cell}"'


def _story(trace: Trace, chosen: Contents) -> Iterator[str]:
    groups = [(name, list(steps)) for name, steps in groupby(trace.steps, lambda step: block_of(step.site))]
    blocks = [name for name, _ in groups if name[-1].isdigit()] or [""]
    shown = {groups[0][0], groups[-1][0], blocks[0], blocks[-1]}
    for name, steps in groups:
        opened = " open" if name in shown else ""
        count = f"{len(steps)} steps" if len(steps) > 1 else "1 step"
        yield f'<details class="block"{opened}><summary>{escape(name)} <small>{count}</small></summary>'
        yield from (_step(trace, step, chosen) for step in steps)
        yield "</details>"


def _step(trace: Trace, step: Step, chosen: Contents) -> str:
    shape = " &times; ".join(f"{axis} {size}" for axis, size in zip(step.axes, step.value.shape, strict=True))
    source = f" from {', '.join(map(_link, step.inputs))}" if step.inputs else ""
    opens = "Cells open their arithmetic." if step.site in chosen.arithmetic else ""
    if is_table(step):
        values = "".join(_table(trace, step, part, place) for place, part in enumerate(slices(step)))
        values = f'<div class="tables">{values}</div>'
    elif step.site in chosen.maps:
        drawn = chosen.maps[step.site]
        values = f'<div class="maps{" many" if len(drawn) > 1 else ""}">'
        values += "".join(_map(step, one, place) for place, one in enumerate(drawn)) + "</div>"
    else:
        values = '<p class="axes">Its values are left out.</p>'
    return (
        f'<section class="step" id="{escape(step.site)}"><h3>{escape(step.site)}</h3>{badge(step)}'
        f'<div class="formula">{convert(step.formula, display="block")}</div>'
        f'<p class="axes">{shape}{source}. {opens}</p>{values}</section>'
    )


def _link(site: str) -> str:
    return f'<a href="#{escape(site)}">{escape(site)}</a>'


def _table(trace: Trace, step: Step, part: Slice, place: int) -> str:
    last = len(step.axes) - 1
    heads = "".join(f'<th scope="col">{escape(word)}</th>' for word in labels(trace, step, last))
    rows = labels(trace, step, last - 1) if step.value.dim() > 2 else [step.axes[0]]
    body = "".join(f'<tr><th scope="row">{escape(word)}</th>{_cells(part, row)}</tr>' for row, word in enumerate(rows))
    caption = f"<caption>{escape(part.name)}</caption>" if part.name else ""
    return (
        f'<div class="scroll"><table class="values" data-site="{escape(step.site)}" data-slice="{place}">{caption}'
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(part: Slice, row: int) -> str:
    return "".join(
        '<td class="masked"><abbr title="masked">&ndash;</abbr></td>' if hidden else f"<td>{number(float(value))}</td>"
        for value, hidden in zip(part.values[row], part.hidden[row], strict=True)
    )


def _map(step: Step, one: Map, place: int) -> str:
    rows, columns = step.value.shape[-2:] if step.value.dim() > 2 else (1, step.value.shape[-1])
    pooled = (
        "" if one.rows_each * one.columns_each == 1 else f", {one.rows_each} &times; {one.columns_each} cells a pixel"
    )
    wrong = f", {one.not_numbers} grey pixels are infinite or not numbers" if one.not_numbers else ""
    ends = f"min {number(one.least)}, max {number(one.most)}{pooled}{wrong}"
    shape = "strip" if rows * 4 < columns else "tall" if columns * 4 < rows else "square"
    return (
        f'<figure class="{shape}"><button type="button" data-site="{escape(step.site)}" data-slice="{place}" '
        f'data-low="{one.low!r}" data-high="{one.high!r}" data-palette="{one.palette}" data-root="{one.root}" '
        f'data-rows="{one.rows_each}" data-columns="{one.columns_each}">'
        f'<img alt="Heat map of {escape(step.site)} {escape(one.name)}, '
        f'{rows} by {columns}" loading="lazy" src="data:image/png;base64,{one.png}"></button>'
        f"<figcaption>{escape(one.name)} <small>{ends}</small></figcaption></figure>"
    )


def _data(trace: Trace, chosen: Contents) -> str:
    """For the script; no `<` survives, so that no token can end the element."""
    steps = {}
    for step in trace.steps:
        last = len(step.axes) - 1
        made = chosen.arithmetic.get(step.site)
        steps[step.site] = {
            "shape": list(step.value.shape[1:]),
            "rows": step.value.dim() > 2 and names_tokens(trace, step, last - 1),
            "columns": names_tokens(trace, step, last),
            "column": "key" if step.axes[last] == axes.KEY else step.axes[last],
            "kind": None if made is None else made.kind,
            "sites": [] if made is None else list(made.sites),
            **({} if made is None else made.constants),
        }
    data = {
        "command": explain_command(trace, "CELL"),
        "tokens": [readable(token) for token in trace.tokens],
        "palettes": {name: colours(name) for name in ("one", "two")},
        "steps": steps,
        "values": chosen.values,
    }
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
