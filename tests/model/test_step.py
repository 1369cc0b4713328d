"""A step is `decode` of one token: the same scores from a cache whose shapes never change."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pellucid.errors import CacheError
from pellucid.model import config as c
from pellucid.model.cache import Cache, KeysAndValues
from pellucid.model.transformer import Transformer
from tests.properties.combinations import ATTENTIONS, POSITIONS, Combination, build, draw_ids, random, refusal

from .small import ids, network

EXACT = {"rtol": 1e-10, "atol": 1e-10}
COMBINATIONS = [
    each
    for attention in ATTENTIONS
    for position in POSITIONS
    for architecture in ("decoder", "both")
    for norm, placement in (("layer_norm", "pre"), ("rms_norm", "post"))
    if refusal(each := Combination(attention, position, norm, placement, architecture)) is None
]


def steps(model: Transformer, text: Tensor, first: int, cache: Cache, **options: object) -> Tensor:
    """The scores of a text, of which the first tokens are read at once and the others in steps."""
    answers = [model.decode(text[:, :first], cache=cache, **options)]
    cache.start_steps(text.device)
    answers += [model.step(text[:, place : place + 1], cache)[:, None] for place in range(first, text.shape[1])]
    return torch.cat(answers, 1)


@pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
@torch.no_grad()
def test_steps_equal_the_whole_text(combination: Combination):
    model, draw = build(combination), random(combination, 0)
    text = draw_ids(draw, 2, 9)
    padding = torch.arange(9) >= torch.tensor([[2], [0]])
    both = combination.architecture == "both"
    memory = model.encode(draw_ids(draw, 2, 5)) if both else None
    wanted = model.decode(text, memory, padding=padding)
    cache = model.new_cache(2, 12)
    found = steps(model, text, 4, cache, memory=memory, padding=padding[:, :4])
    torch.testing.assert_close(found[padding], wanted[padding], **EXACT)


@pytest.mark.parametrize("window", [1, 2, 4, (2, None), 20])
@pytest.mark.parametrize("first", [1, 3, 7])
@pytest.mark.parametrize("attention", [c.Softmax(), c.NormalizedRelu()])
@torch.no_grad()
def test_a_ring_keeps_a_window_and_no_more(window: object, first: int, attention: c.Attention):
    model, text = (
        network(window=window, attention=attention, position=c.T5Buckets(buckets=8, max_distance=6)),
        ids(2, 11),
    )
    padding = torch.arange(11) >= torch.tensor([[0], [first - 1]])
    cache = model.new_cache(2, 11)
    found = steps(model, text, first, cache, padding=padding[:, :first])
    torch.testing.assert_close(found[padding], model(text, padding=padding)[padding], **EXACT)
    if isinstance(window, int):
        assert all(block.own.size == min(window, 11) for block in cache.blocks)


@pytest.mark.parametrize("kernel", ["grouped", "reference"])
@pytest.mark.parametrize("stacks", ["decoder", "both"])
@torch.no_grad()
def test_every_kernel_takes_the_same_steps(kernel: str, stacks: str):
    model = network(stacks, key_value_heads=2, position=c.ALiBi())
    text, source = ids(2, 8), ids(2, 5, seed=1)
    options = {"memory": model.encode(source)} if stacks == "both" else {}
    wanted = steps(model, text, 3, model.new_cache(2, 8), **options)
    other = model.with_kernel(kernel)
    torch.testing.assert_close(steps(other, text, 3, other.new_cache(2, 8), **options), wanted, **EXACT)


@pytest.mark.parametrize("attention", [c.Softmax(), c.Linear(chunk=3)])
@torch.no_grad()
def test_texts_that_share_a_source_read_it_in_place(attention: c.Attention):
    model = network("both", attention=attention, key_value_heads=2)
    text, source = ids(2, 6), ids(2, 5, seed=1)
    padding = torch.arange(5) >= torch.tensor([[2], [0]])
    cache = model.new_cache(2, 6)
    model.decode(text[:, :2], model.encode(source, padding=padding), source_padding=padding, cache=cache)
    cache.repeat(3)
    cache.start_steps(text.device)
    more = ids(6, 1, seed=4)
    found = model.step(more, cache)
    whole = torch.cat((text[:, :2].repeat_interleave(3, 0), more), 1)
    memory = model.encode(source, padding=padding).repeat_interleave(3, 0)
    wanted = model.decode(whole, memory, source_padding=padding.repeat_interleave(3, 0))[:, -1]
    torch.testing.assert_close(found, wanted, **EXACT)
    assert cache.memory is not None
    assert cache.memory.shape[0] == 2


@pytest.mark.parametrize("attention", [c.Softmax(), c.Linear(chunk=3)])
@torch.no_grad()
def test_rows_change_places(attention: c.Attention):
    model, text = network(attention=attention), ids(3, 5)
    cache = model.new_cache(3, 6)
    model.decode(text[:, :4], cache=cache)
    cache.start_steps(text.device)
    cache.reorder(torch.tensor([2, 2, 0]))
    found = model.step(text[[2, 2, 0], 4:], cache)
    torch.testing.assert_close(found, model(text)[[2, 2, 0], -1], **EXACT)


@torch.no_grad()
def test_room_grows_and_what_is_held_stays():
    model, text = network(window=(4, None)), ids(2, 12)
    cache = model.new_cache(2, 3)
    model.decode(text[:, :3], cache=cache)
    cache.grow(12)
    assert [block.own.size for block in cache.blocks] == [4, 12]
    cache.start_steps(text.device)
    found = torch.stack([model.step(text[:, place : place + 1], cache) for place in range(3, 12)], 1)
    torch.testing.assert_close(found, model(text)[:, 3:], **EXACT)


@torch.no_grad()
def test_the_scores_of_the_last_token_alone_are_the_same():
    model, text = network(), ids(2, 5)
    torch.testing.assert_close(model.decode(text, last=True), model(text)[:, -1:], **EXACT)


def test_a_cache_of_nothing_is_refused():
    with pytest.raises(CacheError, match="a cache of 0 texts of 5 tokens holds nothing"):
        network().new_cache(0, 5)


def test_a_ring_that_goes_round_returns_the_past_in_order():
    ring = KeysAndValues(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), window=3)
    for offset, count in ((0, 2), (2, 4), (6, 1)):
        new = torch.arange(offset, offset + count, dtype=torch.float32).reshape(1, 1, -1, 1)
        key, value = ring.extend(new, new, offset)
        wanted = list(range(max(0, offset - 3), offset + count))
        assert key.flatten().tolist() == wanted == value.flatten().tolist()
