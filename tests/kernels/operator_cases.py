"""Heads to hold an operator against its dense twin: every mask, every shape, large enough for several strips."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import AttentionOperator, DenseOperator
from pellucid.kernels.view import View
from tests.kernels.cases import CPU, draw, padding

TEXTS, HEADS, WIDTH, SCALE = 2, 4, 6, 0.7


def _first_keys_hidden(keys: int) -> Tensor:
    """The first text begins with padding: under a causal mask its first queries see nothing."""
    real = torch.ones(TEXTS, keys, dtype=torch.bool)
    real[0, : keys // 3] = False
    return real


def _one_empty_text(keys: int) -> Tensor:
    real = torch.ones(TEXTS, keys, dtype=torch.bool)
    real[0] = False
    return real


# By name, a mask over so many keys. Strips are 16 rows at least, and these masks cut through them.
MASKS: dict[str, Callable[[int], Mask]] = {
    "none": lambda keys: Mask(),
    "causal": lambda keys: Mask.causal(),
    "prefix": lambda keys: Mask(prefix=21),
    "prefix per text": lambda keys: Mask(prefix=torch.tensor([0, 30])),
    "window": lambda keys: Mask(window=9),
    "window of one": lambda keys: Mask(window=1),
    "causal and window": lambda keys: Mask(prefix=0, window=9),
    "prefix and window": lambda keys: Mask(prefix=20, window=12),
    "padding": lambda keys: Mask(padding=padding(keys, left=False)),
    "causal and padding": lambda keys: Mask(prefix=0, padding=_first_keys_hidden(keys)),
    "window and padding": lambda keys: Mask(window=7, padding=padding(keys, left=True)),
    "one empty text": lambda keys: Mask(padding=_one_empty_text(keys)),
}

# (queries, keys, offset): a whole text, a cache, one new token, two texts both ways, and all at once.
SIZES = [(45, 45, 0), (23, 57, 34), (1, 50, 49), (50, 23, 0), (23, 61, 0), (37, 60, 11)]

# For Triton, whose tiles are 64 or 128 rows high: mask, (queries, keys, offset), groups of keys, biased, head width,
# columns of the product.
CASES: dict[str, tuple[str, tuple[int, int, int], int, bool, int, int]] = {
    "none": ("none", (70, 70, 0), 4, False, 16, 5),
    "causal, two tiles": ("causal", (140, 140, 0), 2, False, 8, 3),
    "causal, biased": ("causal", (70, 70, 0), 2, True, 6, 3),
    "prefix": ("prefix", (45, 45, 0), 1, False, 20, 3),
    "prefix per text, biased": ("prefix per text", (45, 45, 0), 2, True, 6, 20),
    "window": ("window", (45, 45, 0), 4, False, 6, 3),
    "causal window, biased": ("causal and window", (45, 45, 0), 4, True, 33, 3),
    "blind rows": ("causal and padding", (45, 45, 0), 2, True, 6, 3),
    "one empty text": ("one empty text", (23, 45, 0), 2, False, 6, 3),
    "cache": ("causal", (23, 57, 34), 2, True, 6, 3),
    "one token": ("causal and window", (1, 50, 49), 2, False, 6, 3),
    "tall": ("window and padding", (50, 23, 0), 2, True, 6, 3),
    "wide": ("prefix and window", (23, 140, 11), 2, False, 6, 3),
}


def head_batch(
    mask: str,
    size: tuple[int, int, int],
    *,
    groups: int = 2,
    biased: bool = False,
    width: int = WIDTH,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, View]:
    queries, keys, offset = size
    query = draw(TEXTS, HEADS, queries, width, seed=1).to(dtype)
    key = draw(TEXTS, groups, keys, width, seed=2).to(dtype)
    bias = draw(HEADS, queries + keys - 1, seed=3).to(dtype) if biased else None
    return query, key, View(queries, keys, CPU, MASKS[mask](keys), bias, offset)


def dense_twin(query: Tensor, key: Tensor, view: View, scale: float = SCALE) -> DenseOperator:
    """The exact operator of the same, perhaps rounded, numbers."""
    bias = None if view.bias is None else view.bias.double()
    return DenseOperator(query.double(), key.double(), scale=scale, view=replace(view, bias=bias))


def relative(found: Tensor, exact: Tensor) -> float:
    """The error in the Frobenius norm, as a share of the whole."""
    return float((found.double() - exact).norm() / exact.norm())


def product_errors(operator: AttentionOperator, twin: DenseOperator, columns: int = 5) -> dict[str, float]:
    """How far the energy and the two products are from the exact ones."""
    heads = operator.query.shape[:2]
    x, y = (
        draw(*heads, length, columns, seed=seed).to(operator.query.device)
        for length, seed in ((twin.view.keys, 7), (twin.view.queries, 8))
    )
    energy, exact = operator.energy(), twin.energy()
    seen = exact > 0
    return {
        "energy": float(((energy - exact)[seen] / exact[seen]).abs().max()) if seen.any() else 0.0,
        "apply": relative(operator.apply(x.to(operator.moments.lse.dtype)), twin.apply(x)),
        "apply_transposed": relative(
            operator.apply_transposed(y.to(operator.moments.lse.dtype)), twin.apply_transposed(y)
        ),
    }
