"""Linear attention: weights phi(q_i)'phi(k_j) / sum_j phi(q_i)'phi(k_j), in time and memory linear in the length.

The kernels take features, not queries and keys; the feature maps stand at the end. Where positions rotate, they turn
the features of the numerator only (Su et al. 2021, eq. 19): the plain features of the denominator stay positive.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from pellucid.kernels.mask import Mask
from pellucid.kernels.reference import Heads, Matrix

Values = Float[Tensor, "batch heads key value_width"]


@dataclass(frozen=True)
class Phi:
    """The features of queries or keys: `turned` in the numerator, `plain` in the denominator."""

    plain: Float[Tensor, "batch heads token features"]
    turned: Float[Tensor, "batch heads token features"]

    def without(self, padding: Bool[Tensor, "batch token"] | None) -> Phi:
        """The same with the keys of padding silenced."""
        if padding is None:
            return self
        keep = padding[:, None, :, None].to(self.plain.dtype)
        return Phi(self.plain * keep, self.turned * keep)


@dataclass(frozen=True)
class State:
    """All that past keys and values can do to a later query; its size does not depend on their number."""

    moments: Float[Tensor, "batch heads features value_width"]
    normalizer: Float[Tensor, "batch heads features"]


def reference_weights(query: Phi, key: Phi, *, causal: bool) -> Matrix:
    """The twin: form all products, mask them, divide each row by the sum of its plain products."""
    mask = Mask.causal() if causal else Mask()
    numerator = _visible(query.turned @ key.turned.transpose(-1, -2), mask)
    return _ratio(numerator, _visible(query.plain @ key.plain.transpose(-1, -2), mask).sum(-1))


def summarize(key: Phi, value: Values) -> State:
    moments = key.turned.transpose(-1, -2) @ value.to(key.turned.dtype)
    return State(moments, key.plain.sum(-2))


def joined(a: State, b: State) -> State:
    """The summary of the keys of both."""
    return State(a.moments + b.moments, a.normalizer + b.normalizer)


def read(query: Phi, state: State, dtype: torch.dtype) -> Heads:
    """Every query reads the summary of all keys."""
    numerator = query.turned @ state.moments.to(query.turned.dtype)
    denominator = (query.plain * state.normalizer[:, :, None].to(query.plain.dtype)).sum(-1)
    return _ratio(numerator, denominator).to(dtype)


def causal(query: Phi, key: Phi, value: Values, state: State | None = None, chunk: int = 128) -> tuple[Heads, State]:
    """Query i reads keys up to i, after those that `state` sums up. Returns the state after the last key too.

    Within a chunk the products are formed; from chunk to chunk only the sums of phi(k) v' pass.
    """
    length = value.shape[-2]
    q, k, v = (_chunks(x.to(query.turned.dtype), chunk) for x in (query.turned, key.turned, value))
    sums = _long_sum(k.transpose(-1, -2) @ v, 2)
    past = functional.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))
    normalizer = _long_sum(key.plain, 2)
    last = State(sums[:, :, -1], normalizer[:, :, -1])
    if state is not None:
        past = past + state.moments[:, :, None]
        normalizer = normalizer + state.normalizer[:, :, None]
        last = joined(last, state)
    within = (q @ k.transpose(-1, -2)).tril() @ v
    numerator = (within + q @ past.to(q.dtype)).flatten(2, 3)[:, :, :length]
    return _ratio(numerator, (query.plain * normalizer).sum(-1)).to(value.dtype), last


def elu_plus_one(x: Float[Tensor, "*axes head_width"]) -> Float[Tensor, "*axes head_width"]:
    return functional.elu(x) + 1


def positive_random(
    x: Float[Tensor, "*axes head_width"],
    projection: Float[Tensor, "features head_width"],
    scale: float,
    *,
    shift: bool = False,
) -> Float[Tensor, "*axes features"]:
    """FAVOR+: features whose products are exp(scale q'k) in expectation over the rows w ~ N(0, I) of `projection`.

    phi(x) = exp(w'x - |x|^2/2) / sqrt(features), x scaled by sqrt(scale). `shift` divides each row by its largest
    feature, which a query may do (it cancels in the ratio) and a key may not. In float32 all features of a key vanish
    when it is further than about 13 from every row.
    """
    scaled = x * scale**0.5
    exponent = scaled @ projection.T - scaled.square().sum(-1, keepdim=True) / 2
    if shift:
        exponent = exponent - exponent.amax(-1, keepdim=True).detach()
    return exponent.exp() / projection.shape[0] ** 0.5


def gaussian_rows(
    features: int, width: int, *, orthogonal: bool, generator: torch.Generator | None = None
) -> Float[Tensor, "features width"]:
    """Rows that are each N(0, I); if asked, orthogonal to each other in blocks of `width`."""

    def gaussian(rows: int) -> Tensor:
        return torch.randn(rows, width, dtype=torch.float64, generator=generator)

    if not orthogonal:
        return gaussian(features)
    blocks = []
    for start in range(0, features, width):
        directions, upper = torch.linalg.qr(gaussian(width))
        # QR leaves the signs to the library; this makes the directions uniform.
        directions = directions * upper.diagonal().sign()
        lengths = gaussian(width).norm(dim=1)
        blocks.append((directions.T * lengths[:, None])[: features - start])
    return torch.cat(blocks)


def _chunks(x: Tensor, chunk: int) -> Float[Tensor, "batch heads chunks chunk width"]:
    batch, heads, length, width = x.shape
    padded = functional.pad(x, (0, 0, 0, -length % chunk))
    return padded.reshape(batch, heads, -1, chunk, width)


def _long_sum(x: Tensor, axis: int) -> Tensor:
    """Running sums, in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32)).cumsum(axis)


def _visible(matrix: Matrix, mask: Mask) -> Matrix:
    allowed = mask.dense(matrix.shape[-2], matrix.shape[-1], device=matrix.device)
    return matrix if allowed is None else matrix.masked_fill(~allowed, 0)


def _ratio(
    numerator: Float[Tensor, "batch heads query width"], denominator: Float[Tensor, "batch heads query"]
) -> Float[Tensor, "batch heads query width"]:
    """A query whose plain products are all zero gets zeros."""
    empty = (denominator == 0)[..., None]
    return (numerator / denominator[..., None].masked_fill(empty, 1)).masked_fill(empty, 0)
