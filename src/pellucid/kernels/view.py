"""What a row of queries sees of a row of keys: the mask, the bias and the offset, prepared once for all blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pellucid.kernels.mask import Mask

Result = TypeVar("Result")
# A bias per head that depends on the distance alone, stored once per distance: see `View`.
Toeplitz = Float[Tensor, "heads distances"]


class once(Generic[Result]):  # noqa: N801 (used as a decorator)
    """functools.cached_property without the lock that it has in Python 3.11: torch.compile cannot enter one."""

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, view: Any, owner: type | None = None) -> Result:
        result = self.function(view)
        view.__dict__[self.name] = result
        return result


@dataclass(frozen=True, eq=False)
class Ring:
    """Slots that are written over in turn, as the one query of a step sees them.

    age: how many tokens ago each slot was written, if it was. places: the query's place in each text: what is older
      than that many tokens is before the text began.
    """

    age: Int[Tensor, " key"]
    places: Int[Tensor, "batch 1"]

    @property
    def allowed(self) -> Bool[Tensor, "batch 1 1 key"]:
        return (self.age <= self.places)[:, None, None]


@dataclass(frozen=True, eq=False)
class View:
    """`queries` rows, of which row i sits at slot i + offset, looking at `keys` slots.

    bias: added to the scores. Entry t of a head belongs to the distance key slot - query slot =
      t - (queries - 1) - offset, so there are queries + keys - 1 entries.
    ring: for one query over slots in the order of a ring; the bias is that of the last of `keys` slots in a row.
    """

    queries: int
    keys: int
    device: torch.device
    mask: Mask = field(default_factory=Mask)
    bias: Toeplitz | None = None
    offset: int = 0
    ring: Ring | None = None

    def to(self, device: torch.device) -> View:
        """The same view, for queries and keys that were brought there."""
        bias = None if self.bias is None else self.bias.to(device)
        ring = None if self.ring is None else Ring(self.ring.age.to(device), self.ring.places.to(device))
        return replace(self, device=device, mask=self.mask.to(device), bias=bias, ring=ring)

    @once
    def allowed(self) -> Bool[Tensor, "#batch 1 #query #key"] | None:
        """True where a query may look; None where every query sees every key."""
        if self.ring is not None:
            return self.ring.allowed
        return self.mask.dense(self.queries, self.keys, self.offset, self.device)

    @once
    def dense_bias(self) -> Float[Tensor, "1 heads query key"] | None:
        """Row i is the window of `keys` entries of the bias that starts at queries - 1 - i."""
        if self.ring is not None and self.bias is not None:
            return self.bias[:, self.keys - 1 - self.ring.age][None, :, None]
        return None if self.bias is None else self.bias.unfold(-1, self.keys, 1).flip(-2)[None]

    @once
    def blind(self) -> Bool[Tensor, "#batch 1 #query 1"] | None:
        """True for the queries that may look at nothing; None where the form of the mask rules that out."""
        if self.allowed is None or not self._may_be_blind:
            return None
        return ~self.allowed.any(-1, keepdim=True)

    @once
    def additive(self) -> Tensor | None:
        """Mask and bias as one term for the scores: booleans without a bias. Blind queries see all, for finiteness."""
        allowed = self.allowed
        if allowed is not None and self.blind is not None:
            allowed = allowed | self.blind
        if self.dense_bias is None or allowed is None:
            return allowed if self.dense_bias is None else self.dense_bias
        return self.dense_bias.masked_fill(~allowed, -torch.inf)

    @once
    def block_mask(self) -> Any:
        """The mask as FlexAttention reads it: a function of slots, and the blocks that it empties."""
        from torch.nn.attention.flex_attention import create_block_mask

        prefix, window, padding, offset = self.mask.prefix, self.mask.window, self.mask.padding, self.offset
        documents = self.mask.documents
        if self.mask.is_everything:
            return None

        def allowed(text: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            slot = row + offset
            seen = column >= 0
            if prefix is not None:
                shown = prefix[text] if isinstance(prefix, Tensor) else prefix
                seen = seen & ((column <= slot) | (column < shown))
            if window is not None:
                seen = seen & ((slot - column).abs() < window)
            if documents is not None:
                seen = seen & (documents[text, slot] == documents[text, column])
            return seen if padding is None else seen & padding[text, column]

        texts = next((x.shape[0] for x in (padding, documents, prefix) if isinstance(x, Tensor)), None)
        return create_block_mask(allowed, texts, None, self.queries, self.keys, device=self.device)

    @property
    def is_square_causal(self) -> bool:
        square = self.offset == 0 and self.queries == self.keys and self.ring is None
        return square and self.mask.is_only_causal and self.bias is None

    def rows(self, start: int, stop: int) -> View:
        """The view of some of the queries, without the keys that are in the future of all of them."""
        if self.ring is not None:
            return self
        keys = min(self.offset + stop, self.keys) if self.mask.is_causal else self.keys
        skipped = self.queries - stop
        return replace(
            self,
            queries=stop - start,
            keys=keys,
            mask=self.mask.first_keys(keys),
            bias=None if self.bias is None else self.bias[:, skipped : skipped + stop - start + keys - 1],
            offset=self.offset + start,
        )

    @property
    def _may_be_blind(self) -> bool:
        """Told from the form of the mask, so that nothing waits for a GPU. In a ring a query sees its own key."""
        window = self.mask.window
        past_window = window is not None and self.offset + self.queries - self.keys >= window
        return self.mask.padding is not None or past_window
