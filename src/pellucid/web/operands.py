"""Which cells a cell was computed from: a rectangle of each operand, for the page's arrows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pellucid.lens.trace import Step

Range = tuple[int, int]
Index = tuple[int, ...]
Sizes = tuple[int, ...]
Ranges = tuple[Range, Range, Range]
Rule = Callable[[Index, Sizes], Ranges]


@dataclass(frozen=True)
class Operand:
    """Slices, rows and columns of a site, each a half-open range."""

    site: str
    slices: Range
    rows: Range
    columns: Range

    def to_json(self) -> dict[str, Any]:
        return {"site": self.site, "slices": self.slices, "rows": self.rows, "columns": self.columns}


def operands(step: Step, index: Index, *, summed_before_norm: bool) -> list[Operand]:
    """index: along the axes of the step, the batch left out. summed_before_norm: a sum is normalised afterwards."""
    found = []
    for name in step.inputs:
        sizes = tuple(step.recorded[name].shape[1:])
        sizes = (1, *sizes)[-3:] if len(sizes) > 1 else (1, 1, sizes[0])
        rule = _rule(step.site, name, summed_before_norm)
        # Heads share keys and values in equal groups.
        shared = (index[0] * sizes[0] // step.full.shape[1], *index[1:]) if len(index) == 3 else index
        ranges = rule(shared, sizes)
        found.append(Operand(name, *(_within(one, size) for one, size in zip(ranges, sizes, strict=True))))
    return found


def _rule(site: str, name: str, summed_before_norm: bool) -> Rule:
    if ".residual." in site:
        return _row if summed_before_norm else _same_cell
    return _RULES.get((site.rsplit(".", 1)[-1], name.rsplit(".", 1)[-1]), _row)


def _row(index: Index, sizes: Sizes) -> Ranges:
    """A token's whole vector, of every head where there are heads."""
    token = index[-2] if len(index) > 1 else 0
    rows = _one(token) if len(index) > 1 else (0, sizes[1])
    return (0, sizes[0]), rows, (0, sizes[2])


def _same_cell(index: Index, sizes: Sizes) -> Ranges:
    return (0, sizes[0]), _one(index[-2]), _one(index[-1])


def _query(index: Index, sizes: Sizes) -> Ranges:
    return _one(index[0]), _one(index[1]), (0, sizes[2])


def _key(index: Index, sizes: Sizes) -> Ranges:
    return _one(index[0]), _one(index[2]), (0, sizes[2])


def _value(index: Index, sizes: Sizes) -> Ranges:
    return _one(index[0]), (0, sizes[1]), _one(index[2])


def _one(place: int) -> Range:
    return place, place + 1


def _within(one: Range, size: int) -> Range:
    return max(0, min(one[0], size)), max(0, min(one[1], size))


# By what the step holds and what the operand holds; a row where nothing else is said.
_RULES: dict[tuple[str, str], Rule] = {
    ("sum", "tokens"): _same_cell,
    ("sum", "positions"): _same_cell,
    ("sum", "segments"): _same_cell,
    ("active", "hidden"): _same_cell,
    ("scores", "query"): _query,
    ("scores", "key"): _key,
    ("weights", "scores"): _query,
    ("heads", "weights"): _query,
    ("heads", "value"): _value,
}
