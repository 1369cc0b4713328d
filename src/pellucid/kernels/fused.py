"""Softmax attention through PyTorch's fused kernels: SDPA everywhere, FlexAttention on a GPU.

Both equal `reference.softmax` in values and gradients; neither lets a caller see scores or weights. So does `grouped`,
which is for a compiler: two products that it can fuse the mask, the bias and the softmax into.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pellucid.errors import KernelError
from pellucid.kernels.reference import Heads, Key, Query, Value, softmax_weights
from pellucid.kernels.view import View


def sdpa(query: Query, key: Key, value: Value, *, scale: float, view: View) -> Heads:
    """Scaled dot product attention; a bias or a mask that is not plainly causal is written out as a matrix."""
    grouped = query.shape[1] != key.shape[1]
    if view.is_square_causal:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
    term = view.additive
    if term is not None and term.dtype != torch.bool:
        term = term.to(query.dtype)
    heads = scaled_dot_product_attention(query, key, value, attn_mask=term, scale=scale, enable_gqa=grouped)
    return heads if view.blind is None else heads.masked_fill(view.blind, 0)


def grouped(query: Query, key: Key, value: Value, *, scale: float, view: View) -> Heads:
    """For few queries: the heads of a group are the rows of one product, so that its keys are read once, in place."""
    batch, heads, queries, width = query.shape
    groups = key.shape[1]
    rows = (query * scale).reshape(batch, groups, -1, width)
    exact = torch.promote_types(query.dtype, torch.float32)
    matrix = (rows @ key.transpose(-1, -2)).to(exact).reshape(batch, heads, queries, -1)
    if view.dense_bias is not None:
        matrix = matrix + view.dense_bias
    if view.allowed is not None:
        matrix = matrix.masked_fill(~view.allowed, -torch.inf)
    weights = softmax_weights(matrix, view.blind is not None).to(value.dtype)
    return (weights.reshape(batch, groups, -1, matrix.shape[-1]) @ value).reshape(batch, heads, queries, -1)


def flex(query: Query, key: Key, value: Value, *, scale: float, view: View) -> Heads:
    """FlexAttention: the Toeplitz bias is read by distance and hidden blocks are skipped, so no matrix is written."""
    if query.device.type != "cuda":
        raise KernelError(
            f"the flex kernel runs on a GPU, but the query is on {query.device}, where it would write out the whole "
            "matrix in silence. Use kernel='fused'."
        )
    return _compiled_flex()(
        query,
        key,
        value,
        score_mod=_bias_by_distance(view),
        block_mask=view.block_mask,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _bias_by_distance(view: View) -> Any:
    bias, last = view.bias, view.queries - 1
    if bias is None:
        return None

    def add_bias(score: Tensor, text: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return score + bias[head, column - row + last]

    return add_bias


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
