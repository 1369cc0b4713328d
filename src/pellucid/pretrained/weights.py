"""The tensors of a folder: named, shaped and typed before any of them is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pellucid.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class Weights:
    """Open safetensors files; a tensor is mapped when it is asked for, and read when it is used."""

    files: dict[str, Any]
    names: dict[str, str]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.files[self.names[name]].get_slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self.files[self.names[name]].get_tensor(name)
        except (SafetensorError, RuntimeError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{self.names[name]} is damaged at tensor {name}: {error}") from None
        if not tensor.is_floating_point():
            raise CheckpointError(f"tensor {name} holds {tensor.dtype}: quantised or integer weights cannot be opened")
        if not torch.isfinite(tensor.sum()) and bool(tensor.isnan().any()):
            raise CheckpointError(f"tensor {name} contains NaN: the checkpoint is broken, get it again")
        return tensor


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """All tensors of a folder, from one file or from shards with an index."""
    shards = _shards(folder)
    files: dict[str, Any] = {}
    names: dict[str, str] = {}
    try:
        for shard, wanted in shards.items():
            files[shard] = _open(folder / shard)
            present = list(files[shard].keys())
            for name in wanted or present:
                if name not in present:
                    raise CheckpointError(f"{INDEX} says that {name} is in {shard}, but it is not")
                names[name] = shard
        yield Weights(files, names)
    finally:
        for file in files.values():
            file.__exit__(None, None, None)


def has_weights(folder: Path) -> bool:
    return any((folder / name).exists() for name in (SINGLE, INDEX))


def pickles(folder: Path) -> list[Path]:
    return [folder / name for name in PICKLES if (folder / name).exists()]


def _shards(folder: Path) -> dict[str, list[str] | None]:
    """The files to open, each with the tensors that the index puts there (None: all of them)."""
    if (folder / SINGLE).exists():
        return {SINGLE: None}
    if not (folder / INDEX).exists():
        found = pickles(folder)
        if found:
            raise CheckpointError(
                f"{folder} has only pickled weights ({found[0].name}), which can run code when they are read. "
                f"Convert them once with: pellucid import {folder} NEW_FOLDER"
            )
        raise CheckpointError(f"{folder} has no {SINGLE} and no {INDEX}: is this the folder of a checkpoint?")
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{INDEX} has no 'weight_map' from tensors to files: it is damaged")
    shards: dict[str, list[str] | None] = {}
    for name, shard in weight_map.items():
        if Path(shard).name != shard or not (folder / shard).exists():
            raise CheckpointError(f"{INDEX} names the file {shard!r}, which is not in {folder}")
        shards.setdefault(shard, [])
        shards[shard].append(name)  # type: ignore[union-attr]
    return shards


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt").__enter__()  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read ({error}): it is cut short or damaged, copy it again"
        ) from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path.name} must hold a JSON object, not {type(values).__name__}")
    return values
