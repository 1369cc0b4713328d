"""Every position scheme on one screen or two.

A scheme acts at one of three places: it adds a vector to the embedding, turns queries and keys, or biases the scores.
All tables are computed from the config when they are needed, so a change of dtype never rounds them twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.kernels.view import Toeplitz
from pellucid.model import config as c
from pellucid.model.layers import Table

Places = Int[Tensor, "#batch token"]
Vectors = Float[Tensor, "#batch token width"]


@dataclass(frozen=True)
class Rotation:
    """Cosines and sines of the angles by which pairs of numbers are turned."""

    cos: Float[Tensor, "#batch 1 token pairs"]
    sin: Float[Tensor, "#batch 1 token pairs"]
    interleaved: bool

    def turn(self, x: Float[Tensor, "batch heads token width"]) -> Float[Tensor, "batch heads token width"]:
        """Turn the first 2 x pairs numbers of each vector; the others pass."""
        turned = 2 * self.cos.shape[-1]
        if self.interleaved:
            a, b = x[..., 0:turned:2], x[..., 1:turned:2]
        else:
            a, b = x[..., : turned // 2], x[..., turned // 2 : turned]
        pair = (a * self.cos - b * self.sin, b * self.cos + a * self.sin)
        both = torch.stack(pair, -1).flatten(-2) if self.interleaved else torch.cat(pair, -1)
        return torch.cat((both.to(x.dtype), x[..., turned:]), -1) if turned < x.shape[-1] else both.to(x.dtype)


class Positions(nn.Module):
    """The interface: three places to act, nothing at any of them."""

    def vectors(self, places: Places, dtype: torch.dtype) -> Vectors | None:
        """Added to the embedding."""
        return None

    def rotation(self, places: Places, dtype: torch.dtype) -> Rotation | None:
        """Turns queries and keys."""
        return None

    def bias(self, queries: int, keys: int, offset: int, like: Tensor) -> Toeplitz | None:
        """Added to the scores: an entry per head and distance, as `View` reads it, on the device of `like`."""
        return None


class SinusoidalPositions(Positions):
    def __init__(self, scheme: c.Sinusoidal, width: int) -> None:
        super().__init__()
        self.scheme, self.width = scheme, width

    def vectors(self, places: Places, dtype: torch.dtype) -> Vectors:
        return sinusoids(places, self.scheme, self.width).to(places.device, dtype)


class LearnedPositions(Positions):
    def __init__(self, scheme: c.Learned, context: int, width: int) -> None:
        super().__init__()
        self.skip = scheme.skip
        self.table = Table(context + scheme.skip, width)

    def vectors(self, places: Places, dtype: torch.dtype) -> Vectors:
        vectors: Vectors = self.table(places + self.skip)
        return vectors


class RelativePositions(Positions):
    def __init__(self, scheme: c.Relative, heads: int) -> None:
        super().__init__()
        self.max_distance = scheme.max_distance
        self.table = Table(2 * scheme.max_distance + 1, heads)

    def bias(self, queries: int, keys: int, offset: int, like: Tensor) -> Toeplitz:
        distance = distances(queries, keys, offset, like.device).clamp(-self.max_distance, self.max_distance)
        bias: Toeplitz = self.table(distance + self.max_distance).T
        return bias


class T5Positions(Positions):
    def __init__(self, scheme: c.T5Buckets, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.scheme, self.causal = scheme, causal
        self.table = Table(scheme.buckets, heads)

    def bias(self, queries: int, keys: int, offset: int, like: Tensor) -> Toeplitz:
        distance = distances(queries, keys, offset, like.device)
        bias: Toeplitz = self.table(t5_bucket(distance, self.scheme, causal=self.causal)).T
        return bias


class ALiBiPositions(Positions):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(heads)

    def bias(self, queries: int, keys: int, offset: int, like: Tensor) -> Toeplitz:
        # Filled one by one where a graph is made: a captured one cannot copy a list from the host.
        if torch.compiler.is_compiling():
            slopes = torch.cat([torch.full((1,), slope, dtype=like.dtype, device=like.device) for slope in self.slopes])
        else:
            slopes = torch.tensor(self.slopes, dtype=like.dtype, device=like.device)
        return -slopes[:, None] * distances(queries, keys, offset, like.device).abs()


class RotaryPositions(Positions):
    def __init__(self, scheme: c.Rotary, width: int) -> None:
        super().__init__()
        self.scheme, self.width = scheme, width

    def rotation(self, places: Places, dtype: torch.dtype) -> Rotation:
        angle, factor = rotary_angles(places, self.scheme, self.width)
        # Half-precision queries are turned in float32: a rounded cosine would turn and shrink them.
        exact = torch.promote_types(dtype, torch.float32)
        cos, sin = (waves(angle) * factor).to(places.device, exact)[:, :, None]
        return Rotation(cos, sin, self.scheme.layout == "interleaved")


def waves(angle: Float[Tensor, "*axes"]) -> Float[Tensor, "2 *axes"]:
    """cos and sin."""
    if torch.compiler.is_compiling():
        table: Tensor = _opaque_waves(angle)
        return table
    return torch.stack((angle.cos(), angle.sin()))


@torch.library.custom_op("pellucid::waves", mutates_args=(), schema="(Tensor angle) -> Tensor")
def _opaque_waves(angle: Tensor) -> Tensor:
    """One step to a compiler: if it saw through it, it would work out the cosines anew for every query and key."""
    return torch.stack((angle.cos(), angle.sin()))


@_opaque_waves.register_fake
def _(angle: Tensor) -> Tensor:
    return angle.new_empty((2, *angle.shape))


def build_positions(config: c.ModelConfig, *, causal: bool) -> Positions:
    match config.position:
        case c.NoPositions():
            return Positions()
        case c.Sinusoidal() as scheme:
            return SinusoidalPositions(scheme, config.width)
        case c.Learned() as scheme:
            assert config.context is not None
            return LearnedPositions(scheme, config.context, config.width)
        case c.Relative() as scheme:
            return RelativePositions(scheme, config.heads)
        case c.T5Buckets() as scheme:
            return T5Positions(scheme, config.heads, causal=causal)
        case c.ALiBi():
            return ALiBiPositions(config.heads)
        case c.Rotary() as scheme:
            return RotaryPositions(scheme, c.turned_width(config))


# --- the formulas ---


def distances(queries: int, keys: int, offset: int, device: torch.device) -> Int[Tensor, " distances"]:
    """key slot - query slot, from the last query's first key to the first query's last key."""
    return torch.arange(1 - queries - offset, keys - offset, device=device)


def sinusoids(places: Places, scheme: c.Sinusoidal, width: int) -> Vectors:
    """sin and cos of place / base^(2i/width), i = 0, 1, ...; an odd width ends on a sine without its cosine."""
    place = _exact(places)
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=place.device) / width
    angle = place[..., None] / scheme.base**exponent
    sin, cos = angle.sin(), angle.cos()[..., : width // 2]
    if scheme.layout == "half":
        table = torch.cat((sin, cos), -1)
    else:
        padded = torch.nn.functional.pad(cos, (0, width % 2))
        table = torch.stack((sin, padded), -1).flatten(-2)[..., :width]
    return table.to(getattr(torch, scheme.precision))


def rotary_angles(places: Places, scheme: c.Rotary, width: int) -> tuple[Float[Tensor, "#batch token pairs"], float]:
    """place x frequency for each pair, and the factor that the rotated numbers are multiplied by."""
    dtype: torch.dtype = getattr(torch, scheme.precision)
    place = _exact(places)
    exponent = torch.arange(0, width, 2, device=place.device).to(dtype) / width
    period = _stretched_base(scheme, width, place.to(dtype)) ** exponent
    # Each scaling keeps the order of operations of the released code, so that float32 frequencies are equal to the bit.
    frequency = 1.0 / period
    match scheme.scaling:
        case c.LinearScaling(factor=factor):
            frequency = frequency / factor
        case c.YarnScaling() as yarn:
            frequency = _yarn(period, yarn, scheme.base)
        case c.Llama3Scaling() as llama3:
            frequency = _llama3(frequency, llama3)
        case _:
            pass
    return place[..., None].to(dtype) * frequency, _attention_factor(scheme.scaling)


def _stretched_base(scheme: c.Rotary, width: int, place: Float[Tensor, "#batch token"]) -> float | Float[Tensor, ""]:
    """A base that depends on the length stays a tensor: a compiled graph must not stop to read it."""
    match scheme.scaling:
        case c.NtkScaling(factor=factor):
            return scheme.base * factor ** (width / (width - 2))
        case c.DynamicNtkScaling(factor=factor, original_context=context):
            length = place.max() + 1
            stretch = factor * length.clamp(min=context) / context - (factor - 1)
            return torch.where(length > context, scheme.base * stretch ** (width / (width - 2)), scheme.base)
        case _:
            return scheme.base


def _yarn(period: Tensor, yarn: c.YarnScaling, base: float) -> Tensor:
    """Peng et al. 2023: a pair that turns more than `fast` times over the original context keeps its frequency."""
    pairs = period.shape[0]

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(yarn.original_context / (times * 2 * math.pi)) / math.log(base)

    first, last = pair_that_turns(yarn.fast), pair_that_turns(yarn.slow)
    if yarn.whole_pairs:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    index = torch.arange(pairs, dtype=period.dtype, device=period.device)
    kept = 1 - ((index - first) / (last - first or 1e-3)).clamp(0, 1)
    return 1.0 / (yarn.factor * period) * (1 - kept) + 1.0 / period * kept


def _llama3(frequency: Tensor, llama3: c.Llama3Scaling) -> Tensor:
    wavelengths_per_context = llama3.original_context / (2 * math.pi / frequency)
    kept = ((wavelengths_per_context - llama3.low) / (llama3.high - llama3.low)).clamp(0, 1)
    return (1 - kept) * frequency / llama3.factor + kept * frequency


def _attention_factor(scaling: c.Scaling | None) -> float:
    if not isinstance(scaling, c.YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8h/n), h = 1..n, for a power of two n; further heads take every other slope of 2n."""
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-4 * h / power) for h in range(1, 2 * power, 2)]
    return slopes + between[: heads - power]


def t5_bucket(distance: Int[Tensor, " distances"], scheme: c.T5Buckets, *, causal: bool) -> Int[Tensor, " distances"]:
    """Half of the buckets for one distance each, half for ranges that grow up to max_distance.

    Seen from both sides, the upper half of the table is for keys after the query. The logarithm is taken in float32,
    as the trained models took it: the edges of the buckets depend on its rounding.
    """
    buckets = scheme.buckets if causal else scheme.buckets // 2
    reach = (-distance).clamp(min=0) if causal else distance.abs()
    exact = buckets // 2
    growth = torch.log(reach.clamp(min=1).float() / exact) / math.log(scheme.max_distance / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    bucket = torch.where(reach < exact, reach, far)
    return bucket if causal else bucket + (distance > 0) * buckets


def _exact(places: Places) -> Float[Tensor, "#batch token"]:
    """In float64, on the CPU where a device has none."""
    return (places.cpu() if places.device.type == "mps" else places).double()
