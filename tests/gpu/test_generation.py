"""The captured graph writes what the step writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.generation.models import ALL, PROMPTS, ids, model

from pellucid.generation.decode import generate, stream
from pellucid.generation.request import Beams, Run
from pellucid.generation.sampling import Filters

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler advises on float32 products and on softmax; neither is ours
]
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.3, "samples": 2, "filters": Filters(top_k=25, top_p=0.95, repetition_penalty=1.3)},
    "beams": {"beams": Beams(3, 0.7), "samples": 2},
}


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-bloom", "tiny-t5", "window", "linear elu"])
def test_a_captured_graph_equals_the_cpu(name: str, how: dict[str, Any]):
    assert name in ALL
    wanted = generate(model(name), PROMPTS, max_tokens=20, **how)
    opened = model(name)
    opened.network.cuda()
    for _ in range(2):
        assert ids(generate(opened, PROMPTS, max_tokens=20, **how)) == ids(wanted)
    assert ids(generate(opened, PROMPTS, max_tokens=20, run=Run(compile=False), **how)) == ids(wanted)


def test_a_stream_from_a_graph():
    opened = model("tiny-llama")
    opened.network.cuda()
    written = [event.id for event in stream(opened, PROMPTS[0], max_tokens=12)]
    assert written == list(generate(opened, PROMPTS[0], max_tokens=12)[0].ids[4:])
