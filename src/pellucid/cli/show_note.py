"""The note's numbers beside the exact ones, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from pellucid.lens.note import NoteComparison, NoteEntry, NoteStep

COLOURS = {"right": "green", "fresh mistake": "bold red", "inherited": "yellow"}
TOKENS = 2


def show(comparison: NoteComparison, console: Console) -> None:
    """A table per printed matrix, then the counts."""
    for step in comparison.steps:
        console.print(_table(step), "")
    console.print(
        f"{len(comparison.entries)} printed entries: {comparison.right} right, {comparison.wrong} wrong "
        f"({comparison.fresh} by a fresh mistake, {comparison.inherited} inherited)",
        highlight=False,
    )


def _table(step: NoteStep) -> Table:
    site = step.site if step.times == 1 else f"{step.site} x {step.times:.6f}"
    table = Table(title=f"{step.name} [dim]({site})[/]", title_justify="left", box=None)
    table.add_column("token, column", justify="right")
    for heading in ("printed", "exact", "from the printed step before"):
        table.add_column(heading, justify="right")
    table.add_column("mark")
    # Scores for the next word are printed for the last token alone.
    first = TOKENS - len(step.rows)
    for token, row in enumerate(step.rows, first):
        for column, entry in enumerate(row):
            table.add_row(f"{token}, {column}", *_cells(entry))
    return table


def _cells(entry: NoteEntry) -> tuple[str, str, str, str]:
    """The mark is a word too: colour alone does not reach everyone."""
    colour = COLOURS[entry.mark]
    printed, mark = f"[{colour}]{entry.printed}[/]", f"[{colour}]{entry.mark}[/]"
    return printed, _number(entry.exact), _number(entry.from_previous), mark


def _number(value: float) -> str:
    """Six decimals, and no minus before a zero."""
    return f"{round(value, 6) + 0.0:.6f}"
