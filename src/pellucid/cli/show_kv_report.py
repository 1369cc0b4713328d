"""A report on a cache in the terminal: bytes, ranks by block, and what each way of keeping less changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from statistics import median

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pellucid.spectra.kv_results import CachedHead, Change, Growth, KvReport, PartSpectrum

_GAP = 3  # between columns
_PLENTY = 400  # columns of a terminal that is none: a file has no edge

Columns = list[tuple[str, list[str]]]
Group = tuple[tuple[int, str, str], list[CachedHead]]


def show(report: KvReport, console: Console | None = None) -> None:
    """Print tables and how to read them. Where a terminal is too narrow, the last columns are left out, and told."""
    console = console or _console()
    console.print(f"[bold]{escape(report.model)}[/]: the cache of {report.tokens} tokens, {report.dtype}\n")
    _say(console, _growth_line(report.growth) + "\n")
    _print(console, _growth(report.growth), words=0)
    if report.heads:
        _print(console, _ranks(report), words=2)
        _say(console, _RANK_LINE)
    if report.loss is not None:
        _print(console, _changes(report.changes), words=1)
        _say(console, _change_line(report))
    for note in report.notes:
        _say(console, note)


def size(count: int) -> str:
    """In binary units, as memory is sold."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    step = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{count / 1024**step:.4g} {units[step]}"


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PLENTY)


def _say(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=not console.is_terminal)


def _print(console: Console, columns: Columns, words: int) -> None:
    """The first columns are words; the others are numbers."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), show_edge=False, header_style="bold", pad_edge=False)
    fitting, used = 0, 0
    for name, cells in columns:
        used += max(len(cell) for cell in (name, *cells)) + _GAP
        fitting += used <= console.width + _GAP
    for place, (name, _) in enumerate(columns[:fitting]):
        style = "dim" if name == "random" else None
        table.add_column(Text(name), justify="left" if place < words else "right", no_wrap=True, style=style)
    for row in zip(*(cells for _, cells in columns[:fitting]), strict=True):
        table.add_row(*map(Text, row))
    console.print(table)
    if fitting < len(columns):
        left_out = ", ".join(name for name, _ in columns[fitting:])
        console.print(Text(f"Too narrow for {left_out}: widen the terminal, or use --json.", style="yellow"))
    console.print()


# --- bytes ---


def _growth_line(growth: Growth) -> str:
    return f"{growth.formula}{' =' if growth.per_token else ':'} {growth.per_token:,} bytes per token and text"


def _growth(growth: Growth) -> Columns:
    columns = [
        ("context", [f"{room.context:,}" for room in growth.rooms]),
        ("bytes", [f"{room.bytes:,}" for room in growth.rooms]),
        ("", [size(room.bytes) for room in growth.rooms]),
    ]
    if any(room.source_bytes for room in growth.rooms):
        columns.append(("and its source", [size(room.source_bytes) for room in growth.rooms]))
    return columns


# --- ranks ---


_RANK_LINE = (
    "rank t: how many of the largest singular values hold the share t of the energy of a head's keys or values; "
    "stable: the energy over that of the largest. The median over the heads of a block, and the least and the most; "
    "random: the same of random weights. key: as cached, after any rotation. --json has every head.\n"
)


def _ranks(report: KvReport) -> Columns:
    """A row for each block and part, over its heads."""
    groups = list(_grouped(report.heads))
    columns = [
        ("block", [str(block) for (block, _, _), _ in groups]),
        ("part", [part if kind == "self" else f"cross {part}" for (_, kind, part), _ in groups]),
    ]
    for tau in report.tau:
        columns += _beside(f"rank {tau:g}", groups, lambda found, tau=tau: float(found.ranks.at(tau)), "g")  # type: ignore[misc]
    return columns + _beside("stable", groups, lambda found: found.ranks.stable, ".2f")


def _grouped(heads: Sequence[CachedHead]) -> Iterator[Group]:
    def place(head: CachedHead) -> tuple[int, str, str]:
        return head.block, head.kind, head.part

    order = {name: number for number, name in enumerate(dict.fromkeys(map(place, heads)))}
    for name, found in groupby(sorted(heads, key=lambda head: order[place(head)]), place):
        yield name, list(found)


def _beside(name: str, groups: list[Group], value: Callable[[PartSpectrum], float], how: str) -> Columns:
    """What was measured, and the baseline if there is one."""
    measured = [_spread([value(head.measured) for head in heads], how) for _, heads in groups]
    twins = [[head.baseline for head in heads if head.baseline is not None] for _, heads in groups]
    random = [("random", [_spread([value(twin) for twin in each], how) for each in twins])] if all(twins) else []
    return [(name, measured), *random]


def _spread(numbers: Sequence[float], how: str) -> str:
    """The median, and the ends where they differ."""
    low, high = (format(end, how) for end in (min(numbers), max(numbers)))
    return format(median(numbers), how) + ("" if low == high else f" ({low}-{high})")


# --- changes ---


def _changes(changes: Sequence[Change]) -> Columns:
    return [
        ("cache", [each.cache for each in changes]),
        ("bytes", [f"{each.bytes:,}" for each in changes]),
        ("kept", [f"{each.bytes / each.of:.1%}" for each in changes]),
        ("mean", [f"{each.mean:.3g}" for each in changes]),
        ("max", [f"{each.largest:.3g}" for each in changes]),
        ("KL", [f"{each.divergence:.3g}" for each in changes]),
        ("loss", [f"{each.loss:+.4f}" for each in changes]),
        ("same top", [f"{each.agreement:.1%}" for each in changes]),
    ]


def _change_line(report: KvReport) -> str:
    return (
        f"The cache of the first {report.cached} tokens was altered, and the {report.tokens - report.cached} after "
        "them were read with it. mean, max: of the absolute changes of their scores; KL: KL(unaltered || altered) of "
        "their distributions, in nats per token; loss: its change, from "
        f"{report.loss:.4f} nats per token; same top: how often the likeliest token stayed the same. rank r: each "
        "head's keys and values are replaced by their nearest matrices of rank r, kept as two factors where those are "
        "smaller. int8: a float32 scale for each head and token, of keys and values apart.\n"
    )
