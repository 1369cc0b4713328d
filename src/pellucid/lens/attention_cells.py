"""The arithmetic of a cell within attention: projections, scores and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid import axes
from pellucid.lens import arithmetic as a
from pellucid.lens import exact as e
from pellucid.lens.arithmetic import Arithmetic, Vector
from pellucid.lens.trace import Step
from pellucid.model import config as c
from pellucid.model.mechanisms import LinearMechanism, LinearTwin, LinformerMechanism
from pellucid.model.positions import alibi_slopes, rotary_angles, t5_bucket
from pellucid.model.stack import Stack
from pellucid.pretrained.facade import Model


@dataclass(frozen=True)
class Cell:
    """A number of a step, and what its arithmetic reads."""

    step: Step
    at: tuple[int, ...]
    model: Model
    tokens: tuple[str, ...]

    @property
    def config(self) -> c.ModelConfig:
        return self.model.config

    @property
    def is_cross(self) -> bool:
        return ".cross." in self.step.site

    @property
    def stack(self) -> str:
        """The stack whose text the queries come from."""
        named = self.step.site.split(".")[0]
        if named in ("encoder", "decoder"):
            return named
        return "decoder" if self.config.decoder_blocks else "encoder"

    @property
    def is_causal(self) -> bool:
        return self.stack == "decoder" and self.config.causal and not self.is_cross

    def module(self, name: str) -> nn.Module:
        return self.model.network.get_submodule(name)

    def linear(self, name: str) -> nn.Linear:
        found = self.module(name)
        assert isinstance(found, nn.Linear)
        return found

    def recorded(self, name: str) -> Tensor:
        return self.step.recorded[name].double()

    def vector(self, name: str) -> Vector:
        """The vector of this cell's text and token; values that all texts share are kept once."""
        found = self.recorded(name)
        return found[self.at[0] if found.shape[0] > 1 else 0, self.at[1]]

    def word(self, axis: str) -> str:
        return self._word(self.at[self.step.axes.index(axis)], known=not (self.is_cross and axis == axes.KEY))

    def key(self, slot: int) -> str:
        if isinstance(self.config.attention, c.Linformer):
            return f"mixture {slot}"
        return self._word(slot, known=not self.is_cross)

    def entry(self, row: int) -> str:
        """An entry of the vocabulary, or a label."""
        if isinstance(self.config.head, c.Unembed):
            return str(row) if self.model.tokenizer is None else self.model.tokenizer.token(row)
        return self.model.labels[row] if row < len(self.model.labels) else f"label {row}"

    def _word(self, slot: int, *, known: bool) -> str:
        """A token with its number; a trace names those of the first text of its last stack."""
        last = "decoder" if self.config.decoder_blocks else "encoder"
        if known and self.at[0] == 0 and self.stack == last:
            return f"{self.tokens[slot]} ({slot})"
        return f"token {slot}"


# --- projections ---


def project(cell: Cell) -> Arithmetic:
    """A number of a query, key or value: a product with a row of weights, then norm and rotation if there are any."""
    name, part = cell.step.site.rsplit(".", 1)
    batch, head, token, column = cell.at
    x = cell.recorded(cell.step.inputs[0])[batch, token]
    map_, wide = cell.linear(f"{name}.to_{part}"), cell.step.full.shape[-1]
    own = a.linear(x, map_, head * wide + column, lambda i: f"x[{i}]")
    if part == "value":
        return own
    vector = e.linear(x, map_)[head * wide : (head + 1) * wide]
    normalize = cell.module(f"{name}.norm_{part}")
    if not isinstance(normalize, nn.Identity):
        own, vector = own.before(a.norm(vector, column, normalize)), e.norm(vector, normalize)
    position = cell.config.position
    if cell.is_cross or isinstance(cell.config.attention, c.Linear) or not isinstance(position, c.Rotary):
        return own
    return _turned(cell, own, vector, position)


def _turned(cell: Cell, own: Arithmetic, vector: Vector, scheme: c.Rotary) -> Arithmetic:
    """One number of a pair (a, b), turned: a cos - b sin, or b cos + a sin."""
    _, _, token, column = cell.at
    places = torch.arange(cell.step.full.shape[2], device=vector.device)[None]
    angle, factor = rotary_angles(places, scheme, c.turned_width(cell.config))
    pairs = angle.shape[-1]
    if column >= 2 * pairs:
        return own.then("this number is not among those that are turned", own.result)
    interleaved = scheme.layout == "interleaved"
    pair, is_first = (column // 2, column % 2 == 0) if interleaved else (column % pairs, column < pairs)
    step = 1 if interleaved else pairs
    partner = column + step if is_first else column - step
    cos, sin = (float((wave(angle[0, token, pair]) * factor).double()) for wave in (torch.cos, torch.sin))
    other = float(vector[partner]) * (-sin if is_first else sin)
    result = own.result * cos + other
    line = (
        f"turned with its partner {a.number(float(vector[partner]))} (number {partner}): {a.number(own.result)} x "
        f"{a.number(cos)} {'-' if is_first else '+'} {a.number(float(vector[partner]))} x {a.number(sin)} "
        f"= {a.number(result)}"
    )
    return own.then(line, result, ("x cos", cos), ("+ partner x sin", other))


def key_of(cell: Cell, name: str) -> Float[Tensor, "key head_width"]:
    """The keys that this cell's head reads."""
    return _kept(cell, name, "key")


def value_of(cell: Cell, name: str) -> Float[Tensor, "key value_width"]:
    return _kept(cell, name, "value")


def _kept(cell: Cell, name: str, part: str) -> Tensor:
    """Those of the head's group; Linformer's are mixtures."""
    all_ = cell.recorded(f"{name}.{part}")[cell.at[0]]
    own = all_[cell.at[1] * all_.shape[0] // cell.config.heads]
    mechanism = cell.module(f"{name}.mechanism")
    if not isinstance(mechanism, LinformerMechanism):
        return own
    return e.exact(getattr(mechanism, f"{part}_projection"))[:, : len(own)] @ own


# --- scores ---


def score(cell: Cell) -> Arithmetic:
    """Products of a query and a key, their sum, scale and bias; the mask comes after."""
    name = cell.step.site.removesuffix(".scores")
    batch, head, query, key = cell.at
    left, right = cell.recorded(f"{name}.query")[batch, head, query], key_of(cell, name)[key]
    names = cell.word(axes.QUERY), cell.key(key)
    product = a.dot(left, right, lambda i: f"q[{names[0]}, {i}] k[{names[1]}, {i}]", "q k")
    product = a.times(product, "scale", cell.config.scale)
    bias = None if cell.is_cross else _bias(cell, head, key - query)
    return product if bias is None else a.plus(product, f"bias of distance {key - query}", bias)


def _bias(cell: Cell, head: int, distance: int) -> float | None:
    position = cell.config.position
    if isinstance(position, c.ALiBi):
        return -alibi_slopes(cell.config.heads)[head] * abs(distance)
    stack = cell.module(cell.stack)
    assert isinstance(stack, Stack)
    match position:
        case c.Relative(max_distance=far):
            row = max(-far, min(far, distance)) + far
        case c.T5Buckets():
            row = int(t5_bucket(torch.tensor([distance]), position, causal=cell.is_causal)[0])
        case _:
            return None
    table = stack.positions.table
    assert isinstance(table, nn.Embedding)
    return float(e.exact(table.weight)[row, head])


def hidden_because(cell: Cell) -> str | None:
    """Why the mask hides this cell's key from its query; None where it does not."""
    if isinstance(cell.config.attention, c.Linformer):
        return None
    query, key = cell.at[2:]
    window = None if cell.is_cross else cell.config.window_of(int(cell.step.site.split(".")[1]))
    if cell.is_causal and key > query:
        return f"{cell.key(key)} comes after {cell.word(axes.QUERY)}, and a causal mask hides the future"
    if window is not None and abs(query - key) >= window:
        return f"{cell.key(key)} is {abs(query - key)} away, outside the window of {window}"
    # A trace keeps no padding, but the value shows it.
    if float(cell.step.full[cell.at]) == (-math.inf if cell.step.site.endswith(".scores") else 0):
        return f"{cell.key(key)} is padding"
    return None


# --- weights ---


def weight(cell: Cell) -> Arithmetic:
    """A row of scores becomes weights, in the mechanism's own way."""
    name = cell.step.site.removesuffix(".weights")
    if isinstance(cell.config.attention, c.Linear):
        return _linear_weight(cell, name, cell.config.attention)
    row, own = cell.recorded(f"{name}.scores")[cell.at[:3]], cell.at[3]
    if isinstance(cell.config.attention, c.NormalizedRelu):
        work = a.normalized_relu(row, own, cell.key)
    else:
        work = a.softmax(row, own, cell.key)
    if float(row[own]) != -math.inf:
        return work
    return work.then(f"mask: {hidden_because(cell)}", work.result)


def _linear_weight(cell: Cell, name: str, part: c.Linear) -> Arithmetic:
    """phi(q)'phi(k) over the sum of the visible ones; rotation turns the numerator only."""
    batch, head, query, key = cell.at
    if cell.is_causal and key > query:
        return Arithmetic((), (f"mask: {hidden_because(cell)}",), 0.0)
    mechanism = cell.module(f"{name}.mechanism")
    assert isinstance(mechanism, LinearMechanism | LinearTwin)
    queries, keys = cell.recorded(f"{name}.query")[batch, head], key_of(cell, name)
    phi = [e.features(x[None, None], mechanism.map, part.features, cell.config.scale) for x in (queries, keys)]
    products = phi[1][0, 0] @ phi[0][0, 0, query]
    # What the mask hides, or what is padding, has the weight 0.
    products = products * (cell.step.full[batch, head, query] != 0)
    total = float(products.sum())
    if total == 0:
        return Arithmetic((), ("no feature of the query meets one of a key, so every weight is 0",), 0.0)
    work = a.quotient(products, key, cell.key, "phi(q) phi(k)", lambda i: "product of the features")
    if cell.is_cross or not isinstance(cell.config.position, c.Rotary):
        return work
    left, right = (_turned_features(cell, x)[0, 0] for x in phi)
    turned = float(left[query] @ right[key])
    line = f"turned features: {a.number(turned)} / {a.number(total)} = {a.number(turned / total)}"
    return work.then(line, turned / total, ("turned phi(q) phi(k)", turned))


def _turned_features(cell: Cell, x: e.PerHead) -> e.PerHead:
    assert isinstance(cell.config.position, c.Rotary)
    places = torch.arange(x.shape[2], device=x.device)[None]
    return e.turn(x, places, cell.config.position, c.turned_width(cell.config))
