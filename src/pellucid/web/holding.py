"""How many bytes a result keeps in memory: its tensors and arrays, each storage once, wherever in it they stand."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from pellucid.pretrained.facade import Model

NUMBER = 8
# What belongs to the model is there anyway; the rest holds no numbers.
NOT_COUNTED = (nn.Module, nn.Parameter, Model, ModuleType, type, int, float, bool, type(None))


def bytes_held(value: Any) -> int:
    seen: set[int] = set()
    total, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, NOT_COUNTED):
            continue
        mark = one.untyped_storage().data_ptr() if isinstance(one, Tensor) else id(one)
        if mark in seen:
            continue
        seen.add(mark)
        size, inside = _opened(one)
        total += size
        left += inside
    return total


def _opened(one: Any) -> tuple[int, list[Any]]:
    """The bytes of this object itself, and what to look into."""
    if isinstance(one, Tensor):
        return one.untyped_storage().nbytes(), []
    if isinstance(one, np.ndarray):
        return (one.nbytes, []) if one.base is None else (0, [one.base])
    if isinstance(one, str | bytes):
        return len(one), []
    if isinstance(one, Mapping):
        return 0, [*one.keys(), *one.values()]
    if isinstance(one, tuple | list):
        return (NUMBER * len(one), []) if one and isinstance(one[0], int | float) else (0, list(one))
    if isinstance(one, FunctionType):
        return 0, [cell.cell_contents for cell in one.__closure__ or ()]
    return 0, list(getattr(one, "__dict__", {}).values())
