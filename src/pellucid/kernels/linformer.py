"""Linformer: keys and values are mixed along the sequence, from `key` slots to `rank`, before softmax attention.

softmax(Q (E K)' scale) (F V): every query sees every mixture and each mixture holds all slots, so there is no causal
form. Any softmax kernel finishes the work; on the reference kernel this is its own twin.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor


def project(
    mixture: Float[Tensor, "#batch rank key"],
    x: Float[Tensor, "batch groups key width"],
    padding: Bool[Tensor, "batch key"] | None,
) -> Float[Tensor, "batch groups rank width"]:
    """E K or F V, without the slots of padding."""
    seen = x if padding is None else x * padding[:, None, :, None].to(x.dtype)
    return mixture[:, None].to(x.dtype) @ seen
