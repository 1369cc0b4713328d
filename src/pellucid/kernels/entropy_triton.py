"""The kernel of the cross-entropy: a program per row, which reads its logits twice and writes their slope over them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Logits at a time and warps of a program: the fastest is measured once for each size of the vocabulary.
TILES = [(4096, 8), (8192, 8), (8192, 16)]


def launch(logits: Tensor, answers: Tensor, smoothing: float) -> Tensor:
    rows, vocab = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _entropy_kernel[(rows,)](logits, answers, losses, vocab, smoothing, smoothing > 0)
    return losses


@triton.autotune(
    configs=[triton.Config({"STEP": step}, num_warps=warps) for step, warps in TILES],
    key=["vocab"],
    restore_value=["logits"],
)
@triton.jit
def _entropy_kernel(logits, answers, losses, vocab, smoothing, SMOOTH: tl.constexpr, STEP: tl.constexpr):
    """A negative answer is none: no loss, no slope."""
    row = tl.program_id(0).to(tl.int64)
    answer = tl.load(answers + row)
    start = logits + row * vocab
    place = tl.arange(0, STEP)
    if answer < 0:
        for first in range(0, vocab, STEP):
            tl.store(start + first + place, tl.zeros((STEP,), tl.float32), mask=first + place < vocab)
        tl.store(losses + row, 0.0)
    else:
        chosen = tl.load(start + answer).to(tl.float32)
        highest = float("-inf")
        sums = tl.zeros((STEP,), tl.float32)
        total = tl.zeros((STEP,), tl.float32)
        for first in range(0, vocab, STEP):
            inside = first + place < vocab
            x = tl.load(start + first + place, mask=inside, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(x, 0))
            sums = sums * tl.exp(highest - higher) + tl.exp(x - higher)
            highest = higher
            if SMOOTH:
                total += tl.where(inside, x, 0.0)
        spread = highest + tl.log(tl.sum(sums, 0))
        loss = spread - chosen
        if SMOOTH:
            loss = spread - (1 - smoothing) * chosen - smoothing * tl.sum(total, 0) / vocab
        tl.store(losses + row, loss)
        even = smoothing / vocab
        for first in range(0, vocab, STEP):
            inside = first + place < vocab
            x = tl.load(start + first + place, mask=inside, other=0.0).to(tl.float32)
            slope = tl.exp(x - spread) - even
            slope = tl.where(first + place == answer, slope - (1 - smoothing), slope)
            tl.store(start + first + place, slope, mask=inside)
