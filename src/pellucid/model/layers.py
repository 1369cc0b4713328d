"""PyTorch's linear map and table, left empty: init.py fills every parameter once, or a checkpoint does."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from pellucid.model.adapters import Changes


class Linear(nn.Linear):
    """change: what adapters add to the product, where there are any."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.change: Changes | None = None

    def forward(self, x: Tensor) -> Tensor:
        result = functional.linear(x, self.weight, self.bias)
        return result if self.change is None else self.change(x, result)

    def reset_parameters(self) -> None:
        """Nothing: drawing numbers twice is slow, and on the meta device PyTorch would load its compiler to do it."""


class Table(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing, as in `Linear`."""
