"""The arithmetic of the textbook in float64, written apart from the kernels that it checks.

What defines a model is taken from it as it stands: weights, rotation angles, buckets of distances, slopes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pellucid.model import config as c
from pellucid.model.mechanisms import RandomFeatureMap
from pellucid.model.positions import alibi_slopes, rotary_angles, t5_bucket

Matrix = Float[Tensor, "batch heads query key"]
PerHead = Float[Tensor, "batch heads token width"]


def exact(x: Tensor) -> Tensor:
    return x.detach().double()


def linear(x: Tensor, map_: nn.Linear) -> Tensor:
    product = x @ exact(map_.weight).T
    return product if map_.bias is None else product + exact(map_.bias)


def norm(x: Tensor, module: nn.Module) -> Tensor:
    """Each vector by its own mean and deviation, or by its own root mean square."""
    match module:
        case nn.LayerNorm():
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * exact(module.weight)
            return scaled if module.bias is None else scaled + exact(module.bias)
        case nn.RMSNorm():
            assert module.eps is not None
            return x / (x.pow(2).mean(-1, keepdim=True) + module.eps).sqrt() * exact(module.weight)
        case _:
            return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x * (x > 0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
}


def split(x: Float[Tensor, "batch token joined"], heads: int) -> PerHead:
    batch, tokens, joined = x.shape
    return x.view(batch, tokens, heads, joined // heads).permute(0, 2, 1, 3)


def share(grouped: Float[Tensor, "batch groups token width"], heads: int) -> PerHead:
    """Head h reads group h // (heads / groups)."""
    owner = torch.arange(heads, device=grouped.device) * grouped.shape[1] // heads
    return grouped[:, owner]


def sinusoids(places: Tensor, scheme: c.Sinusoidal, width: int) -> Tensor:
    """Rounded as the model's table is."""
    column = torch.arange(width, device=places.device)
    half = (width + 1) // 2
    pair = column // 2 if scheme.layout == "interleaved" else column % half
    sine = column % 2 == 0 if scheme.layout == "interleaved" else column < half
    angle = places[..., None].double() / scheme.base ** (2 * pair.double() / width)
    return torch.where(sine, angle.sin(), angle.cos()).to(getattr(torch, scheme.precision)).double()


def turn(x: PerHead, places: Tensor, scheme: c.Rotary, width: int) -> PerHead:
    """Each pair (a, b) as a complex number, multiplied by factor x (cos + i sin), rounded as the model rounds them."""
    angle, factor = rotary_angles(places, scheme, width)
    circle = torch.complex(angle.cos() * factor, angle.sin() * factor).to(torch.complex128)
    pairs = angle.shape[-1]
    index = torch.arange(pairs, device=x.device)
    first, second = (2 * index, 2 * index + 1) if scheme.layout == "interleaved" else (index, index + pairs)
    turned = torch.complex(x[..., first], x[..., second]) * circle[:, None]
    result = x.clone()
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def bias(position: c.Position, table: Tensor | None, heads: int, tokens: int, *, causal: bool) -> Tensor | None:
    """What a scheme adds to the score of each head, query and key."""
    place = torch.arange(tokens)
    distance = place[None, :] - place[:, None]
    match position:
        case c.ALiBi():
            return -torch.tensor(alibi_slopes(heads), dtype=torch.float64)[:, None, None] * distance.abs()
        case c.Relative():
            assert table is not None
            return exact(table)[
                distance.clamp(-position.max_distance, position.max_distance) + position.max_distance
            ].permute(2, 0, 1)
        case c.T5Buckets():
            assert table is not None
            bucket = t5_bucket(distance.flatten(), position, causal=causal).view(tokens, tokens)
            return exact(table)[bucket].permute(2, 0, 1)
        case _:
            return None


def visible(
    queries: int, keys: int, *, causal: bool, window: int | None, padding: Bool[Tensor, "batch key"] | None
) -> Bool[Tensor, "#batch 1 query key"]:
    query, key = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if causal:
        seen = seen & (key <= query)
    if window is not None:
        seen = seen & ((query - key).abs() < window)
    return seen if padding is None else seen & padding[:, None, None, :].cpu()


def softmax(matrix: Float[Tensor, "*axes key"]) -> Float[Tensor, "*axes key"]:
    """e^s over its sum, in rows; a row without a finite score is zero."""
    top = matrix.amax(-1, keepdim=True)
    power = torch.exp(matrix - torch.where(top.isfinite(), top, torch.zeros_like(top)))
    total = power.sum(-1, keepdim=True)
    return torch.where(total > 0, power / total.clamp(min=torch.finfo(torch.float64).tiny), torch.zeros_like(power))


def normalized_relu(matrix: Matrix) -> Matrix:
    positive = matrix * (matrix > 0)
    positive = torch.where(matrix.isfinite(), positive, torch.zeros_like(positive))
    total = positive.sum(-1, keepdim=True)
    return torch.where(total > 0, positive / torch.where(total > 0, total, torch.ones_like(total)), positive)


def features(
    x: PerHead, map_: nn.Module, kind: c.Features, scale: float, largest_over: tuple[int, ...] = ()
) -> Float[Tensor, "batch heads token features"]:
    """phi(x); random features are divided by their largest over these axes, where such a factor cancels.

    So far keys keep features here that underflow in a model's float32: a trace then shows the error that it makes.
    """
    match kind:
        case c.EluPlusOne():
            return torch.where(x > 0, x + 1, torch.exp(x))
        case c.Relu():
            return x * (x > 0)
        case c.PositiveRandom():
            assert isinstance(map_, RandomFeatureMap)
            scaled = x * math.sqrt(scale)
            projected = torch.einsum("bhnd,md->bhnm", scaled, exact(map_.projection))
            exponent = projected - scaled.pow(2).sum(-1, keepdim=True) / 2
            shift = exponent.amax(largest_over, keepdim=True) if largest_over else 0
            return torch.exp(exponent - shift) / math.sqrt(kind.count)
