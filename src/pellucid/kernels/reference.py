"""Attention exactly as it is written down: the readable twin of every faster kernel.

Shapes, everywhere: query [batch, heads, query, head_width], key [batch, groups, key, head_width], value
[batch, groups, key, value_width]. Heads share keys and values in equal groups, so heads is a multiple of groups.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.kernels.view import View

Query = Float[Tensor, "batch heads query head_width"]
Key = Float[Tensor, "batch groups key head_width"]
Value = Float[Tensor, "batch groups key value_width"]
Heads = Float[Tensor, "batch heads query value_width"]
Matrix = Float[Tensor, "batch heads query key"]


def softmax(query: Query, key: Key, value: Value, *, scale: float, view: View) -> Heads:
    """softmax(Q K' scale + bias) V over the keys that the mask shows."""
    return mix(softmax_weights(scores(query, key, scale=scale, view=view), view.blind is not None), value)


def normalized_relu(query: Query, key: Key, value: Value, *, scale: float, view: View) -> Heads:
    """relu(Q K' scale + bias) V, each row of weights divided by its sum."""
    return mix(normalized_relu_weights(scores(query, key, scale=scale, view=view)), value)


def scores(query: Query, key: Key, *, scale: float, view: View) -> Matrix:
    """Q K' scale + bias, and -inf where the mask hides the key."""
    matrix = (query * scale) @ share(key, query.shape[1]).transpose(-1, -2)
    if view.dense_bias is not None:
        matrix = matrix + view.dense_bias
    # In place: the matrix is ours, and no gradient needs what it held before.
    return matrix if view.allowed is None else matrix.masked_fill_(~view.allowed, -torch.inf)


def softmax_weights(matrix: Matrix, may_be_blind: bool = True) -> Matrix:
    """Row-wise softmax. A row with nothing to look at gives zeros, and zero gradients.

    may_be_blind: False where the view rules such rows out, which spares four passes over the matrix.
    """
    if not may_be_blind:
        return matrix.softmax(-1)
    blind = (matrix == -torch.inf).all(-1, keepdim=True)
    return matrix.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


def normalized_relu_weights(matrix: Matrix, may_be_blind: bool = True) -> Matrix:
    """relu, then each row divided by its sum. A row without a positive score gives zeros, and zero gradients.

    may_be_blind: as in `softmax_weights`; here any row can lack a positive score, so it spares nothing.
    """
    positive = matrix.relu()
    total = positive.sum(-1, keepdim=True)
    return positive / total.masked_fill(total == 0, 1)


def mix(weights: Matrix, value: Value) -> Heads:
    return weights @ share(value, weights.shape[1])


def share(grouped: Float[Tensor, "batch groups key width"], heads: int) -> Float[Tensor, "batch heads key width"]:
    """Give every head its group's keys or values."""
    return grouped if grouped.shape[1] == heads else grouped.repeat_interleave(heads // grouped.shape[1], 1)
