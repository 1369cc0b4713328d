"""PyTorch's linear map and table, left empty: init.py fills every parameter once, or a checkpoint does."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: drawing numbers twice is slow, and on the meta device PyTorch would load its compiler to do it."""


class Table(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing, as in `Linear`."""
