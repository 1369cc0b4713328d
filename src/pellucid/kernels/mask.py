"""Which keys a query may look at: one type for every mask of the library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Bound = int | Int[Tensor, " batch"] | None
Documents = Int[Tensor, "batch slot"] | None


@dataclass(frozen=True, eq=False)
class Mask:
    """A conjunction of the conditions under which query slot i sees key slot j; `&` joins two masks.

    prefix: None shows the future; n shows key j if j <= i or j < n. So 0 is the causal mask. One n, or one per text.
    window: shows key j if |i - j| < window.
    padding: shows key j of a text only where True.
    documents: a number per slot; shows key j if slots i and j have the same. So texts packed in a row stay apart.
    """

    prefix: Bound = None
    window: int | None = None
    padding: Bool[Tensor, "batch key"] | None = None
    documents: Documents = None

    @staticmethod
    def causal() -> Mask:
        return Mask(prefix=0)

    def __and__(self, other: Mask) -> Mask:
        return Mask(
            prefix=_shorter(self.prefix, other.prefix),
            window=_narrower(self.window, other.window),
            padding=_both(self.padding, other.padding),
            documents=_finer(self.documents, other.documents),
        )

    @property
    def is_causal(self) -> bool:
        """No query sees a later key."""
        return isinstance(self.prefix, int) and self.prefix == 0

    @property
    def is_everything(self) -> bool:
        """Every query sees every key."""
        return self.prefix is None and self._is_plain

    @property
    def is_only_causal(self) -> bool:
        return self.is_causal and self._is_plain

    @property
    def _is_plain(self) -> bool:
        return self.window is None and self.padding is None and self.documents is None

    def to(self, device: torch.device) -> Mask:
        """The same mask with its tensors there."""
        tensors: dict[str, Any] = {
            name: part.to(device) for name, part in vars(self).items() if isinstance(part, Tensor)
        }
        return replace(self, **tensors)

    def first_keys(self, keys: int) -> Mask:
        """The same mask over the first `keys` keys alone."""
        return self if self.padding is None else replace(self, padding=self.padding[:, :keys])

    def dense(
        self, queries: int, keys: int, offset: int = 0, device: torch.device | None = None
    ) -> Bool[Tensor, "#batch 1 #query #key"] | None:
        """The mask as booleans, True where a query may look; None where every query sees every key.

        Query row i sits at slot i + offset: a cache puts `offset` keys before the first query.
        """
        slot = torch.arange(offset, offset + queries, device=device)[:, None]
        key = torch.arange(keys, device=device)
        allowed = None if self.padding is None else self.padding[:, None, None, :]
        if self.prefix is not None and not (self.is_causal and offset >= keys - 1):
            prefix = self.prefix
            shown = prefix.to(key.device)[:, None, None, None] if isinstance(prefix, Tensor) else prefix
            allowed = _both(allowed, ((key <= slot) | (key < shown)).reshape(-1, 1, queries, keys))
        if self.window is not None and max(offset + queries, keys - offset) > self.window:
            allowed = _both(allowed, ((slot - key).abs() < self.window)[None, None])
        if self.documents is not None:
            own = self.documents[:, None, offset : offset + queries, None]
            allowed = _both(allowed, own == self.documents[:, None, None, :keys])
        return allowed


def _shorter(a: Bound, b: Bound) -> Bound:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


def _narrower(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


def _finer(a: Documents, b: Documents) -> Documents:
    """Numbers that are equal where both are."""
    if a is None or b is None:
        return b if a is None else a
    return (a - a.min()) * (b.max() - b.min() + 1) + b - b.min()


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b
