"""A cache changes nothing but the cost, and says so when it does not fit. All combinations: tests/properties."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pellucid.errors import CacheError, InputError
from pellucid.model import config as c
from pellucid.model.cache import Cache, KeysAndValues, Running
from pellucid.model.transformer import Transformer

from .small import ids, network, unchecked

EXACT = {"rtol": 1e-11, "atol": 1e-11}
LINEAR = c.Linear(chunk=3)


def read(model: Transformer, text: Tensor, pieces: list[int], cache: Cache | None = None, **first: object) -> Tensor:
    """The scores of a text read piece by piece; `first` is for the first call only."""
    cache = cache or model.new_cache(*text.shape)
    answers = []
    for piece in text.split(pieces, 1):
        answers.append(model.decode(piece, cache=cache, **first))
        first = {}
    return torch.cat(answers, 1)


# --- what does not fit is refused ---


def test_more_tokens_than_the_capacity_are_refused_with_the_capacity_needed():
    model = network()
    cache = model.new_cache(1, 5)
    model(ids(1, 4), cache=cache)
    with pytest.raises(CacheError, match=r"room for 5 tokens and holds 4, but 3 more came: .*capacity 7 or more"):
        model(ids(1, 3), cache=cache)


def test_the_last_slot_of_the_capacity_is_used():
    model, text = network(), ids(1, 5)
    torch.testing.assert_close(read(model, text, [4, 1], model.new_cache(1, 5)), model(text), **EXACT)


def test_another_batch_size_is_refused_with_both_sizes():
    model = network()
    with pytest.raises(CacheError, match=r"holds 2 texts, but 3 came: make one cache per batch"):
        model(ids(3, 4), cache=model.new_cache(2, 9))


def test_a_second_memory_is_refused():
    model = network("both")
    cache = model.new_cache(1, 9)
    model(ids(1, 3), ids(1, 2), cache=cache)
    with pytest.raises(CacheError, match=r"already holds .* a memory: decode without one, or make a new cache"):
        model(ids(1, 3), ids(1, 2), cache=cache)


def test_a_first_call_without_a_memory_is_refused():
    model = network("both")
    with pytest.raises(InputError, match=r"first call to decode needs a memory: pass encode\(source_ids\)"):
        model.decode(ids(1, 2), cache=model.new_cache(1, 9))


@pytest.mark.parametrize(("stacks", "causal"), [("encoder", True), ("decoder", False), ("both", False)])
def test_only_a_causal_decoder_has_a_cache(stacks: str, causal: bool):
    with pytest.raises(CacheError, match=r"only causal decoders can cache: .* Call the network without a cache"):
        network(stacks, causal=causal).new_cache(1, 8)


def test_an_encoder_is_not_called_with_a_cache():
    cache = network().new_cache(1, 8)
    with pytest.raises(InputError, match="an encoder of this config takes no cache"):
        network("encoder")(ids(1, 3), cache=cache)


def test_linear_attention_on_the_reference_kernel_refuses_a_cache():
    model = network(attention=LINEAR, kernel="reference")
    with pytest.raises(NotImplementedError, match=r"keeps only sums. Use kernel='fused', or no cache"):
        model(ids(1, 3), cache=model.new_cache(1, 8))


def test_a_refused_call_leaves_the_cache_as_it_was():
    model, text = network(), ids(2, 6)
    cache = model.new_cache(2, 8)
    start = model(text[:, :3], padding=torch.tensor([[False, True, True], [True] * 3]), cache=cache)
    with pytest.raises(InputError, match="2 separate runs"):
        model(text[:, 3:], padding=torch.tensor([[False, True, True], [True] * 3]), cache=cache)
    rest = model(text[:, 3:], cache=cache)
    padding = torch.arange(6) >= torch.tensor([[1], [0]])
    torch.testing.assert_close(torch.cat((start, rest), 1), model(text, padding=padding), **EXACT)


# --- linear attention keeps a state, not keys ---


def test_the_state_of_linear_attention_has_a_constant_size_and_no_capacity():
    model, text = network(attention=LINEAR), ids(2, 11)
    cache = model.new_cache(2, 1)
    sizes = []
    for step in range(11):
        model(text[:, step : step + 1], cache=cache)
        assert all(isinstance(block.own, Running) for block in cache.blocks)
        sizes.append([(b.own.state.moments.shape, b.own.state.normalizer.shape) for b in cache.blocks])
    assert all(size == sizes[0] for size in sizes)
    torch.testing.assert_close(read(model, text, [4, 7], model.new_cache(2, 1)), model(text), **EXACT)


@pytest.mark.parametrize("pieces", [[3, 1, 1, 4, 2], [11], [2, 9]])
def test_linear_attention_reads_padded_texts_past_its_capacity(pieces: list[int]):
    model, text = network(attention=LINEAR), ids(2, 11)
    padding = torch.arange(11) >= torch.tensor([[2], [0]])
    got = read(model, text, pieces, model.new_cache(2, 2), padding=padding[:, : pieces[0]])
    torch.testing.assert_close(got, model(text, padding=padding), **EXACT)


def test_softmax_keeps_keys_and_values_in_room_made_beforehand():
    model, text = network(), ids(1, 6)
    cache = model.new_cache(1, 6)
    rooms = [block.own.key.data_ptr() for block in cache.blocks if isinstance(block.own, KeysAndValues)]
    read(model, text, [1] * 6, cache)
    assert rooms == [block.own.key.data_ptr() for block in cache.blocks]
    assert len(rooms) == 2


def test_the_cache_of_linear_attention_sums_in_float32_at_least():
    half = network(attention=LINEAR).bfloat16().new_cache(1, 4)
    double = network(attention=LINEAR).new_cache(1, 4)
    assert half.blocks[0].own.state.moments.dtype == torch.float32
    assert double.blocks[0].own.state.moments.dtype == torch.float64


# --- prefixes, windows, shapes of heads ---


@pytest.mark.parametrize("prefix", [0, 2, 4])
@pytest.mark.parametrize("pieces", [[4, 1, 1], [5, 1], [6]])
def test_a_prefix_within_the_first_call_is_read_as_without_a_cache(prefix: int, pieces: list[int]):
    model, text = network(), ids(2, 6)
    torch.testing.assert_close(read(model, text, pieces, prefix=prefix), model(text, prefix=prefix), **EXACT)


def test_a_prefix_per_text_is_read_as_without_a_cache():
    model, text, prefix = network(), ids(2, 6), torch.tensor([1, 3])
    torch.testing.assert_close(read(model, text, [3, 2, 1], prefix=prefix), model(text, prefix=prefix), **EXACT)


def test_a_prefix_counts_tokens_not_the_padding_before_them():
    model, text, padding = network(), ids(2, 7), torch.arange(7) >= torch.tensor([[3], [1]])
    got = model(text, padding=padding, prefix=2)
    for row, left in enumerate((3, 1)):
        torch.testing.assert_close(got[row, left:], model(text[row : row + 1, left:], prefix=2)[0], **EXACT)
    torch.testing.assert_close(read(model, text, [5, 2], padding=padding[:, :5], prefix=2), got, **EXACT)


def test_a_prefix_changes_what_its_own_tokens_see():
    model, text = network(), ids(1, 6)
    assert (model(text, prefix=3) - model(text))[:, 0].abs().max() > 1e-4


def test_a_prefix_longer_than_the_first_call_is_refused_with_both_lengths():
    model = network()
    with pytest.raises(InputError, match=r"prefix of 5 tokens .*0 are cached and 3 came; the whole prefix goes into"):
        model(ids(1, 3), prefix=5, cache=model.new_cache(1, 9))


def test_a_prefix_that_padding_pushes_past_the_first_call_is_refused():
    model, padding = network(), torch.tensor([[False, False, True, True]])
    with pytest.raises(InputError, match=r"prefix of 5 tokens .*0 are cached and 4 came"):
        model(ids(1, 4), prefix=3, padding=padding, cache=model.new_cache(1, 9))


def test_a_prefix_that_comes_after_the_first_call_is_refused():
    model = network()
    cache = model.new_cache(1, 9)
    model(ids(1, 2), cache=cache)
    with pytest.raises(InputError, match=r"prefix of 4 tokens .*2 are cached and 3 came"):
        model(ids(1, 3), prefix=4, cache=cache)


def test_a_negative_prefix_is_refused():
    with pytest.raises(InputError, match=r"prefix of -1 tokens"):
        network()(ids(1, 3), prefix=-1)


@pytest.mark.parametrize("window", [1, 2, 4, (2, None), (None, 3)])
@pytest.mark.parametrize("attention", [c.Softmax(), c.NormalizedRelu()])
def test_windows_are_cached(window: object, attention: c.Attention):
    model, text = network(window=window, attention=attention), ids(2, 9)
    padding = torch.arange(9) >= torch.tensor([[2], [0]])
    torch.testing.assert_close(read(model, text, [3, 1, 4, 1]), model(text), **EXACT)
    got = read(model, text, [3, 1, 4, 1], padding=padding[:, :3])
    torch.testing.assert_close(got, model(text, padding=padding), **EXACT)
    assert (model(text) - network(attention=attention)(text))[:, -1].abs().max() > 1e-4


@pytest.mark.parametrize("attention", [c.Softmax(), c.NormalizedRelu(), LINEAR])
@pytest.mark.parametrize("stacks", ["decoder", "both"])
def test_grouped_heads_and_wide_values_are_cached(attention: c.Attention, stacks: str):
    model = network(stacks, attention=attention, key_value_heads=2, head_width=6, value_width=5)
    text, source = ids(2, 7), ids(2, 4, seed=1)
    if stacks == "decoder":
        got, expected = read(model, text, [2, 1, 4]), model(text)
    else:
        got, expected = read(model, text, [2, 1, 4], memory=model.encode(source)), model(source, text)
    torch.testing.assert_close(got, expected, **EXACT)
    if not isinstance(attention, c.Linear):
        own = model.new_cache(2, 7).blocks[0].own
        assert own.key.shape == (2, 2, 7, 6)
        assert own.value.shape == (2, 2, 7, 5)


def test_a_memory_for_another_number_of_texts_is_refused_with_both_numbers():
    model = network("both")
    with unchecked(), pytest.raises(InputError, match=r"memory holds 3 texts, but 2 came"):
        model.decode(ids(2, 4), model.encode(ids(3, 4)), cache=model.new_cache(2, 9))
