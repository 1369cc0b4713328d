"""The tensors of a folder: named, shaped and typed before any of them is read."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pellucid.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
# What weights are stored as; float8 is a quantised format, whose scales we would not know.
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


@runtime_checkable
class Weights(Protocol):
    """Tensors by name, wherever they are kept; their shapes are known before they are read."""

    @property
    def names(self) -> Collection[str]: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def dtype(self, name: str) -> torch.dtype: ...
    def tensor(self, name: str, *, briefly: bool = False) -> Tensor:
        """briefly: it will be copied and dropped, and should leave no pages in memory then."""
        ...


@dataclass(frozen=True)
class Mapped:
    """Open safetensors files; a tensor is mapped when it is asked for, and read when it is used."""

    folder: Path
    files: dict[str, Any]
    names: dict[str, str]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.files[self.names[name]].get_slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """Known before the tensor is read; `tensor` refuses those that we do not know."""
        return DTYPES.get(self.files[self.names[name]].get_slice(name).get_dtype()) or self.tensor(name).dtype

    def tensor(self, name: str, *, briefly: bool = False) -> Tensor:
        """From the mapping of its file or, briefly, from one of its own."""
        shard = self.names[name]
        try:
            file = safe_open(self.folder / shard, framework="pt") if briefly else self.files[shard]
            tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError, RuntimeError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{shard} is damaged at tensor {name}: {error}") from None
        return usable(name, tensor)


def usable(name: str, tensor: Tensor) -> Tensor:
    """The tensor, if it holds numbers that a model can compute with. Infinity is one: a bias may rule a token out."""
    if tensor.dtype not in DTYPES.values():
        raise CheckpointError(f"tensor {name} holds {tensor.dtype}: quantised or integer weights cannot be opened")
    if not torch.isfinite(tensor.sum()) and bool(tensor.isnan().any()):
        raise CheckpointError(f"tensor {name} contains NaN: the checkpoint is broken, get it again")
    return tensor


@contextmanager
def open_weights(folder: Path) -> Iterator[Weights]:
    """All tensors of a folder, from one file or from shards with an index."""
    _refuse_without_safetensors(folder)
    index = {} if (folder / SINGLE).exists() else read_index(folder, INDEX)
    files: dict[str, Any] = {}
    try:
        for shard in dict.fromkeys(index.values()) if index else [SINGLE]:
            files[shard] = _open(folder / shard)
        found = {shard: set(file.keys()) for shard, file in files.items()}
        yield Mapped(folder, files, placed(found, index, INDEX))
    finally:
        for file in files.values():
            file.__exit__(None, None, None)


def has_weights(folder: Path) -> bool:
    return any((folder / name).exists() for name in (SINGLE, INDEX))


def pickles(folder: Path) -> list[Path]:
    return [folder / name for name in PICKLES if (folder / name).exists()]


def _refuse_without_safetensors(folder: Path) -> None:
    if has_weights(folder):
        return
    found = pickles(folder)
    if found:
        raise CheckpointError(
            f"{folder} has only pickled weights ({found[0].name}), which can run code when they are read. "
            f"Convert them once with: pellucid import {folder} NEW_FOLDER"
        )
    raise CheckpointError(f"{folder} has no {SINGLE} and no {INDEX}: is this the folder of a checkpoint?")


def read_index(folder: Path, index: str) -> dict[str, str]:
    """Which file of the folder holds which tensor, as an index of shards says."""
    weight_map = read_json(folder / index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no 'weight_map' from tensors to files: it is damaged")
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_beside(folder, shard):
            raise CheckpointError(f"{index} puts {name} in the file {shard!r}, which is not in {folder}")
    return weight_map


def placed(found: dict[str, set[str]], index: dict[str, str], file: str) -> dict[str, str]:
    """The shard of every tensor that was found in one; the index must be right, and decides between two shards."""
    for name, shard in index.items():
        if name not in found[shard]:
            raise CheckpointError(f"{file} says that {name} is in {shard}, but it is not")
    return {name: shard for shard, names in found.items() for name in names} | index


def _is_beside(folder: Path, name: str) -> bool:
    try:
        return Path(name).name == name and (folder / name).is_file()
    except OSError:  # a name that is too long for this file system
        return False


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
