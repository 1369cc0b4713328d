"""Spectra in the terminal: a row per head, the baseline beside each bracket, and how to read it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pellucid.spectra.notebook import bracket
from pellucid.spectra.results import Head, Measured, Spectra
from pellucid.spectra.summary import sentences

_GAP = 3  # between columns
_PLENTY = 400  # columns of a terminal that is none: a file has no edge


def show(spectra: Spectra, console: Console | None = None) -> None:
    """Print the table and its foot. Where a terminal is too narrow, the last columns are left out, and that is said."""
    console = console or _console()
    columns = _columns(spectra)
    shown = _fitting(columns, console.width)
    console.print(_heading(spectra), soft_wrap=True)
    console.print(_table(spectra, shown))
    left_out = [" ".join(name).strip() for name in list(columns)[len(shown) :]]
    for line in [*_foot(spectra), *sentences(spectra)]:
        console.print(Text(line), soft_wrap=not console.is_terminal)
    if left_out:
        said = f"Too narrow for {', '.join(left_out)}: widen the terminal, or use --html or --json."
        console.print(Text(said, style="yellow"))


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLENTY)


def _heading(spectra: Spectra) -> str:
    texts = len({head.text for head in spectra.heads})
    tokens = f"{texts} texts of up to {spectra.tokens} tokens" if texts > 1 else f"{spectra.tokens} tokens"
    return f"[bold]{escape(spectra.model)}[/]: {len(spectra.heads)} head{'s'[: len(spectra.heads) != 1]} on {tokens}"


def _columns(spectra: Spectra) -> dict[tuple[str, str], list[str]]:
    """Each column's two words of heading, and its cells. A column that would say one thing is left out."""
    heads = spectra.heads
    found = {("", "stack"): [head.stack for head in heads], ("", "block"): [str(head.block) for head in heads]}
    if any(head.kind == "cross" for head in heads):
        found["", "kind"] = [head.kind for head in heads]
    found["", "head"] = [f"{head.head}{'' if head.measured.spectrum.settled else '*'}" for head in heads]
    if any(head.text for head in heads):
        found["", "text"] = [str(head.text) for head in heads]
    found["", "tokens"] = [_tokens(head) for head in heads]
    for tau in spectra.tau:
        found[f"rank {tau:g}", "measured"] = [bracket(head.measured.spectrum.effective[tau]) for head in heads]
        if any(head.baseline for head in heads):
            found[f"rank {tau:g}", "random"] = [
                "-" if head.baseline is None else bracket(head.baseline.spectrum.effective[tau]) for head in heads
            ]
    rows = [_statistics(head.measured) for head in heads]
    return found | {("", name): [row[name] for row in rows] for name in (rows[0] if rows else {})}


def _tokens(head: Head) -> str:
    return str(head.tokens) if head.tokens == head.keys else f"{head.tokens}x{head.keys}"


def _statistics(found: Measured) -> dict[str, str]:
    alpha = found.spectrum.decay.alpha
    return {
        "stable": f"{found.spectrum.stable:.2f}",
        "decay": "-" if alpha is None else f"{alpha:.2f}",
        "entropy": f"{found.statistics.entropy:.2f}",
        "sink": f"{found.statistics.sink:.3f}",
        "distance": f"{found.statistics.distance:.1f}",
    }


def _fitting(columns: dict[tuple[str, str], list[str]], width: int) -> dict[tuple[str, str], list[str]]:
    """As many of the first columns as there is room for."""
    kept, used = {}, 0
    for name, cells in columns.items():
        used += max(len(cell) for cell in [*name, *cells]) + _GAP
        if used > width + _GAP:
            break
        kept[name] = cells
    return kept


def _table(spectra: Spectra, columns: dict[tuple[str, str], list[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="bold", pad_edge=False)
    for upper, lower in columns:
        left = lower in ("stack", "kind")
        style = "dim" if lower == "random" else None
        table.add_column(
            Text("\n".join((upper, lower))), justify="left" if left else "right", no_wrap=True, style=style
        )
    places = [(head.text, head.place) for head in spectra.heads]
    for number, cells in enumerate(zip(*columns.values(), strict=True)):
        ends = number + 1 < len(places) and places[number] != places[number + 1]
        table.add_row(*map(Text, cells), end_section=ends and len(places) > len(set(places)))
    return table


def _foot(spectra: Spectra) -> Iterator[str]:
    yield (
        "rank t: how many of the largest singular values hold the share t of the energy; [low, high]: at least low, "
        "at most high, both guaranteed from the exact energy; random: the same of random weights."
    )
    if not all(head.measured.spectrum.settled for head in spectra.heads):
        yield "*: the top values have not settled."
