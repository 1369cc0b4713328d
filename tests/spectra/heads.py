"""Random heads of many kinds, as operators of one head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import AttentionOperator, DenseOperator
from pellucid.kernels.operator_tiled import TiledOperator
from pellucid.kernels.view import View
from pellucid.spectra.spectrum import Effort

CPU = torch.device("cpu")
TAUS = (0.5, 0.9, 0.95, 0.99)


def head(
    queries: int,
    keys: int | None = None,
    *,
    width: int = 16,
    scale: float = 1.0,
    mask: Mask = Mask(),
    bias: Tensor | None = None,
    offset: int = 0,
    smooth: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> TiledOperator:
    """scale: the standard deviation of the scores. smooth: queries and keys wander instead of jumping."""
    keys, draw = queries if keys is None else keys, torch.Generator().manual_seed(seed)
    sides = [torch.randn(1, 1, n, width, generator=draw) for n in (queries, keys)]
    if smooth:
        sides = [side.cumsum(2) / math.sqrt(side.shape[2]) for side in sides]
    query, key = (side.to(dtype) for side in sides)
    view = View(queries, keys, CPU, mask, None if bias is None else bias.to(dtype), offset)
    return TiledOperator(query, key, scale=scale / math.sqrt(width), view=view)


def exact_values(operator: AttentionOperator) -> Tensor:
    """The singular values of the dense twin, in float64."""
    twin = DenseOperator(operator.query, operator.key, scale=operator.scale, view=operator.view)
    return torch.linalg.svdvals(twin.weights[0, 0])


@dataclass(frozen=True)
class Case:
    operator: TiledOperator
    effort: Effort
    described: str


def random_case(seed: int) -> Case:
    """Any mask, bias, shape, width, sharpness, type, budget and block."""
    pick, draw = Random(seed), torch.Generator().manual_seed(seed)
    queries = pick.randint(16, 200) if pick.random() < 0.9 else pick.randint(1, 16)
    keys = queries if pick.random() < 0.6 else pick.randint(2, 200)
    offset = pick.choice([0, max(keys - queries, 0)])
    kind = pick.choice(["none", "causal", "prefix", "window", "causal window", "padding", "causal padding"])
    near = pick.randint(1, max(queries // 2, 2))
    real = (torch.rand(1, keys, generator=draw) < 0.7).index_fill(1, torch.tensor([0]), True)
    mask = {
        "none": Mask(),
        "causal": Mask.causal(),
        "prefix": Mask(prefix=pick.randint(1, keys)),
        "window": Mask(window=near),
        "causal window": Mask(prefix=0, window=near),
        "padding": Mask(padding=real),
        "causal padding": Mask(prefix=0, padding=real),
    }[kind]
    distance = torch.arange(queries + keys - 1) - (queries - 1) - offset
    slope = 10 ** pick.uniform(-2, 0.3)
    bias = {
        "none": None,
        "alibi": -slope * distance.abs()[None].float(),
        "learned": 2 * torch.randn(1, queries + keys - 1, generator=draw),
    }[name := pick.choice(["none", "none", "alibi", "learned"])]
    width, scale = pick.choice([1, 2, 4, 8, 16, 33, 64]), 10 ** pick.uniform(-1.5, 1.3)
    smooth, dtype = pick.random() < 0.3, pick.choice([torch.float32, torch.float64])
    size = min(queries, keys)
    budget = pick.randint(1, size + 10)
    effort = Effort(
        tau=TAUS,
        top=pick.randint(1, min(budget, size)),
        budget=budget,
        block=pick.randint(1, min(budget, 64)),
        narrow=pick.choice([0.0, 0.05]),
    )
    operator = head(
        queries,
        keys,
        width=width,
        scale=scale,
        mask=mask,
        bias=bias,
        offset=offset,
        smooth=smooth,
        dtype=dtype,
        seed=seed,
    )
    words = f"{seed=} {queries}x{keys}+{offset} {kind=} {name=} {width=} {scale=:.3g} {smooth=} {dtype} {effort}"
    return Case(operator, effort, words)
