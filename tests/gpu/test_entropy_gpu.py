"""The kernel of the cross-entropy on a GPU, in the sizes of a real vocabulary."""

from __future__ import annotations

import pytest
import torch

from pellucid.kernels.entropy import NO_ANSWER, losses, losses_over_slopes, slopes

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_and_slopes_equal_the_formulas(dtype, smoothing):
    logits = (4 * torch.randn(64, 50_304, device="cuda")).to(dtype)
    answers = torch.randint(0, 50_304, (64,), device="cuda")
    answers[3] = NO_ANSWER
    exact = logits.double()
    found = losses_over_slopes(logits, answers, smoothing)
    torch.testing.assert_close(found.double(), losses(exact, answers, smoothing), rtol=1e-6, atol=1e-6)
    # what is stored is rounded to the type of the logits
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(logits.double(), slopes(exact, answers, smoothing), rtol=rounding, atol=1e-6)
