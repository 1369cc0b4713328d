"""A compiled step writes what the step writes. On a CPU it is called; on a GPU it is captured (tests/gpu)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pellucid.generation import engine, memory
from pellucid.generation.decode import generate
from pellucid.generation.request import Beams, Run, Stop
from pellucid.generation.sampling import Filters
from pellucid.model.cache import BlockCache, Cache, KeysAndValues
from tests.generation.models import ALL, PROMPTS, ids, model

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

FILTERS = Filters(top_k=25, top_p=0.95, min_p=0.01, repetition_penalty=1.3)
HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.3, "samples": 2, "filters": FILTERS},
    "beams": {"beams": Beams(3, 0.7), "samples": 2},
}
COMPILED = Run(compile=True)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced whole, and run by PyTorch's own kernels: Inductor takes ten seconds a model."""
    compile_ = torch.compile

    def fast(function: Any, **options: Any) -> Any:
        return compile_(function, backend="aot_eager", fullgraph=options["fullgraph"], dynamic=options["dynamic"])

    monkeypatch.setattr(torch, "compile", fast)


@pytest.mark.parametrize("name", ALL)
def test_compiled_equals_eager(name: str, traced: None):
    assert_same(name, HOW["greedy"])


@pytest.mark.parametrize("how", ["drawn", "beams"])
@pytest.mark.parametrize("name", ["tiny-gpt2", "linear elu", "both window"])
def test_draws_and_beams_are_the_same_compiled(name: str, how: str, traced: None):
    assert_same(name, HOW[how])


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("name", ALL)
def test_compiled_equals_eager_through_inductor(name: str, how: dict[str, Any]):
    assert_same(name, how)


def test_rows_change_places_in_an_inductor_graph():
    """It reads and writes a cache in one graph, which Inductor must not do in one loop (see `cache.store`)."""
    rows, slot = torch.tensor([1, 2, 3, 0, 0, 0, 1, 1]), torch.tensor(3)
    key = torch.randn(8, 4, 1, 8, generator=torch.Generator().manual_seed(0))

    def write_and_reorder(cache: Cache) -> None:
        for block in cache.blocks:
            assert isinstance(block.own, KeysAndValues)
            block.own.write(key, key, slot)
        cache.reorder(rows)

    def filled() -> Cache:
        first = torch.randn(8, 4, 16, 8, generator=torch.Generator().manual_seed(1))
        return Cache([BlockCache(KeysAndValues(first.clone(), first.clone()))], 8, 16)

    eager, fast = filled(), filled()
    write_and_reorder(eager)
    torch.compile(write_and_reorder, fullgraph=True, dynamic=False)(fast)
    for mine, other in zip(fast.own_tensors(), eager.own_tensors(), strict=True):
        torch.testing.assert_close(mine, other)


def test_twins_that_join_more_and_less_share_one_storage(traced: None):
    opened, wanted = model("tiny-llama"), ids(generate(model("tiny-llama"), PROMPTS, max_tokens=4))
    for joins in ("projections", "all", "none", "all"):
        assert ids(generate(opened, PROMPTS, max_tokens=4, run=Run(compile=True, joins=joins))) == wanted
    twins = [compiled.twin for compiled in engine._COMPILED[opened.network].values()]
    assert len(twins) == 3
    storages = {twin.decoder.blocks[0].attention.to_query.weight.untyped_storage().data_ptr() for twin in twins}
    assert len(storages) == 1


def assert_same(name: str, how: dict[str, Any]) -> None:
    opened = model(name)
    before = {key: value.clone() for key, value in opened.network.state_dict().items()}
    wanted = generate(model(name), PROMPTS, max_tokens=6, **how)
    assert ids(generate(opened, PROMPTS, max_tokens=6, run=COMPILED, **how)) == ids(wanted)
    assert all(torch.equal(before[key], value) for key, value in opened.network.state_dict().items())


def test_an_engine_is_used_again_and_its_dials_are_turned(traced: None):
    opened, plain = model("tiny-gpt2"), model("tiny-gpt2")
    for temperature, seed, prompts in ((0.8, 1, PROMPTS), (1.7, 2, [[4], *PROMPTS])):
        asked = {"max_tokens": 8, "temperature": temperature, "seed": seed}
        found = generate(opened, prompts, run=COMPILED, **asked)
        assert ids(found) == ids(generate(plain, prompts, **asked))
    (compiled,) = engine._COMPILED[opened.network].values()
    assert len(compiled.engines) == 1


def test_engines_beyond_the_most_are_let_go(traced: None, monkeypatch: pytest.MonkeyPatch):
    opened = model("tiny-gpt2")
    monkeypatch.setattr(engine, "MOST", 2)
    for count in (2, 4, 8):
        generate(opened, [[5, 6]] * count, max_tokens=2, run=COMPILED)
    (compiled,) = engine._COMPILED[opened.network].values()
    assert len(compiled.engines) == 2


def test_a_graph_whose_room_is_full_goes_on_in_a_larger_one(traced: None, monkeypatch: pytest.MonkeyPatch):
    stop = Stop(model_end=False)
    wanted = generate(model("two windows"), PROMPTS, max_tokens=14, stop=stop)
    monkeypatch.setattr(memory, "FIRST_ROOM", 1)
    found = generate(model("two windows"), PROMPTS, max_tokens=14, stop=stop, run=Run(compile=True, every=5))
    assert ids(found) == ids(wanted)


def test_weights_that_changed_are_seen(traced: None):
    opened = model("tiny-llama")
    generate(opened, PROMPTS, max_tokens=4, run=COMPILED)
    block = opened.network.decoder.blocks[0]
    with torch.no_grad():
        block.attention.to_key.weight.mul_(-1)
    assert ids(generate(opened, PROMPTS, max_tokens=6, run=COMPILED)) == ids(generate(opened, PROMPTS, max_tokens=6))
    opened.network.double().load_state_dict(model("tiny-llama").network.state_dict(), assign=True)
    again = generate(opened, PROMPTS, max_tokens=6, run=COMPILED)
    assert ids(again) == ids(generate(model("tiny-llama"), PROMPTS, max_tokens=6))


def test_the_parameters_of_joined_maps_are_held_once(traced: None):
    opened = model("tiny-llama")
    generate(opened, PROMPTS, max_tokens=2, run=COMPILED)
    attention = opened.network.decoder.blocks[0].attention
    storages = {
        each.weight.untyped_storage().data_ptr() for each in (attention.to_query, attention.to_key, attention.to_value)
    }
    assert len(storages) == 1
    (compiled,) = engine._COMPILED[opened.network].values()
    joined = compiled.twin.decoder.blocks[0].attention.to_all
    assert joined.weight.untyped_storage().data_ptr() in storages
