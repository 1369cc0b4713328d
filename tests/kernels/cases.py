"""Small random attention problems, and the rules that they must obey, said in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View

CPU = torch.device("cpu")
BATCH, HEADS = 2, 4
SCALE = 0.4


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def padding(keys: int, *, left: bool) -> Tensor:
    """Two texts: one with a third of its slots empty, one full."""
    real = torch.ones(BATCH, keys, dtype=torch.bool)
    real[0, keys - keys // 3 :] = False
    return real.flip(1) if left else real


def _one_empty_text(keys: int) -> Tensor:
    real = torch.ones(BATCH, keys, dtype=torch.bool)
    real[0] = False
    return real


# By name, a mask over so many keys.
MASKS: dict[str, Callable[[int], Mask]] = {
    "none": lambda keys: Mask(),
    "causal": lambda keys: Mask.causal(),
    "window": lambda keys: Mask(window=3),
    "prefix": lambda keys: Mask(prefix=3),
    "prefix per text": lambda keys: Mask(prefix=torch.tensor([0, 4])),
    "padding left": lambda keys: Mask(padding=padding(keys, left=True)),
    "padding right": lambda keys: Mask(padding=padding(keys, left=False)),
    "causal and padding left": lambda keys: Mask.causal() & Mask(padding=padding(keys, left=True)),
    "causal and padding right": lambda keys: Mask.causal() & Mask(padding=padding(keys, left=False)),
    "causal and window": lambda keys: Mask.causal() & Mask(window=2),
    "prefix and window": lambda keys: Mask(prefix=3, window=2),
    "one empty text": lambda keys: Mask(padding=_one_empty_text(keys)),
}

# (queries, keys, offset): a whole text, a cache, one new token after a cache, two texts (the last query of the second
# pair stands just beyond a window of three), and all at once.
SIZES = [(7, 7, 0), (3, 9, 6), (1, 9, 8), (4, 9, 0), (7, 4, 0), (5, 9, 2)]


def shows(mask: Mask, text: int, slot: int, key: int) -> bool:
    """Whether the query at a slot of a text may look at a key: the docstring of `Mask` as a condition."""
    prefix = mask.prefix if mask.prefix is None or isinstance(mask.prefix, int) else int(mask.prefix[text])
    past = prefix is None or key <= slot or key < prefix
    near = mask.window is None or abs(slot - key) < mask.window
    return past and near and (mask.padding is None or bool(mask.padding[text, key]))


@dataclass(frozen=True)
class Problem:
    """The operands of a softmax-like kernel, as leaves of the graph."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    view: View

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in (self.query, self.key, self.value, self.bias) if x is not None]


def problem(
    mask: str | Mask = "none",
    queries: int = 7,
    keys: int = 7,
    offset: int = 0,
    *,
    groups: int = 2,
    biased: bool = False,
    value_width: int = 3,
    seed: int = 0,
) -> Problem:
    query = draw(BATCH, HEADS, queries, 5, seed=seed).requires_grad_()
    key = draw(BATCH, groups, keys, 5, seed=seed + 1).requires_grad_()
    value = draw(BATCH, groups, keys, value_width, seed=seed + 2).requires_grad_()
    bias = draw(HEADS, queries + keys - 1, seed=seed + 3).requires_grad_() if biased else None
    chosen = MASKS[mask](keys) if isinstance(mask, str) else mask
    return Problem(query, key, value, bias, View(queries, keys, CPU, chosen, bias, offset))


def outcome(kernel: Callable[..., Tensor], case: Problem) -> list[Tensor]:
    """The heads, then the gradients of query, key, value and bias under a fixed random cotangent."""
    # A view keeps what it worked out, and with it the graph: every run takes a fresh one.
    heads = kernel(case.query, case.key, case.value, scale=SCALE, view=replace(case.view))
    gradients = torch.autograd.grad(heads, case.leaves, draw(*heads.shape, seed=99), materialize_grads=True)
    return [heads.detach(), *gradients]


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-12) -> None:
    """Float64 sums of about ten numbers of size one: 1e-12 leaves three digits for the order of operations."""
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)
