"""A what-if in the terminal: the likeliest tokens before and after, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pellucid.lens.whatif import Comparison


def show(comparison: Comparison, console: Console | None = None) -> None:
    table = Table("token", "original", "changed", "difference", box=None, title=f"what if: {comparison.change}")
    for token, before, after in comparison.predictions:
        table.add_row(repr(token), f"{before:.4f}", f"{after:.4f}", f"{after - before:+.4f}")
    out = console or Console()
    out.print(table)
    for note in comparison.notes:
        out.print(note)
    out.print(f"largest change of a probability: {comparison.largest_change:.4g}")
