"""A trace as a light piece of HTML for a notebook: a row per step, its checked error, and the first of its numbers."""

from __future__ import annotations

from html import escape

from latex2mathml.converter import convert

from pellucid.lens.trace import Step, Trace
from pellucid.lens.view import allowed, labels, number, readable, slices

_ROWS, _COLUMNS = 4, 6
# A notebook has its own style sheet and theme, so the few colours stand inline and read on light and on dark.
_GOOD, _BAD = "background:#14643a;color:#fff", "background:#9b1420;color:#fff"


def trace_fragment(trace: Trace) -> str:
    """The steps in a table; the numbers of each open on a click, without a script."""
    words = " ".join(f"<code>{escape(readable(token))}</code>" for token in trace.tokens[:64])
    more = f" and {len(trace.tokens) - 64} more" if len(trace.tokens) > 64 else ""
    rows = "".join(_row(trace, step) for step in trace.steps)
    best = ", ".join(f"<code>{escape(readable(word))}</code> {share:.1%}" for word, share in trace.prediction)
    best = f"<p>Likeliest next tokens: {best}</p>" if best else ""
    worst = max(trace.steps, key=lambda step: step.error)
    return (
        f"<div><p><b>{escape(trace.model)}</b>: {words}{more}</p>{best}"
        f"<p>Largest error {_badge(worst)} at <code>{escape(worst.site)}</code></p>"
        "<table><thead><tr><th>site</th><th>formula</th><th>shape</th><th>error</th><th>values</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _row(trace: Trace, step: Step) -> str:
    shape = " &times; ".join(f"{axis} {size}" for axis, size in zip(step.axes, step.value.shape, strict=True))
    return (
        f'<tr><td style="text-align:left"><code>{escape(step.site)}</code></td><td>{convert(step.formula)}</td>'
        f"<td>{shape}</td><td>{_badge(step)}</td>"
        f"<td><details><summary>first values</summary>{_values(trace, step)}</details></td></tr>"
    )


def _badge(step: Step) -> str:
    good = step.error <= allowed(step)
    word = "" if good else " NOT verified"
    style = f"{_GOOD if good else _BAD};padding:0 .5em;border-radius:1em;white-space:nowrap"
    return f'<span style="{style}">{step.error:.1e}{word}</span>'


def _values(trace: Trace, step: Step) -> str:
    part = next(slices(step))
    last = len(step.axes) - 1
    columns = labels(trace, step, last)[:_COLUMNS]
    rows = labels(trace, step, last - 1)[:_ROWS] if step.value.dim() > 2 else [step.axes[-1]]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = ""
    for place, name in enumerate(rows):
        pairs = zip(part.values[place, :_COLUMNS], part.hidden[place, :_COLUMNS], strict=True)
        cells = "".join(f"<td>{'masked' if hidden else number(float(value))}</td>" for value, hidden in pairs)
        body += f"<tr><th>{escape(name)}</th>{cells}</tr>"
    return f"<table><thead><tr><th>{escape(part.name)}</th>{head}</tr></thead><tbody>{body}</tbody></table>"
