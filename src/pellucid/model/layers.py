"""PyTorch's linear map and table, left empty: init.py fills every parameter once, or a checkpoint does."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional


class Linear(nn.Linear):
    """product: what multiplies; a decoding twin may have one that is made for single rows."""

    product: Callable[[Tensor, Tensor, Tensor | None], Tensor] = staticmethod(functional.linear)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.product(x, self.weight, self.bias)
        return result

    def reset_parameters(self) -> None:
        """Nothing: drawing numbers twice is slow, and on the meta device PyTorch would load its compiler to do it."""


class Table(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing, as in `Linear`."""
