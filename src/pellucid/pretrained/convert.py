"""Read a checkpoint whose weights may be pickled, and write it anew in the Hugging Face layout with safetensors.

A pickle can run any code when it is read. torch's weights-only reader builds tensors and plain containers and refuses
everything else; no other reader is used here, and `load` uses none.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.pretrained.load import OWN_CONFIG, find_folder, load_family
from pellucid.pretrained.save import export
from pellucid.pretrained.weights import (
    PICKLES,
    Weights,
    has_weights,
    open_weights,
    pickles,
    placed,
    read_index,
    usable,
)

SINGLE, INDEX = PICKLES


@dataclass(frozen=True)
class Unpickled:
    """Tensors that have been read from pickles; their numbers are still in the files, mapped."""

    tensors: dict[str, Tensor]

    @property
    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        return self.tensors[name].dtype

    def tensor(self, name: str, *, briefly: bool = False) -> Tensor:
        return usable(name, self.tensors[name])


def convert(source: str | os.PathLike[str], destination: str | os.PathLike[str], family: str | None = None) -> Path:
    """Check every tensor of a checkpoint as `load` does, and write it so that `load` opens it.

    source: a folder with safetensors or pickled weights, or a hub id. family: for a config that does not name its own.
    """
    folder = find_folder(source)
    if not has_weights(folder) and not pickles(folder):
        folder = find_folder(source, "*.bin")
    if (folder / OWN_CONFIG).exists():
        raise CheckpointError(f"{folder} is already in our own layout: open it with load, or write it with export")
    with torch.no_grad(), _open(folder) as weights:
        model = load_family(folder, weights, family, device=torch.device("cpu"), dtype=None, kernel="fused")
        return export(model, destination)


@contextmanager
def _open(folder: Path) -> Iterator[Weights]:
    """Safetensors where there are any."""
    if has_weights(folder) or not pickles(folder):
        with open_weights(folder) as weights:
            yield weights
    else:
        yield read_pickles(folder)


def read_pickles(folder: Path) -> Unpickled:
    """All tensors of pytorch_model.bin, or of the shards that its index names."""
    index = {} if (folder / SINGLE).exists() else read_index(folder, INDEX)
    files = {shard: read_pickle(folder / shard) for shard in (dict.fromkeys(index.values()) if index else [SINGLE])}
    shards = placed({shard: set(tensors) for shard, tensors in files.items()}, index, INDEX)
    return Unpickled({name: files[shard][name] for name, shard in shards.items()})


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of one file, through torch's weights-only reader."""
    try:
        # Files from before 2020 are no archives, and cannot be mapped.
        values = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle can raise anything
        raise CheckpointError(_refusal(path, error)) from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path.name} holds a {type(values).__name__}, but it must hold tensors by name")
    for name, value in values.items():
        if not isinstance(name, str) or not _is_plain(value):
            kind = f"{value.layout} on {value.device}" if isinstance(value, Tensor) else type(value).__name__
            raise CheckpointError(f"{path.name} has {name!r}, which is {kind} and not a plain tensor")
    return dict(values)


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def _refusal(path: Path, error: Exception) -> str:
    """What the reader refused, without its advice to read the file with all guards off."""
    refused = re.search(r"GLOBAL (\S+)|(operand \d+)", str(error))
    if refused:
        needed = refused[1] or refused[2]
        return (
            f"{path.name} is more than tensors: reading it needs {needed}, which could run code and is refused. "
            "Get the checkpoint as safetensors"
        )
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return f"{path.name} cannot be read ({first}): it is cut short or damaged, copy it again"
