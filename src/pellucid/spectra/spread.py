"""Heads and texts spread over processes: what `torchrun` starts, each with its share, gathered by the first.

Every process draws what it needs for a head from that head's own seed, so the result is that of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import distributed

from pellucid.spectra.measure import Share
from pellucid.spectra.results import Head, Spectra


def launched() -> Share:
    """This process's share: all of the work, unless a launcher says otherwise."""
    return Share(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))


def own_device(device: str) -> str:
    """`cuda` is this process's own GPU; any other device is as it was named."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


@contextmanager
def joined(share: Share) -> Iterator[None]:
    """The processes know each other while this lasts. Results go through the CPU, so gloo does on every device."""
    if share.of == 1:
        yield
        return
    distributed.init_process_group("gloo", rank=share.index, world_size=share.of)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def gather(own: Spectra, share: Share) -> Spectra | None:
    """The heads of all processes in the order of one; None in all processes but the first."""
    if share.of == 1:
        return own
    parts: list[Spectra | None] | None = [None] * share.of if share.index == 0 else None
    distributed.gather_object(own, parts)
    if parts is None:
        return None
    heads = [head for part in parts if part is not None for head in part.heads]
    return replace(own, heads=tuple(sorted(heads, key=_order)))


def _order(head: Head) -> tuple[int, bool, int, bool, int]:
    """As a forward pass meets them: the encoder first, and in a block the cross attention second."""
    return head.text, head.stack == "decoder", head.block, head.kind == "cross", head.head
