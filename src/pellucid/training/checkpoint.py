"""Checkpoints that are whole or absent: written aside, synced, renamed. Never pickle.

A checkpoint is a folder `step-N` with a group of tensors per part (model, optimizer, average) and `state.json` with the
step, the data's position, what else the run keeps, and the checksum of each file. The random state of a step is a
function of the run's seed and the step's number, so the number is all that has to be kept of it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.training.distributed import World
from pellucid.training.shards import digest_of

STATE = "state.json"
Groups = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole."""

    folder: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])


def write(folder: Path, step: int, groups: Groups, state: dict[str, Any], world: World, *, sharded: bool) -> Path:
    """Add a checkpoint. Whatever happens on the way, the earlier ones stay."""
    final = folder / f"step-{step:08d}"
    staging = folder / f".{final.name}.unfinished"
    try:
        if world.is_first:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        if sharded:
            world.wait()
            _write_shards(staging, groups)
            world.wait()
        elif world.is_first:
            for name, tensors in groups.items():
                save_file(_owned(tensors), staging / f"{name}.safetensors")
        if world.is_first:
            _finish(staging, final, {**state, "step": step, "sharded": sharded})
    except (OSError, SafetensorError) as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise _failed(final, error) from None
    world.wait()
    return final


def _finish(staging: Path, final: Path, state: dict[str, Any]) -> None:
    files = sorted(file for file in staging.rglob("*") if file.is_file())
    sums = {str(file.relative_to(staging)): digest_of(file) for file in files}
    (staging / STATE).write_text(json.dumps({**state, "checksums": sums}, indent=1) + "\n")
    for path in [*files, staging / STATE, *(file for file in staging.rglob("*") if file.is_dir()), staging]:
        sync(path)
    shutil.rmtree(final, ignore_errors=True)
    staging.rename(final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Wait until the disk has it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _failed(final: Path, error: Exception) -> CheckpointError:
    found = latest(final.parent)
    last = f"the last good one is {found.folder}" if found else "there is no earlier one"
    full = getattr(error, "errno", None) == errno.ENOSPC or "space left" in str(error)
    why = "the disk is full" if full else str(error)
    return CheckpointError(
        f"the checkpoint {final} could not be written: {why}; {last}. Make room, and start the same command again"
    )


def prune(folder: Path, keep: int) -> None:
    """Keep the newest, and nothing that was left unfinished."""
    for old in _steps(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def clear_unfinished(folder: Path) -> None:
    for left in folder.glob(".step-*.unfinished"):
        shutil.rmtree(left, ignore_errors=True)


def _steps(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))


def latest(folder: Path, say: Callable[[str], None] = lambda note: None) -> Checkpoint | None:
    """The newest one that is whole; others are passed over aloud."""
    for path in reversed(_steps(folder)):
        problem: str | None = "its state is unreadable"
        try:
            state = json.loads((path / STATE).read_text())
            wrong = [name for name, wanted in state["checksums"].items() if digest_of(path / name) != wanted]
            problem = f"the checksum of {wrong[0]} differs" if wrong else None
        except (OSError, json.JSONDecodeError, KeyError) as error:
            problem = f"it cannot be read ({error!r})"
        if problem is None:
            return Checkpoint(path, state)
        say(f"the checkpoint {path} is damaged: {problem}; an earlier one is taken")
    return None


def read(found: Checkpoint, name: str, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a group, each on the device, in the dtype and in the shards of the one it is like."""
    if found.state["sharded"]:
        return _read_shards(found.folder / name, like)
    with safe_open(found.folder / f"{name}.safetensors", framework="pt") as file:
        names = set(file.keys())
        if names != set(like):
            odd = sorted(names ^ set(like))
            raise CheckpointError(f"{found.folder} is of another model: {', '.join(odd[:3])} is only in one of them")
        return {name: _like(file.get_tensor(name), tensor) for name, tensor in like.items()}


def _like(tensor: Tensor, like: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor, distribute_tensor

    if tensor.shape != like.shape:
        raise CheckpointError(f"a checkpoint's tensor has shape {list(tensor.shape)}, but {list(like.shape)} is wanted")
    tensor = tensor.to(like.device, like.dtype)
    return distribute_tensor(tensor, like.device_mesh, like.placements) if isinstance(like, DTensor) else tensor


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


# --- shards, by torch.distributed.checkpoint in the safetensors format ---


def _write_shards(staging: Path, groups: Groups) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    for name, tensors in groups.items():
        writer = HuggingFaceStorageWriter(str(staging / name), save_distributed=True)
        save(dict(tensors), storage_writer=writer)


def _read_shards(folder: Path, like: dict[str, Tensor]) -> dict[str, Tensor]:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    filled = {name: torch.empty_like(tensor) for name, tensor in like.items()}
    alone = not torch.distributed.is_initialized()
    load(filled, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
    return filled


# --- one file of tensors ---


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Whole or not at all."""
    aside = file.with_name(f".{file.name}.unfinished")
    try:
        save_file(_owned(tensors), aside)
        sync(aside)
        aside.replace(file)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise CheckpointError(f"{file} could not be written: {error}") from None


def read_tensors(file: Path) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a mapping)
