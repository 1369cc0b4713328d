"""How much memory a cache will take, and whether there is that much."""

from __future__ import annotations

from pathlib import Path

import torch

from pellucid.errors import CacheError
from pellucid.model.cache import cache_bytes
from pellucid.model.config import ModelConfig

FIRST_ROOM = 256


def first_capacity(prompt: int, max_tokens: int) -> int:
    """Room for the prompt and the first tokens, a power of two: it is doubled when it is full."""
    return 1 << (prompt + min(max_tokens, FIRST_ROOM) - 1).bit_length()


def free_bytes(device: torch.device) -> int | None:
    """What can still be taken; None where the system does not tell."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + unused
    table = Path("/proc/meminfo")
    if device.type != "cpu" or not table.exists():
        return None
    lines = (line.split() for line in table.read_text().splitlines())
    return next((int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"), None)


def check_room(
    config: ModelConfig,
    batch: int,
    capacity: int,
    dtype: torch.dtype,
    free: int | None,
    *,
    copies: int = 1,
    sources: int = 0,
) -> None:
    """Refuse a cache that will not fit, with the numbers.

    copies: how many of it there are for a moment. sources: bytes that the keys and values of the sources take.
    """
    needed = copies * (cache_bytes(config, batch, capacity, dtype) + sources)
    if free is not None and needed > free:
        per_token = cache_bytes(config, 1, capacity, dtype) / capacity
        parts = [f"{_size(per_token)} per token"]
        if sources:
            parts.append(f"{_size(float(sources))} for the sources")
        if copies > 1:
            parts.append(f"{copies} copies for a moment")
        raise CacheError(
            f"a cache of {batch} texts of {capacity} tokens takes {_size(float(needed))} ({', '.join(parts)}), but "
            f"{_size(float(free))} are free: ask for fewer texts at once, for fewer tokens, or for a smaller dtype"
        )


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GB"
