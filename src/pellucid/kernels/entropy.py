"""Cross-entropy of rows of logits with its slope, in one go: what a training step does with the largest matrix it has.

On a GPU a Triton kernel that writes the slope over the logits; elsewhere the formulas. It is one step to a compiler.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

NO_ANSWER = -100
Logits = Float[Tensor, "row vocab"]
Answers = Int[Tensor, " row"]
Losses = Float[Tensor, " row"]


def losses(logits: Logits, answers: Answers, smoothing: float) -> Losses:
    """-log p of every row's answer, with a share of `smoothing` spread over all; 0 where the answer is `NO_ANSWER`."""
    real = answers != NO_ANSWER
    chosen = logits.gather(1, answers.where(real, 0)[:, None])[:, 0]
    if smoothing:
        chosen = (1 - smoothing) * chosen + smoothing * logits.mean(-1)
    return (logits.logsumexp(-1) - chosen).masked_fill(~real, 0)


def slopes(logits: Logits, answers: Answers, smoothing: float) -> Logits:
    """softmax - what the answer says, and zero where there is none: one formula per entry, so one pass if compiled."""
    said = torch.arange(logits.shape[-1], device=logits.device) == answers[:, None]
    slope = logits.softmax(-1) - smoothing / logits.shape[-1]
    slope = slope.where(~said, slope - (1 - smoothing))
    return slope.masked_fill((answers == NO_ANSWER)[:, None], 0)


def losses_and_slopes(logits: Logits, answers: Answers, smoothing: float) -> tuple[Losses, Logits]:
    """Both, for where each operation is a pass over memory: only one entry of a row differs from its softmax."""
    loss = functional.cross_entropy(
        logits, answers, ignore_index=NO_ANSWER, reduction="none", label_smoothing=smoothing
    )
    none = (answers == NO_ANSWER)[:, None]
    slope = logits.softmax(-1)
    if smoothing:
        slope -= smoothing / logits.shape[-1]
    said = slope.new_full((1, 1), smoothing - 1).expand(len(answers), 1)
    slope.scatter_add_(1, answers[:, None].masked_fill(none, 0), said)
    return loss, slope.masked_fill_(none, 0)


def losses_over_slopes(logits: Logits, answers: Answers, smoothing: float) -> Losses:
    """The losses in float32; the logits are overwritten by their slopes."""
    found: Losses = _opaque(logits, answers, smoothing)
    return found


@torch.library.custom_op(
    "pellucid::losses_over_slopes",
    mutates_args=("logits",),
    schema="(Tensor(a!) logits, Tensor answers, float smoothing) -> Tensor",
)
def _opaque(logits: Tensor, answers: Tensor, smoothing: float) -> Tensor:
    if logits.device.type != "cuda":
        exact = logits.to(torch.float32)
        found = losses(exact, answers, smoothing)
        logits.copy_(slopes(exact, answers, smoothing))
        return found
    from pellucid.kernels.entropy_triton import launch

    return launch(logits, answers, smoothing)


@_opaque.register_fake
def _(logits: Tensor, answers: Tensor, smoothing: float) -> Any:
    return logits.new_empty(logits.shape[0], dtype=torch.float32)
