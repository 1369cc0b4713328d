"""A trace in the terminal: each step with its formula, its checked error, and the first of its numbers."""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pellucid.lens.trace import Step, Trace
from pellucid.lens.view import allowed, labels, number, readable, slices

_NUMBER_WIDTH = 10
_LABEL_WIDTH = 16
_BAR_WIDTH = 30

_SIGNS = {
    r"\sqrt": "√",
    r"\sum": "Σ",
    r"\gamma": "\N{GREEK SMALL LETTER GAMMA}",
    r"\beta": "β",
    r"\mu": "μ",
    r"\sigma": "\N{GREEK SMALL LETTER SIGMA}",
    r"\epsilon": "ε",
    r"\odot": "⊙",
    r"\phi": "φ",
    r"\Delta": "Δ",
    r"\top": "ᵀ",
    r"\max": "max",
    r"\sin": "sin",
    r"\cos": "cos",
    r"\dots": "…",
    r"\quad": " ",
    r"\,": " ",
    r"\;": " ",
}


def show(trace: Trace, console: Console, *, max_rows: int = 8) -> None:
    """Print a trace: a header, the steps, the likeliest next tokens, and the largest error.

    max_rows: rows of each table; columns are as many as the terminal is wide.
    """
    words = " ".join(readable(token) for token in trace.tokens)
    console.print(_line(f"{trace.model}: {len(trace.steps)} steps, {len(trace.tokens)} tokens: {words}", console.width))
    for note in trace.notes:
        console.print(Text(note, style="yellow"))
    for step in trace.steps:
        _show_step(trace, step, console, max_rows)
    _show_prediction(trace, console)
    worst = max(trace.steps, key=lambda step: step.error)
    mark = "[green]verified[/]" if worst.error <= allowed(worst) else "[red]NOT verified[/]"
    console.print(f"largest error {worst.error:.1e} at {escape(worst.site)}, {mark}", highlight=False)


def plain_formula(latex: str) -> str:
    """A formula on one line of text."""
    text = re.sub(r"\\(?:mathrm|mathbf|text)\{([^{}]*)\}", r"\1", latex)
    text = re.sub(r"\\(?:overline|bar)\{([^{}]*)\}", r"mean(\1)", text)
    for _ in range(4):
        text = _without_fraction(text)
    for sign, plain in sorted(_SIGNS.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(sign, plain)
    text = re.sub(r"([_^])\{([^{}]*)\}", lambda found: found[1] + _grouped(found[2]), text).replace("^ᵀ", "ᵀ")
    text = re.sub(r"√\{([^{}]*)\}", lambda found: "√" + _grouped(found[1]), text)
    return " ".join(text.replace("{", "(").replace("}", ")").split())


def _without_fraction(text: str) -> str:
    """The first fraction as a division; braces are counted, since a fraction may hold others."""
    start = text.find(r"\frac{")
    if start < 0:
        return text
    top, after = _braced(text, start + len(r"\frac"))
    bottom, end = _braced(text, after)
    return f"{text[:start]}{_grouped(top)} / {_grouped(bottom)}{text[end:]}"


def _braced(text: str, start: int) -> tuple[str, int]:
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place], place + 1
    raise ValueError(f"braces do not close in the formula {text!r}")


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"\\?[^\W_]*'?", text) else f"({text})"


def _show_step(trace: Trace, step: Step, console: Console, max_rows: int) -> None:
    good = step.error <= allowed(step)
    shape = " x ".join(f"{axis} {size}" for axis, size in zip(step.axes, step.value.shape, strict=True))
    console.print()
    head = Text(step.site, style="bold", overflow="fold")
    head.append(f"  error {step.error:.1e}" + ("" if good else " NOT verified"), style="green" if good else "red")
    console.print(head)
    console.print(Text(f"  {plain_formula(step.formula)}   [{shape}]", style="dim"))
    console.print(_table(trace, step, console.width, max_rows))


def _table(trace: Trace, step: Step, width: int, max_rows: int) -> Table:
    """The first slice: as many columns as fit, and the first rows."""
    part = next(slices(step))
    last = len(step.axes) - 1
    rows = labels(trace, step, last - 1) if step.value.dim() > 2 else [step.axes[-1]]
    columns = labels(trace, step, last)
    shown = min(len(columns), max(1, (width - _LABEL_WIDTH - 6) // (_NUMBER_WIDTH + 1)))
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")
    table.add_column(Text(part.name and _cut(part.name, _LABEL_WIDTH)), width=_LABEL_WIDTH, no_wrap=True)
    for name in columns[:shown]:
        table.add_column(Text(_cut(name, _NUMBER_WIDTH)), justify="right", width=_NUMBER_WIDTH, no_wrap=True)
    more = len(columns) - shown
    if more:
        table.add_column(f"+{more}" if more < 1000 else "…", no_wrap=True)
    for place, name in list(enumerate(rows))[:max_rows]:
        pairs = zip(part.values[place, :shown], part.hidden[place, :shown], strict=True)
        cells = [Text("masked", style="dim") if hidden else Text(number(float(value))) for value, hidden in pairs]
        table.add_row(Text(_cut(name, _LABEL_WIDTH)), *cells)
    if len(rows) > max_rows:
        table.add_row(Text(f"+{len(rows) - max_rows} rows", style="dim"))
    return table


def _show_prediction(trace: Trace, console: Console) -> None:
    if not trace.prediction:
        return
    console.print()
    console.print(Text("likeliest next tokens", style="bold"))
    for word, share in trace.prediction:
        bar = "█" * round(share * _BAR_WIDTH)
        console.print(Text(f"  {set_cell_size(_cut(readable(word), 16), 16)} {share:7.2%} {bar}"))


def _cut(text: str, most: int) -> str:
    return text if cell_len(text) <= most else set_cell_size(text, most - 1) + "…"


def _line(text: str, width: int) -> Text:
    return Text(_cut(text, width), style="bold", no_wrap=True)
