"""AdamW, its schedule, and a running mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from pellucid.training.config import Optimizer, Schedule


def trained_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """By name; those that several modules share once."""
    return {name: each for name, each in network.named_parameters() if each.requires_grad}


def build_optimizer(network: nn.Module, part: Optimizer) -> torch.optim.AdamW:
    """Decay pulls matrices alone: a norm's scale or a bias has no reason to be small."""
    trained = list(trained_parameters(network).values())
    groups = [
        {"params": [each for each in trained if each.dim() >= 2], "weight_decay": part.decay},
        {"params": [each for each in trained if each.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (part.beta1, part.beta2)
    return torch.optim.AdamW(groups, lr=part.rate, betas=betas, eps=part.epsilon, fused=True)


def rate_at(step: int, part: Schedule, peak: float) -> float:
    """The rate of a step; the first is 0."""
    if step < part.warmup:
        return peak * (step + 1) / part.warmup
    if part.kind == "inverse_sqrt":
        return peak * math.sqrt(max(part.warmup, 1) / (step + 1))
    if part.kind == "constant":
        return peak
    done = (step - part.warmup) / max(part.steps - 1 - part.warmup, 1)
    left = 0.5 * (1 + math.cos(math.pi * min(done, 1))) if part.kind == "cosine" else 1 - min(done, 1)
    return peak * (part.floor + (1 - part.floor) * left)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def optimizer_tensors(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state by the names of the parameters."""
    return {
        f"{name}.{moment}": optimizer.state[parameter][moment]
        for name, parameter in network.named_parameters()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def fill_optimizer(network: nn.Module, optimizer: torch.optim.Optimizer, read: Callable[[str, Tensor], Tensor]) -> None:
    """Give every parameter its state back; `read` gives the tensor of a name, shaped like another."""
    for name, parameter in trained_parameters(network).items():
        clock = torch.zeros((), dtype=torch.float32, device=parameter.device)
        like = {"exp_avg": parameter, "exp_avg_sq": parameter, "step": clock}
        optimizer.state[parameter] = {moment: read(f"{name}.{moment}", like[moment]) for moment in MOMENTS}


class RunningMean:
    """mean = keep x mean + (1 - keep) x weights, after every step; it starts from the first weights."""

    def __init__(self, network: nn.Module, keep: float) -> None:
        self.keep = keep
        trained = trained_parameters(network) if keep else {}
        self.tensors = {name: each.detach().clone() for name, each in trained.items()}

    @torch.no_grad()
    def update(self, network: nn.Module, step: int) -> None:
        """Early on it forgets faster, or the first random weights would stay in it for long."""
        if self.tensors:
            keep = min(self.keep, (1 + step) / (10 + step))
            weights = [each.detach() for each in trained_parameters(network).values()]
            torch._foreach_lerp_(list(self.tensors.values()), weights, 1 - keep)

    def swap(self, network: nn.Module) -> None:
        """Put the mean into the network and its weights here; a second call undoes it."""
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                each = network.get_parameter(name)
                kept = each.detach().clone()
                each.copy_(tensor)
                tensor.copy_(kept)
