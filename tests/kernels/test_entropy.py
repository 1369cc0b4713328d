"""Cross-entropy with its slope: the formulas against torch's, the kernel through Triton's interpreter against them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from pellucid.kernels.entropy import NO_ANSWER, losses, losses_over_slopes, slopes

KERNEL = """
import torch
from pellucid.kernels import entropy_triton
from pellucid.kernels.entropy import losses, slopes
for rows, vocab, smoothing, size in ((5, 300, 0.0, 10), (4, 1000, 0.1, 10), (3, 64, 0.0, 1000)):
    for step in (64, 256, 1024):
        logits = size * torch.randn(rows, vocab)
        answers = torch.randint(0, vocab, (rows,))
        answers[1], answers[2] = -100, vocab - 1
        exact = logits.double()
        found = torch.full((rows,), torch.nan)
        run = entropy_triton._entropy_kernel.fn[(rows,)]
        run(logits, answers, found, vocab, smoothing, smoothing > 0, step)
        wanted = losses(exact, answers, smoothing)
        off = float((found - wanted).abs().max() / exact.abs().max())
        slope_off = float((logits - slopes(exact, answers, smoothing)).abs().max())
        # float32: the largest logit rounds the exponent by size * 6e-8 or so
        assert off < 1e-6 and slope_off < 1e-6 * float(exact.abs().max()), (vocab, off, slope_off)
        assert found[1] == 0 and not logits[1].any()
print("right")
"""


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_formulas_equal_torch(smoothing):
    logits = (3 * torch.randn(6, 11, dtype=torch.float64)).requires_grad_()
    answers = torch.tensor([0, 10, NO_ANSWER, 3, 3, 5])
    wanted = functional.cross_entropy(logits, answers, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(losses(logits, answers, smoothing), wanted, rtol=1e-12, atol=1e-12)
    wanted.sum().backward()
    torch.testing.assert_close(slopes(logits.detach(), answers, smoothing), logits.grad, rtol=1e-12, atol=1e-12)


def test_the_op_writes_the_slopes_over_the_logits():
    logits, answers = torch.randn(4, 7), torch.tensor([1, NO_ANSWER, 6, 0])
    wanted, found = losses(logits, answers, 0.1), logits.clone()
    assert torch.equal(losses_over_slopes(found, answers, 0.1), wanted)
    assert torch.equal(found, slopes(logits, answers, 0.1))


def test_the_kernel_is_right():
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    ran = subprocess.run(
        [sys.executable, "-c", KERNEL], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "right", ran.stderr
