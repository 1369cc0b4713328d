"""The numbers that note 000 prints for its worked example, beside the exact ones.

A printed entry is right if the exact chain rounds to it. A wrong one is a fresh mistake if even the note's own previous
step does not give it, and inherited if it follows from a step that was already wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.lens.trace import Trace
from pellucid.pretrained.bundled import worked_example as numbers

Mark = Literal["right", "fresh mistake", "inherited"]

# Sums such as 0.2 + 0.1 miss their decimal by a rounding, in float32 by about 1e-7.
HAIR = 1e-6
# A trace in float32 is still the note's model; one with norms or a mask is off by much more.
SAME_MODEL = 1e-5


@dataclass(frozen=True)
class NoteEntry:
    """A number as printed, as it is, and as it follows from what the note printed one step earlier."""

    printed: str
    exact: float
    from_previous: float
    mark: Mark

    def to_json(self) -> dict[str, Any]:
        return {
            "printed": self.printed,
            "exact": self.exact,
            "from_previous": self.from_previous,
            "mark": self.mark,
        }


@dataclass(frozen=True)
class NoteStep:
    """One printed matrix. times: what the site's value is multiplied by, where the note prints it before scaling."""

    name: str
    site: str
    times: float
    rows: tuple[tuple[NoteEntry, ...], ...]

    @property
    def entries(self) -> tuple[NoteEntry, ...]:
        return tuple(entry for row in self.rows for entry in row)

    def to_json(self) -> dict[str, Any]:
        rows = [[entry.to_json() for entry in row] for row in self.rows]
        return {"name": self.name, "site": self.site, "times": self.times, "rows": rows}


@dataclass(frozen=True)
class NoteComparison:
    """Every printed matrix in the note's order."""

    steps: tuple[NoteStep, ...]

    @property
    def entries(self) -> tuple[NoteEntry, ...]:
        return tuple(entry for step in self.steps for entry in step.entries)

    @property
    def right(self) -> int:
        return self._count("right")

    @property
    def fresh(self) -> int:
        return self._count("fresh mistake")

    @property
    def inherited(self) -> int:
        return self._count("inherited")

    @property
    def wrong(self) -> int:
        return self.fresh + self.inherited

    def _count(self, mark: Mark) -> int:
        return sum(entry.mark == mark for entry in self.entries)

    def __getitem__(self, name: str) -> NoteStep:
        for step in self.steps:
            if step.name == name:
                return step
        raise InputError(f"the note has no step {name!r}; it has {', '.join(step.name for step in self.steps)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "entries": len(self.entries),
            "right": self.right,
            "wrong": self.wrong,
            "fresh": self.fresh,
            "inherited": self.inherited,
            "steps": [step.to_json() for step in self.steps],
        }


def against_note(trace: Trace) -> NoteComparison:
    """Compare a trace of `worked-example` on "I love" (its norms left out, no mask) with what the note prints."""
    if trace.tokens != ("I", "love"):
        raise InputError(f"the note works 'I love' out, but the trace is of {' '.join(trace.tokens)!r}: trace that")
    steps, chain = [], _exact_chain()
    for step in PRINTED:
        exact = _traced(trace, step, chain[step.name])
        previous = step.compute(*(_numbers(_BY_NAME[name]) for name in step.inputs))
        steps.append(NoteStep(step.name, step.site, step.times, _rows(step, exact, previous)))
    return NoteComparison(tuple(steps))


def mark_of(printed: str, exact: float, previous: float) -> Mark:
    if _rounds_to(exact, printed):
        return "right"
    return "inherited" if _rounds_to(previous, printed) else "fresh mistake"


def _rounds_to(value: float, printed: str) -> bool:
    """Whether a value is within half a unit of the last printed place; either neighbour may be meant at the half."""
    decimals = len(printed.partition(".")[2])
    return abs(value - float(printed)) <= 0.5 * 10**-decimals + HAIR


# --- what the note prints, and how each matrix follows from the ones before ---


@dataclass(frozen=True)
class _Printed:
    """A matrix as printed, rows apart by semicolons, and the step that makes it from the matrices named."""

    name: str
    site: str
    text: str
    inputs: tuple[str, ...]
    compute: Callable[..., Tensor]
    times: float = 1.0

    @property
    def rows(self) -> list[list[str]]:
        return [row.split() for row in self.text.split(";")]


def _linear(weight: numbers.Matrix) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ numbers.matrix(weight)


def _embedded() -> Tensor:
    """The ids of "I love" are 0 and 1."""
    return numbers.matrix(numbers.EMBEDDING)[:2] + numbers.matrix(numbers.POSITIONS)


def _row_softmax(x: Tensor) -> Tensor:
    return x.exp() / x.exp().sum(-1, keepdim=True)


_ROOT = math.sqrt(3)
_ATTENTION, _FEED_FORWARD, _RESIDUAL = "decoder.0.attention", "decoder.0.feed_forward", "decoder.0.residual"
# The looked-up embeddings and the copied last row are left out: they repeat given or printed numbers.
PRINTED = (
    _Printed("embedding sum", "embedding.sum", "0.3 0.6 0.0; -0.1 1.0 0.6", (), _embedded),
    _Printed("query", f"{_ATTENTION}.query", "0.3 0.6 0.0; -0.1 1.0 0.6", ("embedding sum",), _linear(numbers.QUERY)),
    _Printed("key", f"{_ATTENTION}.key", "0.15 0.3 0.0; -0.05 0.5 0.3", ("embedding sum",), _linear(numbers.KEY)),
    _Printed("value", f"{_ATTENTION}.value", "0.3 0.6 0.0; -0.1 1.0 0.6", ("embedding sum",), _linear(numbers.VALUE)),
    _Printed(
        "unscaled scores",
        f"{_ATTENTION}.scores",
        "0.225 0.285; 0.285 0.685",
        ("query", "key"),
        lambda query, key: query @ key.T,
        times=_ROOT,
    ),
    _Printed(
        "scores",
        f"{_ATTENTION}.scores",
        "0.130 0.165; 0.165 0.396",
        ("unscaled scores",),
        lambda products: products / _ROOT,
    ),
    _Printed("weights", f"{_ATTENTION}.weights", "0.48 0.52; 0.34 0.66", ("scores",), _row_softmax),
    _Printed(
        "attention output",
        f"{_ATTENTION}.output",
        "0.092 0.808 0.312; 0.036 0.864 0.396",
        ("weights", "value"),
        torch.matmul,
    ),
    _Printed(
        "residual after attention",
        f"{_RESIDUAL}.mid",
        "0.392 1.408 0.312; -0.064 1.864 0.996",
        ("embedding sum", "attention output"),
        torch.add,
    ),
    _Printed(
        "hidden",
        f"{_FEED_FORWARD}.hidden",
        "-0.225 0.450 0.600 0.100; -0.350 0.200 0.800 0.050",
        ("residual after attention",),
        _linear(numbers.UP),
    ),
    _Printed(
        "active",
        f"{_FEED_FORWARD}.active",
        "0 0.450 0.600 0.100; 0 0.200 0.800 0.050",
        ("hidden",),
        lambda hidden: hidden.clamp(min=0),
    ),
    _Printed(
        "feed-forward output",
        f"{_FEED_FORWARD}.output",
        "-0.135 0.210 0.040; -0.220 0.360 -0.150",
        ("active",),
        _linear(numbers.DOWN),
    ),
    _Printed(
        "residual after feed-forward",
        f"{_RESIDUAL}.out",
        "0.257 1.618 0.352; -0.284 2.224 0.846",
        ("residual after attention", "feed-forward output"),
        torch.add,
    ),
    _Printed(
        "logits",
        "logits",
        "0.9706 2.2028 -0.023 0.9554",
        ("residual after feed-forward",),
        lambda stream: stream[-1:] @ numbers.matrix(numbers.EMBEDDING).T,
    ),
    _Printed("probabilities", "probabilities", "0.15 0.60 0.05 0.20", ("logits",), _row_softmax),
)
_BY_NAME = {step.name: step for step in PRINTED}


def _numbers(step: _Printed) -> Tensor:
    return numbers.matrix(tuple(tuple(map(float, row)) for row in step.rows))


def _exact_chain() -> dict[str, Tensor]:
    """Every matrix in float64 from the weights alone."""
    chain: dict[str, Tensor] = {}
    for step in PRINTED:
        chain[step.name] = step.compute(*(chain[name] for name in step.inputs))
    return chain


def _traced(trace: Trace, step: _Printed, expected: Tensor) -> Tensor:
    """The site's value as the note lays it out; the last rows where it prints no more. Another model is refused."""
    value = trace[step.site].value.double().cpu()
    matrix = value.reshape(-1, *value.shape[-2:])[0][-len(step.rows) :] * step.times
    if matrix.shape != expected.shape or bool(((matrix - expected).abs() > SAME_MODEL).any()):
        raise InputError(
            f"at {step.site} the trace is not the note's model: compare load('worked-example') itself, whole, without "
            "norms or a mask, in float32 or float64"
        )
    return matrix


def _rows(step: _Printed, exact: Tensor, previous: Tensor) -> tuple[tuple[NoteEntry, ...], ...]:
    return tuple(
        tuple(
            NoteEntry(text, value, local, mark_of(text, value, local))
            for text, value, local in zip(texts, values, locals_, strict=True)
        )
        for texts, values, locals_ in zip(step.rows, exact.tolist(), previous.tolist(), strict=True)
    )
