"""One process or many: who takes part, and how the objective is spread over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pellucid.errors import InputError, PellucidError
from pellucid.model.block import Block
from pellucid.model.mechanisms import Sight
from pellucid.training.config import Compute
from pellucid.training.objective import Objective


@dataclass(frozen=True)
class World:
    """This process among those of a run. `torchrun` starts several; alone it is the first of one."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def total(self, count: int) -> int | Tensor:
        """A count over all processes, which nobody waits for."""
        if self.size == 1:
            return max(count, 1)
        both = torch.tensor(float(count), dtype=torch.float64, device=self.device)
        dist.all_reduce(both)
        return both.clamp(min=1)

    def summed(self, *values: int | float | Tensor) -> list[float]:
        """Each value added over all processes."""
        if self.size == 1:
            return [float(value) for value in values]
        parts = [torch.as_tensor(value, dtype=torch.float64, device=self.device).detach() for value in values]
        both = torch.stack([part.to(torch.float64) for part in parts])
        dist.all_reduce(both)
        found: list[float] = both.tolist()
        return found


@contextmanager
def joined(compute: Compute) -> Iterator[World]:
    """The world of this process, by what a launcher said."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = _device(compute.device, int(os.environ.get("LOCAL_RANK", "0")))
    if compute.threads:
        torch.set_num_threads(compute.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    if size == 1:
        yield World(device)
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=10))
    try:
        with told_of_deaths():
            yield World(device, rank, size)
    finally:
        dist.destroy_process_group()


@contextmanager
def told_of_deaths() -> Iterator[None]:
    """What the libraries say when a partner is gone is about sockets: say it in words."""
    try:
        yield
    except PellucidError:
        raise
    except RuntimeError as error:
        words = ("connection", "peer", "gloo", "nccl", "timed out", "broken pipe")
        if any(word in str(error).lower() for word in words):
            raise PellucidError(
                "another process of this run died, so it cannot go on. The last checkpoint is whole: start the same "
                f"command again and it resumes from there ({str(error).splitlines()[0][:120]})"
            ) from None
        raise


def _device(asked: str, local: int) -> torch.device:
    if asked == "auto":
        asked = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(asked)
    except RuntimeError:
        raise InputError(f"compute.device {asked!r} is not a device: try auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"compute.device is {asked}, but torch sees no GPU here: use cpu")
    return torch.device("cuda", local) if device.type == "cuda" and device.index is None else device


class Spread:
    """The objective as this process calls it: alone, as one of many copies (DDP), or as a shard (FSDP2)."""

    def __init__(self, objective: Objective, world: World, compute: Compute) -> None:
        self.objective, self.world = objective, world
        self.sharded = world.size > 1 and compute.strategy == "fsdp"
        blocks = [module for module in objective.modules() if isinstance(module, Block)]
        if compute.recompute:
            for block in blocks:
                block.forward = partial(_recomputed, block.forward)  # type: ignore[method-assign]
        self.call: Any = objective
        if self.sharded:
            self.call = _sharded(objective, blocks, world, compute)
        elif compute.compile:
            objective.compile()
        if world.size > 1 and not self.sharded:
            from torch.nn.parallel import DistributedDataParallel

            ids = [world.device.index] if world.device.type == "cuda" else None
            self.call = DistributedDataParallel(objective, device_ids=ids)

    @property
    def eager(self) -> Any:
        """For evaluations: without compiling for their shapes, and without gradients that travel."""
        return self.call if self.sharded else self.objective.forward

    def sync(self, wanted: bool) -> None:
        """Gradients travel once a step, after the last of its parts."""
        if self.world.size == 1:
            return
        if self.sharded:
            self.call.set_requires_gradient_sync(wanted)
        else:
            self.call.require_backward_grad_sync = wanted

    def settle(self) -> None:
        """Shards again where a forward pass without a backward one left whole tensors."""
        if self.sharded:
            self.call.reshard()


def _recomputed(forward: Callable[..., Tensor], x: Tensor, sight: Sight, *more: Any) -> Tensor:
    """Run a block and forget what it computed on the way, to compute it again in the backward pass.

    What all blocks share (a mask and a bias written out) is worked out before, or the first block alone would keep it.
    """
    for shared in (sight, *(each for each in more if isinstance(each, Sight))):
        if not shared.view.is_square_causal:
            _ = shared.view.additive
    found: Tensor = checkpoint(forward, x, sight, *more, use_reentrant=False)
    return found


def _sharded(objective: Objective, blocks: list[Block], world: World, compute: Compute) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    for block in blocks:
        if compute.compile:
            block.compile()
        fully_shard(block, mesh=mesh)
    return fully_shard(objective, mesh=mesh)
