"""`pellucid spectrum MODEL --against BASE`: what changed, in the terminal or as JSON."""

from __future__ import annotations

import json
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pellucid.pretrained.facade import Model
from pellucid.spectra.against import TAUS, against
from pellucid.spectra.change import Against, Change
from pellucid.spectra.measure import Selection

_PLENTY = 400  # columns of a terminal that is none: a file has no edge


def compare(
    model: Model,
    base: Model,
    texts: list[Any],
    context: int | None,
    tau: list[float] | None,
    baseline: bool,
    only: Selection,
    seed: int,
    as_json: bool,
) -> None:
    taus = tuple(dict.fromkeys(tau)) if tau else TAUS
    found = against(model, base, *texts, context=context, tau=taus, baseline=baseline, only=only, seed=seed)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        show(found)


def show(found: Against, console: Console | None = None) -> None:
    """A row per head and matrix that changed, the noise of the same size beside it."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=_PLENTY, file=console.file)
    console.print(Text(f"{found.model} against {found.base}, {found.tokens} tokens", style="bold"), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, pad_edge=False)
    for name in ("head", "change in", "relative", *(f"rank {tau:g}" for tau in found.tau), "numerical", "of", "stable"):
        table.add_column(name, justify="left" if name in ("head", "change in") else "right", no_wrap=True)
    unchanged: set[str] = set()
    for head in found.heads:
        kind = " cross" if head.kind == "cross" else ""
        where = f"{head.stack} {head.block}{kind} head {head.head}" + (f" text {head.text}" if head.text else "")
        for name, change in head.changes.items():
            if change.is_zero:
                unchanged.add(name)
                continue
            twin = None if head.baseline is None else head.baseline.changes[name]
            table.add_row(where, name, *_cells(change, twin, found.tau))
            where = ""
    console.print(table)
    for line in _foot(found, unchanged):
        console.print(Text(line), soft_wrap=not console.is_terminal)


def _cells(change: Change, twin: Change | None, taus: tuple[float, ...]) -> list[str]:
    ranks, other = change.spectrum.ranks, None if twin is None else twin.spectrum.ranks

    def beside(own: object, noise: object) -> str:
        return f"{own}" if other is None else f"{own} ({noise})"

    return [
        f"{change.relative:.3g}",
        *(beside(ranks.at(tau), other and other.at(tau)) for tau in taus),
        beside(ranks.numerical, other and other.numerical),
        str(min(ranks.shape)),
        beside(f"{ranks.stable:.2f}", other and f"{other.stable:.2f}"),
    ]


def _foot(found: Against, unchanged: set[str]) -> list[str]:
    lines = [
        "relative: the size of the change over that of the base's matrix. rank t: how many singular values hold the "
        "share t of its energy. numerical: those above what rounding can make."
    ]
    if any(head.baseline for head in found.heads):
        lines.append("In brackets: the same, where each changed weight has Gaussian noise of the same size instead.")
    if unchanged:
        lines.append(f"Without a change in some heads, and not shown there: {', '.join(sorted(unchanged))}.")
    return lines
