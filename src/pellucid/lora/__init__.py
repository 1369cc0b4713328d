"""Low-rank adapters: see `docs/lora.md`."""

from __future__ import annotations

from pellucid.lora.adapters import Adapter, active, adapters, add, merge, off, remove, unmerge, use
from pellucid.lora.config import Lora
from pellucid.lora.files import convert, export, fitted, load, save

__all__ = [
    "Adapter",
    "Lora",
    "active",
    "adapters",
    "add",
    "convert",
    "export",
    "fitted",
    "load",
    "merge",
    "off",
    "remove",
    "save",
    "unmerge",
    "use",
]
