"""Arithmetic as a person writes it down: the numbers that go in, line by line, and what comes out, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.lens import exact as e

Term = tuple[str, float]
Vector = Float[Tensor, " width"]
Label = Callable[[int], str]

# So many products or exponentials are written out; the others are added up.
KEPT = 8


@dataclass(frozen=True)
class Arithmetic:
    """Terms with their names, the same as lines of text, and the result."""

    terms: tuple[Term, ...]
    lines: tuple[str, ...]
    result: float

    def then(self, line: str, result: float, *terms: Term) -> Arithmetic:
        """The same, continued by a line."""
        return Arithmetic((*self.terms, *terms), (*self.lines, line), result)

    def before(self, later: Arithmetic) -> Arithmetic:
        """Both, one after the other."""
        return Arithmetic((*self.terms, *later.terms), (*self.lines, *later.lines), later.result)


def number(x: float) -> str:
    return f"{x:.6g}"


def largest(values: Vector, *always: int) -> list[int]:
    """Where the largest numbers stand, in order; `always` is among them."""
    ranked = values.abs().argsort(descending=True, stable=True).tolist()
    return sorted([*dict.fromkeys((*always, *ranked))][:KEPT])


def dot(left: Vector, right: Vector, label: Label, name: str = "sum") -> Arithmetic:
    """A sum of products."""
    products = left * right
    shown = largest(products)
    terms = [(label(i), float(products[i])) for i in shown]
    written = " + ".join(f"({number(float(left[i]))} x {number(float(right[i]))})" for i in shown)
    result = float(products.sum())
    lines = [f"{name} = {written}"]
    if len(shown) < len(products):
        rest = result - sum(value for _, value in terms)
        terms.append((f"{len(products) - len(shown)} more", rest))
        lines.append(f"and {len(products) - len(shown)} more adding up to {number(rest)}")
    return Arithmetic(tuple(terms), (*lines, f"= {number(result)}"), result)


def linear(x: Vector, map_: nn.Linear, row: int, label: Label) -> Arithmetic:
    """The product with a row of weights, and its bias."""
    bias = None if map_.bias is None else map_.bias[row]
    return weighted(x, map_.weight[row], bias, label)


def weighted(x: Vector, weight: Tensor, bias: Tensor | None, label: Label) -> Arithmetic:
    product = dot(x, e.exact(weight), label, "input x weights")
    return product if bias is None else plus(product, "bias", float(bias.double()))


def plus(so_far: Arithmetic, name: str, value: float) -> Arithmetic:
    result = so_far.result + value
    return so_far.then(f"+ {name} {number(value)} = {number(result)}", result, (f"+ {name}", value))


def times(so_far: Arithmetic, name: str, value: float) -> Arithmetic:
    result = so_far.result * value
    return so_far.then(f"x {name} {number(value)} = {number(result)}", result, (f"x {name}", value))


def added(terms: Sequence[Term]) -> Arithmetic:
    result = sum(value for _, value in terms)
    written = " + ".join(f"{number(value)} ({name})" for name, value in terms)
    return Arithmetic(tuple(terms), (f"{written} = {number(result)}",), result)


def softmax(scores: Vector, own: int, label: Label) -> Arithmetic:
    """e^score over the sum of all of them. Large scores are lowered by the largest first, which cancels."""
    top = float(scores.max())
    if top == -math.inf:
        return Arithmetic((), ("no key is visible, so every weight of this row is 0",), 0.0)
    shift = top if abs(top) > 30 else 0.0
    power = (scores - shift).exp()
    written = "e^score" if shift == 0 else f"e^(score - {number(shift)}), the largest score taken off"
    return quotient(power, own, label, written, lambda i: f"e^{number(float(scores[i]) - shift)}")


def normalized_relu(scores: Vector, own: int, label: Label) -> Arithmetic:
    positive = scores.clamp(min=0)
    if float(positive.sum()) == 0:
        return Arithmetic((), ("no score of this row is positive, so every weight is 0",), 0.0)
    return quotient(positive, own, label, "max(score, 0)", lambda i: f"max({number(float(scores[i]))}, 0)")


def quotient(parts: Vector, own: int, label: Label, what: str, written: Label) -> Arithmetic:
    """A part over the sum of all parts."""
    shown = largest(parts, own)
    total = float(parts.sum())
    terms = [(label(i), float(parts[i])) for i in shown]
    lines = [f"{what}:", *(f"  {label(i)}: {written(i)} = {number(float(parts[i]))}" for i in shown)]
    if len(shown) < len(parts):
        rest = total - sum(value for _, value in terms)
        terms.append((f"{len(parts) - len(shown)} more", rest))
        lines.append(f"and {len(parts) - len(shown)} more adding up to {number(rest)}")
    result = float(parts[own]) / total
    lines += [f"sum = {number(total)}", f"{number(float(parts[own]))} / {number(total)} = {number(result)}"]
    return Arithmetic((*terms, ("sum", total)), tuple(lines), result)


def norm(x: Vector, i: int, module: nn.Module) -> Arithmetic:
    """One number of a normalised vector."""
    own = float(x[i])
    match module:
        case nn.LayerNorm():
            mean = float(x.mean())
            variance = float((x - mean).square().mean())
            root = math.sqrt(variance + module.eps)
            scaled = (own - mean) / root
            lines = (
                f"mean of {len(x)} numbers = {number(mean)}, variance = {number(variance)}",
                f"({number(own)} - {number(mean)}) / sqrt({number(variance)} + {module.eps:g}) = {number(scaled)}",
            )
            terms: tuple[Term, ...] = (("x", own), ("mean", mean), ("variance", variance), ("epsilon", module.eps))
            so_far = times(Arithmetic(terms, lines, scaled), "gain", float(e.exact(module.weight)[i]))
            return so_far if module.bias is None else plus(so_far, "shift", float(e.exact(module.bias)[i]))
        case nn.RMSNorm():
            assert module.eps is not None
            square = float(x.square().mean())
            scaled = own / math.sqrt(square + module.eps)
            lines = (
                f"mean of {len(x)} squares = {number(square)}",
                f"{number(own)} / sqrt({number(square)} + {module.eps:g}) = {number(scaled)}",
            )
            terms = (("x", own), ("mean square", square), ("epsilon", module.eps))
            return times(Arithmetic(terms, lines, scaled), "gain", float(e.exact(module.weight)[i]))
        case _:
            return Arithmetic((("x", own),), (f"{number(own)}, as it is: there is no norm here",), own)


def activated(so_far: Arithmetic, kind: str) -> Arithmetic:
    result = float(e.ACTIVATIONS[kind](torch.tensor(so_far.result, dtype=torch.float64)))
    return so_far.then(f"{kind}({number(so_far.result)}) = {number(result)}", result)
