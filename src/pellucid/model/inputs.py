"""Refusing what the model cannot take, with the value seen, the value wanted and the next step.

Shapes are always checked. Values are checked where looking at them costs little: always on a CPU, without gradients on
a GPU (training must not wait for the device; there a wrong id is the device's own error), never in a compiled graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.mask import Bound
from pellucid.model.cache import prefix_slots


def check_ids(ids: Tensor, vocab: int, name: str = "ids") -> None:
    if ids.dim() != 2 or ids.is_floating_point():
        raise InputError(
            f"{name} must be integers of shape [batch, length], not {ids.dtype} of shape {list(ids.shape)}; "
            "for one text, add the batch axis: ids[None]"
        )
    if ids.numel() == 0:
        raise InputError(f"{name} are empty (shape {list(ids.shape)}): give at least one text with one token")
    if _values_can_be_read(ids):
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= vocab:
            raise InputError(
                f"{name} must lie in 0..{vocab - 1} (the vocabulary has {vocab} entries), but go from {low} to {high}: "
                "was the text encoded with this model's tokenizer?"
            )


def check_padding(padding: Tensor | None, ids: Tensor) -> None:
    if padding is None:
        return
    if padding.shape != ids.shape or padding.dtype != torch.bool:
        raise InputError(
            f"padding must be booleans of the shape of the ids, {list(ids.shape)} (True for a real token), "
            f"not {padding.dtype} of shape {list(padding.shape)}"
        )


def check_one_run(padding: Tensor | None) -> None:
    """Real tokens of a text stand side by side, or distances between them would count the padding."""
    if padding is None or not _values_can_be_read(padding):
        return
    starts = (padding[:, 1:] & ~padding[:, :-1]).sum(1) + padding[:, 0]
    if int(starts.max()) > 1:
        text = int(starts.argmax())
        raise InputError(
            f"padding of text {text} has {int(starts[text])} separate runs of real tokens: padding goes before the "
            "text or after it, never inside"
        )


def check_length(places: Tensor, slots: int, limit: int | None) -> None:
    """`limit` is how many positions learned tables hold. Padding fills slots, but needs no positions."""
    if limit is None or slots <= limit or not _values_can_be_read(places):
        return
    needed = int(places.max()) + 1
    if needed > limit:
        raise InputError(
            f"the text needs {needed} positions, but the model has {limit}: shorten it, or split it into parts of at "
            f"most {limit} tokens"
        )


def check_segments(segments: Tensor | None, tokens: Tensor, count: int) -> None:
    if segments is None:
        return
    if segments.shape != tokens.shape[:2]:
        raise InputError(
            f"segments must be integers of the shape of the ids, {list(tokens.shape[:2])}, not {list(segments.shape)}"
        )
    check_ids(segments, count, "segments")


def check_prefix(prefix: Bound, padding: Tensor | None, offset: int, tokens: int, *, cached: bool) -> None:
    """The tokens of a prefix see each other, so a cache must get them all at once."""
    if prefix is None or any(isinstance(x, Tensor) and not _values_can_be_read(x) for x in (prefix, padding)):
        return
    shortest = prefix if isinstance(prefix, int) else int(prefix.min())
    if shortest < 0:
        raise InputError(f"a prefix of {shortest} tokens cannot be: give 0 or more")
    end = prefix_slots(prefix, padding)
    longest = int(end.max()) if isinstance(end, Tensor) else int(end or 0)
    if cached and longest > (offset or tokens):
        raise InputError(
            f"a prefix of {longest} tokens (with the padding before them) does not fit: {offset} are cached and "
            f"{tokens} came; the whole prefix goes into the first call"
        )


def _values_can_be_read(x: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.device.type == "meta":
        return False
    if x.device.type != "cuda":
        return True
    return not torch.is_grad_enabled() and not torch.cuda.is_current_stream_capturing()
