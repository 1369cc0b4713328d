"""The loop: batches in, steps of AdamW, checkpoints that a killed run goes on from."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import ConfigError, PellucidError
from pellucid.model.flops import flops_per_token
from pellucid.model.transformer import Transformer
from pellucid.training import checkpoint
from pellucid.training.activation import keep_slopes
from pellucid.training.batches import Batch, Source, ahead, dealt
from pellucid.training.config import Classification, MaskedLanguageModel, RunConfig, Tagging, Translation
from pellucid.training.distributed import Spread, World
from pellucid.training.evaluate import better, measure
from pellucid.training.joined import join_projections
from pellucid.training.objective import Objective, arguments
from pellucid.training.optimizer import (
    RunningMean,
    build_optimizer,
    fill_optimizer,
    optimizer_tensors,
    rate_at,
    set_rate,
    trained_parameters,
)
from pellucid.training.order import Position
from pellucid.training.progress import Reporter
from pellucid.training.record import Recorder

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bf16, by the name of the GPU


@dataclass(frozen=True)
class Work:
    """What one process does in a step: its parts of the batch, each with its number, and where the data stands then."""

    parts: list[tuple[int, Batch]]
    after: Position


@dataclass
class Meter:
    """Sums since the last entry of the log. Time for other things than steps does not count."""

    loss: Tensor | float = 0.0
    counted: int = 0
    tokens: int = 0
    since: float = field(default_factory=time.perf_counter)
    paused: float = 0.0

    @property
    def seconds(self) -> float:
        return max(time.perf_counter() - self.since - self.paused, 1e-9)


class Loop:
    """One run in one process. `position` and `step` say what comes next."""

    def __init__(
        self, run: RunConfig, world: World, network: Transformer, train: Source, valid: Source | None, folder: Path
    ) -> None:
        self.run, self.world, self.network, self.folder = run, world, network, folder
        self.train, self.valid = train, valid
        smoothing = run.task.smoothing if isinstance(run.task, Translation | Tagging | Classification) else 0.0
        if run.compute.join:
            join_projections(network)
        if world.device.type == "cpu" and not run.compute.compile:
            keep_slopes(network)
        guesses = isinstance(run.task, MaskedLanguageModel)
        self.objective = Objective(network, smoothing, run.compute.chunk, guesses=guesses).train()
        self.spread = Spread(self.objective, world, run.compute)
        if self.spread.sharded and run.record.points:
            raise ConfigError("record needs whole weights: set record.points to 0, or compute.strategy to ddp")
        self.trained = list(trained_parameters(network).values())
        self.optimizer = build_optimizer(network, run.optimizer)
        self.mean = RunningMean(network, run.optimizer.average)
        self.recorder = Recorder(run, network, valid or train, folder)
        self.step, self.position = 0, Position()
        self.metrics: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.meter = Meter()
        self.flops = flops_per_token(network.config, run.batch.context)
        self.peak = None if run.lora else peak_of(world.device)  # a step with LoRA leaves products out
        self.bad = torch.zeros((), dtype=torch.bool, device=world.device)

    # --- running ---

    def go(self, report: Reporter) -> dict[str, float]:
        """All steps that are left; the metrics of the model that is written."""
        self.resume(report)
        self.meter = Meter()
        if self.step == 0:
            self._record(0)
        works = ahead(self._works())
        try:
            while self.step < self.run.schedule.steps:
                work = next(works)
                self._learn(work)
                self.step, self.position = self.step + 1, work.after
                self._after_step(report)
        finally:
            works.close()  # type: ignore[attr-defined]  # a generator
        if not self.metrics:
            self.metrics = self.evaluate()
        return self.best or self.metrics

    def _works(self) -> Iterator[Work]:
        micro = self.run.batch.micro or self.run.batch.tokens
        rank, size, on_gpu = self.world.rank, self.world.size, self.world.device.type == "cuda"
        for rows, at, after in self.train.order().from_position(self.position):
            width = max(sum(int(self.train.sizes[unit]) for unit in row) for row in rows)
            parts = []
            for number, part in list(enumerate(dealt(rows, micro, width, size)))[rank::size]:
                batch = self.train.collate(part or rows[:1], at.epoch)
                batch = batch if part else batch.silent()
                parts.append((number, batch.pinned() if on_gpu else batch))
            yield Work(parts, after)

    def _learn(self, work: Work) -> None:
        """One step. The loss is a mean over all answers of the batch, however it is split."""
        set_rate(self.optimizer, rate_at(self.step, self.run.schedule, self.run.optimizer.rate))
        counted = sum(batch.counted for _, batch in work.parts)
        share = self.world.size / self.world.total(counted)  # gradients of many processes are averaged
        for place, (number, batch) in enumerate(work.parts):
            self.spread.sync(place == len(work.parts) - 1)
            self._draw_from(seed_of(self.run.seed, self.step, number))
            with self._autocast():
                loss, _ = self.spread.call(**arguments(batch.to(self.world.device)))
            (loss * share).backward()
            self.meter.loss = self.meter.loss + loss.detach()
        norm = self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.mean.update(self.network, self.step)
        self.meter.counted += counted
        self.meter.tokens += sum(batch.tokens for _, batch in work.parts)
        self.bad |= ~(torch.isfinite(norm) & torch.isfinite(loss.detach()))

    def _draw_from(self, seed: int) -> None:
        if self.world.device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # the plain call notes down who asked, for GPUs that may come
        else:
            torch.manual_seed(seed)

    def _clip(self) -> Tensor:
        """Gives the norm before. A CPU leaves a short gradient alone; to ask a GPU about it would be to wait for it."""
        limit = self.run.optimizer.clip or float("inf")
        norm: Any = torch.nn.utils.get_total_norm([each.grad for each in self.trained if each.grad is not None])
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if self.world.device.type != "cpu" or not float(whole) + 1e-6 <= limit:  # the 1e-6 is PyTorch's
            torch.nn.utils.clip_grads_with_norm_(self.trained, limit, norm)
        return whole

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.run.compute.precision == "float32":
            return nullcontext()
        return torch.autocast(self.world.device.type, torch.bfloat16)

    # --- after a step ---

    def _after_step(self, report: Reporter) -> None:
        run, last = self.run, self.step == self.run.schedule.steps
        logs = self.step % run.output.log == 0 or last
        saves = self.step % run.output.checkpoint == 0 or last
        if logs or saves or self.world.device.type == "cpu":
            self._refuse_nan()
        entry = self._entry() if logs else {}
        pause = time.perf_counter()
        if last or (run.evaluation.every and self.step % run.evaluation.every == 0):
            self.metrics = self.evaluate()
            entry = {"step": self.step, **entry, **{f"valid_{key}": value for key, value in self.metrics.items()}}
        self._record(self.step)
        if entry:  # before the checkpoint: what comes after it may be lost, what is before it may come twice
            report.log(entry)
        if saves:
            self.save()
        self.meter.paused += time.perf_counter() - pause

    def _refuse_nan(self) -> None:
        if bool(self.bad):
            found = checkpoint.latest(self._checkpoints)
            where = f"the last good checkpoint is {found.folder}" if found else "no checkpoint was written yet"
            raise PellucidError(
                f"the loss or its gradient is not finite by step {self.step}: {where}. Lower optimizer.rate or raise "
                "schedule.warmup, and start the same command again"
            )

    def _entry(self) -> dict[str, Any]:
        """What the log says of the steps since the last entry."""
        loss, counted, tokens = self.world.summed(self.meter.loss, self.meter.counted, self.meter.tokens)
        speed = tokens / self.meter.seconds
        left = (self.run.schedule.steps - self.step) * self.meter.seconds / self._steps_in_meter() / 60
        entry = {
            "step": self.step,
            "loss": loss / max(counted, 1),
            "rate": self.optimizer.param_groups[0]["lr"],
            "tokens_per_second": speed,
            "minutes_left": left,
        }
        if self.peak is not None:
            entry["mfu"] = speed * self.flops / (self.peak * self.world.size)
        self.meter = Meter()
        return entry

    def _steps_in_meter(self) -> int:
        return (self.step - 1) % self.run.output.log + 1

    def evaluate(self) -> dict[str, float]:
        """On the validation, with the running mean of the weights if there is one; the best weights are kept."""
        if self.valid is None:
            return {}
        autocast = self.run.compute.precision == "bfloat16"
        limit = self.run.evaluation.batches
        self.mean.swap(self.network)
        try:
            found = measure(self.spread.eager, self.objective, self.valid, self.world, limit=limit, autocast=autocast)
            self.spread.settle()
            if self.run.evaluation.best and better(found, self.best, self.run.task):
                self.best = found
                self._write_best()
        finally:
            self.mean.swap(self.network)
        return found

    def _record(self, step: int) -> None:
        if self.world.is_first:
            self.recorder.at(step)

    # --- checkpoints ---

    @property
    def _checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def save(self) -> None:
        groups = {
            "model": learned_tensors(self.network),
            "optimizer": optimizer_tensors(self.network, self.optimizer),
        }
        if self.mean.tensors:
            groups["average"] = self.mean.tensors
        state = {
            "position": asdict(self.position),
            "seed": self.run.seed,
            "best": self.best,
            "metrics": self.metrics,
        }
        checkpoint.write(self._checkpoints, self.step, groups, state, self.world, sharded=self.spread.sharded)
        if self.world.is_first:
            checkpoint.prune(self._checkpoints, self.run.output.keep)

    def resume(self, report: Reporter) -> None:
        """Go on from the newest checkpoint that is whole, if there is one."""
        if self.world.is_first:
            checkpoint.clear_unfinished(self._checkpoints)
        self.world.wait()
        found = checkpoint.latest(self._checkpoints, report.say)
        if found is None:
            report.resume(-1)
            self.recorder.resume(-1)
            return
        network = self.network
        fill(network, checkpoint.read(found, "model", learned_tensors(network)))
        like: dict[str, Tensor] = {}
        fill_optimizer(network, self.optimizer, lambda name, tensor: like.setdefault(name, tensor))
        moments = checkpoint.read(found, "optimizer", like)
        fill_optimizer(network, self.optimizer, lambda name, tensor: moments[name])
        if self.mean.tensors:
            self.mean.tensors = checkpoint.read(found, "average", self.mean.tensors)
        self.step, self.position = found.step, Position(**found.state["position"])
        self.best, self.metrics = found.state["best"], found.state["metrics"]
        report.resume(self.step)
        self.recorder.resume(self.step)
        report.say(f"resumed from step {self.step}")

    def _write_best(self) -> None:
        tensors = whole_tensors(self.network)
        if self.world.is_first:
            checkpoint.write_tensors(self.folder / "best.safetensors", tensors)

    def final_tensors(self) -> dict[str, Tensor]:
        """What was learned: the best weights if the run says so, or the last, or their running mean."""
        self.mean.swap(self.network)
        try:
            tensors = whole_tensors(self.network)
        finally:
            self.mean.swap(self.network)
        best = self.folder / "best.safetensors"
        if self.best and best.exists() and self.world.is_first:
            return checkpoint.read_tensors(best)
        return tensors


def learned_tensors(network: Transformer) -> dict[str, Tensor]:
    """What a run changes: all tensors of a network, or what its adapters train."""
    return dict(network.state_dict() if network.adapters is None else trained_parameters(network))


@torch.no_grad()
def fill(network: Transformer, tensors: dict[str, Tensor]) -> None:
    """Give a network what was learned."""
    for name, tensor in learned_tensors(network).items():
        tensor.copy_(tensors[name])


def whole_tensors(network: Transformer) -> dict[str, Tensor]:
    """A copy of what was learned, gathered from the shards; every process of a sharded run must call this."""
    found = {}
    for name, tensor in learned_tensors(network).items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        found[name] = whole.detach().cpu().clone()
    return found


def seed_of(seed: int, step: int, part: int) -> int:
    """What dropout is drawn from: the same for a part of a step in whichever process it runs, and after a resume."""
    return int.from_bytes(blake2b(f"{seed}/{step}/{part}".encode(), digest_size=7).digest(), "big")


def peak_of(device: torch.device) -> float | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for gpu, peak in PEAKS.items() if gpu in name), None)
