"""One cell of a trace as arithmetic: the numbers that it came from, written out, and their result in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid import axes
from pellucid.errors import InputError
from pellucid.lens import arithmetic as a
from pellucid.lens import exact as e
from pellucid.lens.arithmetic import Arithmetic, Label
from pellucid.lens.attention_cells import Cell, hidden_because, score, value_of, weight
from pellucid.lens.attention_cells import project as projected
from pellucid.lens.trace import Step, Trace
from pellucid.model import config as c
from pellucid.model.feed_forward import GatedFeedForward
from pellucid.model.heads import ClassifyHead, PoolHead, TagHead, UnembedHead, pool
from pellucid.pretrained.facade import Model


@dataclass(frozen=True)
class Explanation:
    """A cell: where it stands, its traced value, and the arithmetic that gives it again.

    terms: the numbers that go in, named; of many, the largest by magnitude and what the others add up to.
    error: of the result, relative to the traced value; the difference itself where that is 0.
    """

    site: str
    index: dict[str, int]
    value: float
    formula: str
    terms: tuple[tuple[str, float], ...]
    lines: tuple[str, ...]
    result: float
    error: float

    def to_json(self) -> dict[str, Any]:
        """Plain data; what the mask hides is null, since JSON has no infinity."""
        return {
            "site": self.site,
            "index": dict(self.index),
            "value": _finite(self.value),
            "formula": self.formula,
            "terms": [{"label": label, "value": _finite(value)} for label, value in self.terms],
            "lines": list(self.lines),
            "result": _finite(self.result),
            "error": self.error,
        }


@torch.no_grad()
def explain(trace: Trace, cell: str, model: Model) -> Explanation:
    """The arithmetic of one cell, such as "decoder.0.attention.scores[0,1,0]".

    cell: a site and an index along its axes; the batch may be left out where there is one text. Heads and tokens are
      counted in the model and the text, whatever part of them the trace was narrowed to.
    model: the one that was traced. A trace keeps no padding: where a cell's arithmetic depends on it, it is refused.
    """
    name, numbers = _parse(cell)
    step = trace[name]
    at = _index(step, numbers, cell)
    found = Cell(step, at, model.plain(), trace.tokens)
    work = _EXPLAINED[_kind(name)](found)
    value = float(step.full[at])
    _refuse_another_story(step, cell, work.result, value)
    index = dict(zip(step.axes, at, strict=True))
    return Explanation(
        name, index, value, step.formula, work.terms, work.lines, work.result, _error(work.result, value)
    )


def _parse(cell: str) -> tuple[str, list[int]]:
    found = re.fullmatch(r"\s*([\w.]+)\s*\[\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\]\s*", cell)
    if found is None:
        raise InputError(f"a cell is a site and an index, such as decoder.0.attention.scores[0,1,0], not {cell!r}")
    return found[1], [int(word) for word in found[2].split(",")]


def _index(step: Step, numbers: list[int], cell: str) -> tuple[int, ...]:
    sizes = step.full.shape
    if len(numbers) == len(sizes) - 1 and sizes[0] == 1:
        numbers = [0, *numbers]
    if len(numbers) != len(sizes):
        shape = ", ".join(f"{axis} {size}" for axis, size in zip(step.axes, sizes, strict=True))
        raise InputError(f"{cell} has {len(numbers)} indices, but {step.site} has the axes {shape}: give one for each")
    for axis, size, number in zip(step.axes, sizes, numbers, strict=True):
        if not 0 <= number < size:
            raise InputError(f"{cell}: {number} is out of range on the axis {axis}, which has {size}: 0 to {size - 1}")
    return tuple(numbers)


def _kind(site: str) -> str:
    """What a site holds, by the end of its name; cross-attention is attention."""
    *_, part, last = ("", *site.split("."))
    return "residual" if part == "residual" else "embedding" if last in ("tokens", "positions", "segments") else last


def _error(result: float, value: float) -> float:
    if result == value:
        return 0.0
    return abs(result - value) / abs(value) if value != 0 else abs(result - value)


def _refuse_another_story(step: Step, cell: str, result: float, value: float) -> None:
    """A result that the step's own check contradicts would explain something that did not happen."""
    if result == value or abs(result - value) <= 1e-4 * abs(value):
        return
    visible = step.full.double()
    largest = float(visible[visible.isfinite()].abs().amax()) if bool(visible.isfinite().any()) else 0.0
    if abs(result - value) <= max(1e-4, step.error) * largest:
        return
    # A step that fails its own check is shown as it is: the large error is the finding.
    if step.error < 1e-2:
        raise InputError(
            f"{cell} is {value:.6g}, but its arithmetic gives {result:.6g} where padding is left out of account, or "
            "where the scores were changed by a what-if: trace the text without padding, and the model as it is"
        )


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


# --- embedding, norms, residual sums ---


def _looked_up(cell: Cell) -> Arithmetic:
    """A row of a table, or a sine: the recipe looks it up again, since a trace keeps names of tokens, not ids."""
    result = float(cell.step.recipe.again({}).expand_as(cell.step.full)[cell.at])
    last, column, config = cell.step.site.split(".")[-1], cell.at[-1], cell.config
    token = cell.word(axes.TOKEN)
    if last == "tokens" and config.scale_embedding:
        factor = config.width**0.5
        row = Arithmetic(
            ((f"E[{token}, {column}]", result / factor),),
            (f"E[{token}, {column}] = {a.number(result / factor)}",),
            result / factor,
        )
        return a.times(row, "sqrt(width)", factor)
    if last == "positions" and isinstance(config.position, c.Sinusoidal):
        return _wave(config.position, config.width, cell.at[1], column)
    table = {"tokens": "E", "positions": "P", "segments": "S"}[last]
    label = f"{table}[{token}, {column}]"
    return Arithmetic(((label, result),), (f"{label} = {a.number(result)}, a row of the table",), result)


def _wave(scheme: c.Sinusoidal, width: int, place: int, column: int) -> Arithmetic:
    """The sine or cosine of place / base^(2i/width)."""
    half = (width + 1) // 2
    interleaved = scheme.layout == "interleaved"
    pair, is_sine = (column // 2, column % 2 == 0) if interleaved else (column % half, column < half)
    angle = place / scheme.base ** (2 * pair / width)
    result = math.sin(angle) if is_sine else math.cos(angle)
    lines = (
        f"angle = {place} / {scheme.base:g}^({2 * pair}/{width}) = {a.number(angle)}",
        f"{'sin' if is_sine else 'cos'}({a.number(angle)}) = {a.number(result)}",
    )
    return Arithmetic((("place", float(place)), ("angle", angle)), lines, result)


def _embedding_sum(cell: Cell) -> Arithmetic:
    return a.added([(name.split(".")[-1], float(cell.vector(name)[cell.at[-1]])) for name in cell.step.inputs])


def _normalised(cell: Cell) -> Arithmetic:
    parent, _, part = cell.step.site.rpartition(".")[0].rpartition(".")
    if part in ("embedding", "final"):
        module = cell.module(f"{parent}.{part}.normalize" if parent else f"{part}.normalize")
    else:
        module = cell.module(f"{parent}.before_{part}")
    return a.norm(cell.vector(cell.step.inputs[0]), cell.at[-1], module)


def _residual(cell: Cell) -> Arithmetic:
    """The stream and the change; with post-norm, normalised."""
    stream, change = (cell.vector(name) for name in cell.step.inputs)
    block, last = cell.step.site.split(".residual.")
    part = {"mid": "attention", "cross": "cross", "out": "feed_forward"}[last]
    module, column = cell.module(f"{block}.after_{part}"), cell.at[-1]
    summed = a.added([("residual", float(stream[column])), (part, float(change[column]))])
    if isinstance(module, torch.nn.Identity):
        return summed
    return summed.before(a.norm(stream + change, column, module))


# --- attention, from weights to output ---


def _heads(cell: Cell) -> Arithmetic:
    name = cell.step.site.removesuffix(".heads")
    if f"{name}.weights" not in cell.step.inputs:
        raise InputError(
            f"{cell.step.site} was computed by a kernel that forms no weights: trace it together with {name}.weights"
        )
    batch, head, query, column = cell.at
    weights = cell.recorded(f"{name}.weights")[batch, head, query]
    return a.dot(weights, value_of(cell, name)[:, column], lambda i: f"weight x value of {cell.key(i)}", "head")


def _attention_output(cell: Cell) -> Arithmetic:
    name = cell.step.site.removesuffix(".output")
    heads = cell.recorded(f"{name}.heads")[cell.at[0], :, cell.at[1]]
    wide = heads.shape[1]
    return a.linear(
        heads.flatten(), cell.linear(f"{name}.to_output"), cell.at[-1], lambda i: f"head {i // wide}, {i % wide}"
    )


# --- feed-forward ---


def _hidden(cell: Cell) -> Arithmetic:
    name = cell.step.site.removesuffix(".hidden")
    gated = isinstance(cell.module(name), GatedFeedForward)
    first = cell.linear(f"{name}.{'gate' if gated else 'up'}")
    return a.linear(cell.vector(f"{name}.input"), first, cell.at[-1], _plain("x"))


def _active(cell: Cell) -> Arithmetic:
    name = cell.step.site.removesuffix(".active")
    before = float(cell.vector(f"{name}.hidden")[cell.at[-1]])
    start = Arithmetic((("hidden", before),), (), before)
    active = a.activated(start, cell.config.feed_forward.activation)
    if not isinstance(cell.module(name), GatedFeedForward):
        return active
    up = a.linear(cell.vector(f"{name}.input"), cell.linear(f"{name}.up"), cell.at[-1], _plain("x"))
    result = active.result * up.result
    line = f"{a.number(active.result)} x {a.number(up.result)} = {a.number(result)}"
    return active.before(up).then(line, result)


def _output(cell: Cell) -> Arithmetic:
    if not cell.step.site.endswith("feed_forward.output"):
        return _attention_output(cell)
    name = cell.step.site.removesuffix(".output")
    return a.linear(cell.vector(f"{name}.active"), cell.linear(f"{name}.down"), cell.at[-1], _plain("active"))


# --- the task head ---


def _logits(cell: Cell) -> Arithmetic:
    head, row = cell.model.network.head, cell.at[-1]
    match head:
        case UnembedHead():
            return _unembedded(cell, head)
        case TagHead():
            return a.linear(cell.vector("final.norm"), head.to_labels, row, _plain("x"))
        case ClassifyHead():
            hidden = _pooled(cell, head.pooling)
            part = cell.config.head
            if isinstance(part, c.Classify) and part.hidden is not None:
                hidden = e.ACTIVATIONS[part.hidden](e.linear(hidden, head.dense))
            return a.linear(hidden, head.to_labels, row, _plain("x"))
        case PoolHead():
            return _vector_of_text(cell, head)


def _unembedded(cell: Cell, head: UnembedHead) -> Arithmetic:
    part, row = cell.config.head, cell.at[-1]
    assert isinstance(part, c.Unembed)
    x = cell.vector("final.norm")
    if part.transform is not None:
        x = e.norm(e.ACTIVATIONS[part.transform](e.linear(x, head.dense)), head.norm)
    table = cell.model.network.tokens.weight if head.weight is None else head.weight
    state = "state" if part.transform is None else f"state after the dense layer, {part.transform} and norm,"
    entry, name = cell.entry(row), f"{state} x row of the table"
    product = a.dot(x, e.exact(table[row]), lambda i: f"x[{i}] E[{entry}, {i}]", name)
    if part.scale != 1:
        product = a.times(product, "scale", part.scale)
    return product if head.bias is None else a.plus(product, "bias", float(e.exact(head.bias)[row]))


def _vector_of_text(cell: Cell, head: PoolHead) -> Arithmetic:
    pooled, column = _pooled(cell, head.part.pooling), cell.at[-1]
    vector = pooled if head.dense is None else torch.tanh(e.linear(pooled, head.dense))
    if head.dense is None:
        own = float(vector[column])
        work = Arithmetic((("pooled", own),), (f"{head.part.pooling} over the tokens = {a.number(own)}",), own)
    else:
        work = a.activated(a.linear(pooled, head.dense, column, _plain("pooled")), "tanh")
    if not head.part.normalize:
        return work
    length = float(vector.norm())
    result = work.result / length
    return work.then(f"/ length {a.number(length)} = {a.number(result)}", result, ("/ length", length))


def _pooled(cell: Cell, pooling: c.Pooling) -> Tensor:
    return pool(cell.recorded("final.norm"), pooling, None)[cell.at[0]]


def _probability(cell: Cell) -> Arithmetic:
    return a.softmax(cell.recorded("logits")[cell.at[:-1]], cell.at[-1], cell.entry)


def _score(cell: Cell) -> Arithmetic:
    work, hidden = score(cell), hidden_because(cell)
    if hidden is None:
        return work
    return work.then(f"mask: {hidden}, so the score is -infinity", -math.inf)


def _plain(name: str) -> Label:
    return lambda i: f"{name}[{i}]"


_EXPLAINED: dict[str, Callable[[Cell], Arithmetic]] = {
    "embedding": _looked_up,
    "sum": _embedding_sum,
    "norm": _normalised,
    "input": _normalised,
    "query": projected,
    "key": projected,
    "value": projected,
    "scores": _score,
    "weights": weight,
    "heads": _heads,
    "output": _output,
    "residual": _residual,
    "hidden": _hidden,
    "active": _active,
    "logits": _logits,
    "probabilities": _probability,
}
