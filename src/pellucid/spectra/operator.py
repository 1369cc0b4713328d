"""Which operator measures a head."""

from __future__ import annotations

from typing import Literal

import torch

from pellucid.errors import KernelError
from pellucid.kernels.operator import AttentionOperator, DenseOperator
from pellucid.kernels.operator_tiled import TiledOperator
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View

Backend = Literal["auto", "tiled", "triton", "dense"]


def open_operator(query: Query, key: Key, *, scale: float, view: View, backend: Backend = "auto") -> AttentionOperator:
    """The operator of a batch of heads. By itself, Triton's on a GPU, except in float64."""
    if backend == "auto":
        backend = "triton" if query.device.type == "cuda" and query.dtype != torch.float64 else "tiled"
    if backend == "dense":
        return DenseOperator(query, key, scale=scale, view=view)
    if backend == "tiled":
        return TiledOperator(query, key, scale=scale, view=view)
    try:
        from pellucid.kernels.operator_triton import TritonOperator
    except ImportError:
        raise KernelError("the Triton operator needs triton: pip install triton, or use backend='tiled'") from None
    return TritonOperator(query, key, scale=scale, view=view)
