"""What the page needs to write a cell out as arithmetic: the sites that it is made of, and the constants of its step.

The constants (the scale of a score, the gain and shift of a norm) live inside a step's recipe. The recipe is the
verified formula, so it is asked for them at chosen inputs; nothing is worked out a second time here.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pellucid.lens.trace import Step
from pellucid.lens.view import is_whole


@dataclass(frozen=True)
class Arithmetic:
    """How a cell of a step is expanded: the kind that the page's script knows, the sites, and constants."""

    kind: str
    sites: tuple[str, ...]
    constants: dict[str, Any] = field(default_factory=dict)


def kind_of(step: Step) -> str | None:
    """The way in which a step's cells are made of its inputs; none where weights of the model take part."""
    part = step.site.rsplit(".", 1)[-1]
    if not step.inputs or not is_whole(step):
        return None
    if part == "scores":
        return "dot"
    if part in ("weights", "probabilities") and len(step.inputs) == 1:
        return "relu" if r"\max" in step.formula else "softmax"
    if part == "heads" and len(step.inputs) == 2:
        return "mix"
    if step.formula.startswith((r"y = \gamma", r"H' = \mathrm{norm}")):
        return "norm"
    if step.formula.startswith(_AFFINE) and step.value.dim() > 2 and _map_size(step) <= _LARGEST_MAP:
        return "linear"
    return _BY_FORMULA.get(step.formula)


# Affine maps of a token's vector. A rotation depends on the place, so turned queries and keys are none.
_AFFINE = ("Q = (X", "K = (X", "V = X", "O = [", "F = X", "Y = G", "z = x")
_LARGEST_MAP = 16_384

_BY_FORMULA = {r"H' = H + \Delta": "sum", r"H = X + P": "sum", r"y = x": "sum", r"G = f(F)": "apply"}


def arithmetic(step: Step) -> Arithmetic | None:
    """The arithmetic of a step's cells, with its constants; none where it cannot be shown from recorded sites."""
    kind = kind_of(step)
    if kind is None:
        return None
    sites = (step.site, *step.inputs)
    if kind in _CONSTANTS:
        constants = _CONSTANTS[kind](step)
        return None if constants is None else Arithmetic(kind, sites, constants)
    if kind == "mix" and step.recorded[step.inputs[0]].shape[-1] != step.recorded[step.inputs[1]].shape[-2]:
        return None
    return Arithmetic(kind, sites)


def embedded(value: Tensor) -> dict[str, Any]:
    """The value of the first text for the page's script: bytes of float32, or of float64 where the run was in it."""
    first = value[0].detach().cpu()
    first = (first if first.dtype == torch.float64 else first.float()).contiguous()
    return {
        "shape": list(first.shape),
        "bits": first.element_size() * 8,
        "data": b64encode(first.numpy().tobytes()).decode(),
    }


def embedded_size(value: Tensor) -> int:
    """The characters that `embedded` takes."""
    return value[0].numel() * (8 if value.dtype == torch.float64 else 4) * 4 // 3 + 100


def _score_constants(step: Step) -> dict[str, Any] | None:
    """The scale, and whether a bias is added; none where a score is no product of one query and one key."""
    query, key = (torch.zeros_like(step.recorded[name], dtype=torch.float64) for name in step.inputs)
    inputs = dict(zip(step.inputs, (query, key), strict=True))
    bias = step.recipe.again(inputs)[0]
    query[0, 0, 0, 0] = key[0, 0, 0, 0] = 1
    found = step.recipe.again(inputs)[0]
    seen = bias > -torch.inf
    change = torch.where(seen, found - bias, 0)
    # One query and one key meet in one cell (for each head that shares the key). Mixtures of keys meet in more.
    if int((change != 0).sum()) != 1 or change[0, 0, 0] == 0:
        return None
    return {"scale": float(change[0, 0, 0]), "bias": bool((bias[seen] != 0).any())}


def _norm_constants(step: Step) -> dict[str, Any] | None:
    """Gain, shift, epsilon, and whether the mean is taken off: the norm's answers to four chosen rows."""
    first = step.recorded[step.inputs[0]]
    width = first.shape[-1]
    row = torch.cos(torch.arange(width, dtype=torch.float64))
    row = row - row.mean()
    row = (row / row.square().mean().sqrt()).to(first.device)
    small = 1e-3
    rows = torch.stack([torch.zeros_like(row), row * 1e6, row * small, torch.ones_like(row)])[None]
    nothing = torch.zeros_like(rows)
    inputs = {step.inputs[0]: rows} | dict.fromkeys(step.inputs[1:], nothing)
    shift, large, little, even = step.recipe.again(inputs)[0]
    gain = (large - shift) / row
    # A broken model is shown as it is, but JSON has no infinity.
    if not bool((gain.isfinite() & shift.isfinite() & little.isfinite()).all()):
        return None
    strongest = int((gain * row).abs().argmax())
    answer = float((little - shift)[strongest])
    epsilon = (float((gain * row)[strongest]) * small / answer) ** 2 - small**2 if answer else 0.0
    return {
        "gain": [float(f"{part:.8g}") for part in gain.tolist()],
        "shift": [float(f"{part:.8g}") for part in shift.tolist()],
        "epsilon": float(f"{epsilon:.3g}"),
        "centred": bool(torch.allclose(even, shift)),
    }


def _per_token(value: Tensor) -> int:
    """The numbers that a token has: all heads together."""
    return value.shape[-1] * (value.shape[1] if value.dim() == 4 else 1)


def _map_size(step: Step) -> int:
    return _per_token(step.recorded[step.inputs[0]]) * _per_token(step.full)


def _map_constants(step: Step) -> dict[str, Any] | None:
    """The matrix and the bias of an affine map: its answers to the unit vectors and to zero."""
    given = step.recorded[step.inputs[0]]
    width = _per_token(given)
    rows = torch.cat([torch.zeros(1, width), torch.eye(width), 2 * torch.eye(width)]).double().to(given.device)[None]
    if given.dim() == 4:
        rows = rows.reshape(1, -1, given.shape[1], given.shape[-1]).transpose(1, 2)
    answer = step.recipe.again({step.inputs[0]: rows})[0]
    if answer.dim() == 3:
        answer = answer.transpose(0, 1).flatten(1)
    bias, once, twice = answer[0], answer[1 : width + 1] - answer[0], answer[width + 1 :] - answer[0]
    # A norm of queries or a head with a layer of its own is no affine map; infinite weights are none either.
    if not torch.allclose(2 * once, twice):
        return None
    dtype = torch.float64 if given.dtype == torch.float64 else torch.float32
    return {"matrix": embedded(once[None].to(dtype)), "shift": embedded(bias[None].to(dtype))}


_CONSTANTS: dict[str, Callable[[Step], dict[str, Any] | None]] = {
    "dot": _score_constants,
    "norm": _norm_constants,
    "linear": _map_constants,
}
