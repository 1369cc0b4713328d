"""What is trained compiled: the same losses and gradients, and the mask of documents as FlexAttention reads it."""

from __future__ import annotations

import pytest
import torch

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from pellucid.training.objective import Objective
from tests.kernels.test_documents import CPU, ROWS, seen
from tests.model.small import ids, network

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo does it
]


@pytest.mark.parametrize("mask", [Mask(documents=ROWS), Mask(prefix=0, documents=ROWS), Mask(0, 2, None, ROWS)])
def test_flex_reads_the_documents(mask: Mask) -> None:
    view = View(9, 9, CPU, mask)
    slots = torch.arange(9)
    flex = [[view.block_mask.mask_mod(torch.tensor(b), torch.tensor(0), i, slots) for i in slots] for b in range(2)]
    assert torch.equal(torch.stack([torch.stack(rows) for rows in flex])[:, None], seen(mask))


@pytest.mark.parametrize("packed", [False, True])
def test_a_compiled_objective_has_the_same_loss_and_gradients(packed: bool) -> None:
    built = network().float()
    inputs = {"ids": ids(2, 9), "answers": ids(2, 9, seed=1)}
    if packed:
        inputs["documents"] = ROWS
    found = []
    for compiled in (False, True):
        objective = Objective(built, smoothing=0.1, chunk=5).train()
        call = torch.compile(objective, backend="aot_eager") if compiled else objective
        loss, _ = call(**inputs)
        found.append((loss, *torch.autograd.grad(loss, list(built.parameters()), allow_unused=True)))
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
