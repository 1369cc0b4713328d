"""The length of the text is no reason to leave the graph."""

from __future__ import annotations

import torch

from pellucid.model import config as c
from pellucid.model.presets import llama
from pellucid.model.transformer import Transformer


def test_dynamic_scaling_compiles_to_one_graph() -> None:
    scaling = c.DynamicNtkScaling(factor=2.0, original_context=8)
    config = llama(1, 16, 2, 1, 24, vocab=24, rotary=c.Rotary(scaling=scaling))
    network = Transformer(config, seed=0).eval()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for length in (5, 9, 17):
            ids = torch.arange(length)[None]
            torch.testing.assert_close(compiled(ids), network(ids), rtol=1e-5, atol=1e-6)
