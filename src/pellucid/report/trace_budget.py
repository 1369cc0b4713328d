"""What of a trace fits into a page of a given size: how fine its heat maps are, and which cells open."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pellucid.lens.trace import Step, Trace
from pellucid.lens.view import is_whole, slices
from pellucid.report.arithmetic import Arithmetic, arithmetic, embedded, embedded_size, kind_of
from pellucid.report.heat import Map, draw

TABLE_SIDE = 12
# Pixels per side for attention weights, for scores, and for everything else, from the finest to the coarsest.
_SIDES = (
    (1024, 1024, 1024),
    (1024, 512, 256),
    (1024, 256, 128),
    (512, 128, 64),
    (256, 96, 48),
    (128, 64, 32),
    (64, 32, 32),
    (32, 16, 16),
    (8, 8, 8),
)


@dataclass(frozen=True)
class Contents:
    """The heat maps by site, the arithmetic by site, the embedded values, and what had to be left out."""

    maps: dict[str, list[Map]]
    arithmetic: dict[str, Arithmetic]
    values: dict[str, dict[str, Any]]
    left_out: list[str] = field(default_factory=list)


def is_table(step: Step) -> bool:
    return max(step.value.shape[-2:] if step.value.dim() > 2 else step.value.shape[-1:]) <= TABLE_SIDE


def contents(trace: Trace, budget: int) -> Contents:
    """Maps first, as fine as fits; then cells that open, from the smallest step to the largest."""
    left_out: list[str] = []
    maps = _maps([step for step in trace.steps if not is_table(step)], budget, left_out)
    remaining = budget - sum(one.size for drawn in maps.values() for one in drawn)
    found, values = _expandable(trace, remaining, left_out)
    return Contents(maps, found, values, left_out)


def _maps(steps: list[Step], budget: int, left_out: list[str]) -> dict[str, list[Map]]:
    """All maps on one level of fineness, which is the finest that fits."""
    drawn: dict[tuple[str, int], list[Map]] = {}
    for sides in _SIDES:
        chosen = {step.site: _side(step.site, sides) for step in steps}
        total = 0
        for step in steps:
            key = (step.site, chosen[step.site])
            # A level that is over before its end is not drawn to its end: large maps are slow to compress.
            if total > budget:
                break
            if key not in drawn:
                drawn[key] = _drawn(step, chosen[step.site], drawn)
            total += sum(one.size for one in drawn[key])
        if total <= budget:
            maps = {site: drawn[site, side] for site, side in chosen.items()}
            left_out += _pooling(maps)
            return maps
    if steps:
        left_out.append(f"The heat maps of {len(steps)} steps: not even the coarsest fit into the size of this page.")
    return {}


def _drawn(step: Step, side: int, known: dict[tuple[str, int], list[Map]]) -> list[Map]:
    """The maps of a step; those of another limit, where the limit changes nothing."""
    largest = max(step.value.shape[-2:])
    for (site, other), maps in known.items():
        if site == step.site and largest <= min(side, other):
            return maps
    return [draw(part, side) for part in slices(step)]


def _side(site: str, sides: tuple[int, int, int]) -> int:
    weights, scores, others = sides
    return weights if site.endswith(".weights") else scores if site.endswith(".scores") else others


def _pooling(maps: dict[str, list[Map]]) -> list[str]:
    """A line for each size of rectangle that became one pixel."""
    counted: dict[tuple[int, int], Counter[str]] = {}
    for site, drawn in maps.items():
        for one in drawn:
            if one.rows_each * one.columns_each > 1:
                counted.setdefault((one.rows_each, one.columns_each), Counter())[site.rsplit(".", 1)[-1]] += 1
    return [
        f"Full resolution of {parts.total()} maps ({', '.join(parts)}): "
        f"a pixel is the mean of {rows} x {columns} cells."
        for (rows, columns), parts in counted.items()
    ]


def _expandable(
    trace: Trace, remaining: int, left_out: list[str]
) -> tuple[dict[str, Arithmetic], dict[str, dict[str, Any]]]:
    """Cells that open, as many steps as fit; a site that several steps read is embedded once."""
    found: dict[str, Arithmetic] = {}
    kept: dict[str, Any] = {}
    missing: list[str] = []
    possible = [step for step in trace.steps if kind_of(step) is not None]
    for step in sorted(possible, key=_weight):
        new = [name for name in (step.site, *step.inputs) if name not in kept]
        cost = sum(embedded_size(step.recorded[name]) for name in new)
        if cost > remaining:
            missing.append(step.site)
            continue
        made = arithmetic(step)
        cost += 0 if made is None else len(json.dumps(made.constants))
        if made is None or cost > remaining:
            missing.append(step.site)
            continue
        found[step.site] = made
        kept |= {name: step.recorded[name] for name in new}
        remaining -= cost
    order = [step.site for step in trace.steps]
    left_out += _arithmetic_left_out(trace, sorted(missing, key=order.index))
    return found, {name: embedded(value) for name, value in kept.items()}


def _arithmetic_left_out(trace: Trace, missing: list[str]) -> list[str]:
    lines = []
    if missing:
        lines.append(f"The arithmetic behind the cells of {len(missing)} steps: {_few(missing)}.")
    closed = [step for step in trace.steps if kind_of(step) is None]
    chosen = [step.site for step in closed if not is_whole(step)]
    if chosen:
        lines.append(
            f"The arithmetic of {len(chosen)} steps of which only some heads or tokens were kept: {_few(chosen)}."
        )
    others = [step.site for step in closed if is_whole(step)]
    if others:
        lines.append(
            f"The arithmetic of {len(others)} steps that read the model's own weights, which are not in this page: "
            f"{_few(others)}."
        )
    return lines


def _weight(step: Step) -> int:
    return sum(embedded_size(step.recorded[name]) for name in (step.site, *step.inputs))


def _few(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"
