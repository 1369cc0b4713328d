"""What must hold whatever a Transformer is made of, for every combination that a config allows."""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from pellucid.model.mechanisms import Sight
from pellucid.model.stack import Stack
from pellucid.model.transformer import Transformer

from .combinations import (
    ALLOWED,
    EXACT,
    REFUSED,
    VOCAB,
    Combination,
    Text,
    build,
    draw_ids,
    few,
    for_each_having,
    random,
    scores,
)

seeds = st.integers(0, 2**31)
lengths = st.integers(3, 9)


@for_each_having("future")
@few
@given(length=lengths, back=st.integers(1, 2), seed=seeds)
def test_changing_the_future_never_changes_the_past(combination: Combination, length: int, back: int, seed: int):
    network, draw = build(combination), random(combination, seed)
    text, cut = Text.draw(combination, draw, 2, length), length - back
    other = text.ids.clone()
    other[:, cut:] = (other[:, cut:] + 1 + torch.randint(VOCAB - 1, (2, back), generator=draw)) % VOCAB
    before, after = scores(network, text), scores(network, replace(text, ids=other))
    torch.testing.assert_close(after[:, :cut], before[:, :cut], **EXACT)
    assert ((after - before)[:, cut:].abs().amax(-1) > 1e-6).all()


@for_each_having("padding")
@few
@given(length=lengths, left=st.integers(1, 3), right=st.integers(0, 3), seed=seeds)
def test_padding_never_changes_a_real_token(combination: Combination, length: int, left: int, right: int, seed: int):
    network, draw = build(combination), random(combination, seed)
    alone = Text.draw(combination, draw, 1, length)
    # A second text of the batch is padded the other way round, so that rows differ in where they start.
    ids, padding = padded(alone.ids, [(left, right), (right, left)], draw)
    text = Text(ids, padding=padding)
    if alone.source is not None:
        source, source_padding = padded(alone.source, [(right + 1, left), (left, right + 1)], draw)
        text = replace(text, source=source, source_padding=source_padding)
    expected = scores(network, alone)[0]
    for row, keep in zip(scores(network, text), padding, strict=True):
        torch.testing.assert_close(row[keep], expected, **EXACT)


def padded(ids: Tensor, sides: list[tuple[int, int]], draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """The one text of `ids`, once for each (left, right), between that many slots of any content."""
    length, total = ids.shape[1], ids.shape[1] + sum(sides[0])
    filled, keep = draw_ids(draw, len(sides), total), torch.zeros(len(sides), total, dtype=torch.bool)
    for row, (left, _) in enumerate(sides):
        filled[row, left : left + length], keep[row, left : left + length] = ids[0], True
    return filled, keep


@for_each_having("permutation")
@few
@given(length=lengths, seed=seeds)
def test_without_positions_a_permutation_of_tokens_permutes_the_output(
    combination: Combination, length: int, seed: int
):
    network, draw = build(combination), random(combination, seed)
    ids, order = draw_ids(draw, 2, length), torch.randperm(length, generator=draw)
    torch.testing.assert_close(network(ids[:, order]), network(ids)[:, order], **EXACT)


@for_each_having("shift")
@few
@given(length=lengths, shift=st.integers(1, 4), seed=seeds)
def test_a_shifted_text_looks_the_same_to_relative_schemes_only(
    combination: Combination, length: int, shift: int, seed: int
):
    network, draw = build(combination), random(combination, seed)
    for stack in (network.encoder, network.decoder):
        if stack is None:
            continue
        tokens = torch.randn(2, shift + length, network.config.width, generator=draw, dtype=torch.float64)
        here = states(network, stack, tokens[:, shift:], hidden=0)
        later = states(network, stack, tokens, hidden=shift)[:, shift:]
        if combination.position in ("sinusoidal", "learned"):
            assert (later - here).abs().max() > 1e-3
        else:
            torch.testing.assert_close(later, here, **EXACT)


def states(network: Transformer, stack: Stack, tokens: Tensor, *, hidden: int) -> Tensor:
    """A stack's states when places count the first `hidden` slots too, although nothing may look at them."""
    batch, length, _ = tokens.shape
    places = torch.arange(length)[None]
    padding = (places >= hidden).expand(batch, -1)
    x = network.embedding(tokens, stack.positions.vectors(places, tokens.dtype), None)
    causal = stack is network.decoder
    memory, sight = None, None
    if causal and network.encoder is not None:
        memory = torch.ones(batch, 2, network.config.width, dtype=tokens.dtype)
        sight = Sight(View(length, 2, tokens.device), torch.arange(2)[None])
    return stack(x, Mask(prefix=0 if causal else None, padding=padding), places, memory, sight)


@for_each_having("cache")
@few
@given(chunks=st.lists(st.integers(1, 2), min_size=1, max_size=2), ragged=st.integers(1, 2), seed=seeds)
def test_a_cache_changes_nothing(combination: Combination, chunks: list[int], ragged: int, seed: int):
    network, draw = build(combination), random(combination, seed)
    # The first chunk reaches past the padding on the left of the first text.
    chunks = [ragged + 1, *chunks]
    text = Text.draw(combination, draw, 2, sum(chunks))
    padding = torch.arange(sum(chunks)) >= torch.tensor([[ragged], [0]])
    left_padded = replace(text, padding=padding)
    if text.source is not None:
        source_padding = torch.arange(text.source.shape[1]) >= torch.tensor([[0], [1]])
        left_padded = replace(left_padded, source_padding=source_padding)
    for case, pieces in ((text, [1] * sum(chunks)), (text, chunks), (left_padded, chunks)):
        torch.testing.assert_close(cached(network, case, pieces), scores(network, case), **EXACT)


def cached(network: Transformer, text: Text, pieces: list[int]) -> Tensor:
    """The scores of a text that is read piece by piece: only the first brings padding and memory."""
    cache, answers, projections = network.new_cache(text.ids.shape[0], text.ids.shape[1]), [], []
    memory = None if text.source is None else network.encode(text.source, padding=text.source_padding)
    hooks = [
        block.cross.to_key.register_forward_hook(lambda *_: projections.append(1))
        for block in network.decoder.blocks
        if block.cross is not None
    ]
    padding, source_padding = text.padding, text.source_padding
    for ids in text.ids.split(pieces, 1):
        own = None if padding is None else padding[:, : ids.shape[1]]
        answers.append(network.decode(ids, memory, source_padding=source_padding, padding=own, cache=cache))
        memory, padding, source_padding = None, None, None
    for hook in hooks:
        hook.remove()
    assert len(projections) == len(hooks), "the memory is projected once, by the first piece"
    return torch.cat(answers, 1)


@for_each_having("batch")
@few
@given(length=lengths, seed=seeds)
def test_a_text_in_a_batch_is_the_text_alone(combination: Combination, length: int, seed: int):
    network = build(combination)
    text = Text.draw(combination, random(combination, seed), 2, length)
    alone = torch.cat([scores(network, text.text(index)) for index in range(2)])
    torch.testing.assert_close(scores(network, text), alone, **EXACT)


@for_each_having("kernels")
@few
@given(length=lengths, left=st.integers(0, 2), seed=seeds)
def test_the_fused_kernel_is_the_reference_kernel(combination: Combination, length: int, left: int, seed: int):
    fused, reference = build(combination), build(combination, "reference")
    draw = random(combination, seed)
    text = Text.draw(combination, draw, 2, length)
    if left:  # without padding a causal mask takes a path of its own
        text = replace(text, padding=torch.arange(length) >= torch.tensor([[left], [0]]))
    weight = torch.randn(2, length, VOCAB, generator=draw, dtype=torch.float64)
    values, gradients = zip(
        *(value_and_gradients(network, text, weight) for network in (fused, reference)), strict=True
    )
    torch.testing.assert_close(values[0], values[1], **EXACT)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-9)


def value_and_gradients(network: Transformer, text: Text, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    value = scores(network, text)
    parameters = dict(network.named_parameters())
    gradients = torch.autograd.grad((value * weight).sum(), list(parameters.values()), allow_unused=True)
    return value.detach(), {name: grad for name, grad in zip(parameters, gradients, strict=True) if grad is not None}


def test_only_linformer_and_linear_attention_refuse_combinations():
    """So that nothing drops out of the tests above unseen."""
    reasons = {
        "linformer": ("Linformer cannot be causal", "positions with Linformer"),
        "linear": ("positions with linear attention",),
    }
    for combination, message in REFUSED.items():
        mechanism = combination.attention.split("_")[0]
        assert any(reason in message for reason in reasons.get(mechanism, ())), f"{combination}: {message}"
    assert (len(ALLOWED), len(REFUSED)) == (504, 378)
