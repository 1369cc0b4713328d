"""Noise is uniform and belongs to its text alone; draws follow the distribution; filters keep what they say."""

from __future__ import annotations

import math

import pytest
import torch

from pellucid.errors import InputError
from pellucid.generation.sampling import (
    Dials,
    Filters,
    adjusted,
    choose,
    cut,
    dials_of,
    gumbel,
    mix,
    noise_keys,
    uniform,
)

CPU = torch.device("cpu")
STEP = torch.tensor(3)


def chi_square_bound(cells: int, sigmas: float = 4) -> float:
    """Of `cells` - 1 degrees of freedom: its mean, and so many standard deviations."""
    return cells - 1 + sigmas * math.sqrt(2 * (cells - 1))


@pytest.mark.parametrize("axis", ["tokens", "steps", "seeds", "samples"])
def test_noise_is_uniform_along_every_axis(axis: str):
    many = 40_000
    if axis == "tokens":
        values = uniform(noise_keys([7], 1, CPU), STEP, many)[0]
    elif axis == "steps":
        key = noise_keys([7], 1, CPU)
        values = torch.cat([uniform(key, torch.tensor(step), 4)[0] for step in range(many // 4)])
    elif axis == "seeds":
        values = uniform(noise_keys(range(many), 1, CPU), STEP, 1)[:, 0]
    else:
        values = uniform(noise_keys([7], many, CPU), STEP, 1)[:, 0]
    counts = torch.histc(values, 100, 0, 1).double()
    assert float(((counts - len(values) / 100) ** 2 / (len(values) / 100)).sum()) < chi_square_bound(100)
    assert float(values.min()) > 0
    assert float(values.max()) < 1
    follow = torch.corrcoef(torch.stack((values[:-1], values[1:])))[0, 1]
    assert abs(float(follow)) < 4 / math.sqrt(len(values))


def test_the_scrambling_is_one_to_one_on_a_range():
    assert len(mix(torch.arange(2**16)).unique()) == 2**16
    assert int(mix(torch.arange(2**16)).max()) < 2**32


def test_noise_does_not_depend_on_the_rest_of_the_batch():
    both, alone = noise_keys([3, 9], 2, CPU), noise_keys([9], 2, CPU)
    assert torch.equal(both[2:], alone)
    assert torch.equal(uniform(both, STEP, 50)[2:], uniform(alone, STEP, 50))


def test_large_and_negative_seeds_differ():
    keys = noise_keys([0, 1, -1, 2**32, 2**63 - 1, -(2**63)], 1, CPU)
    assert len({tuple(key) for key in keys.tolist()}) == 6


def test_gumbel_noise_has_its_mean_and_variance():
    noise = gumbel(noise_keys([1], 1, CPU), STEP, 200_000)
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.015)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, rel=0.03)
    assert bool(noise.isfinite().all())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_frequencies_match_the_distribution(temperature: float):
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5, -3.0])
    many = 30_000
    dials = dials_of(temperature, Filters(), (), 6, CPU)
    drawn = choose(scores.expand(many, -1), dials, noise_keys(range(many), 1, CPU), STEP, None)
    wanted = (scores / temperature).softmax(-1).double() * many
    counts = torch.bincount(drawn, minlength=6)
    assert float(((counts - wanted) ** 2 / wanted).sum()) < chi_square_bound(6)


def test_the_tokens_of_one_text_match_the_distribution_along_its_steps():
    scores, key = torch.tensor([[1.0, 0.0, -1.0]]), noise_keys([11], 1, CPU)
    dials = dials_of(1.0, Filters(), (), 3, CPU)
    counts = torch.bincount(
        torch.cat([choose(scores, dials, key, torch.tensor(s), None) for s in range(6000)]), minlength=3
    )
    wanted = scores[0].softmax(-1).double() * 6000
    assert float(((counts - wanted) ** 2 / wanted).sum()) < chi_square_bound(3)


def kept(scores: torch.Tensor, **filters: float) -> list[int]:
    dials = dials_of(1.0, Filters(**filters), (), scores.shape[-1], CPU)
    return (cut(scores[None], dials)[0] > -torch.inf).nonzero()[:, 0].tolist()


def test_filters_keep_what_they_say():
    scores = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15]).log()
    assert kept(scores) == [0, 1, 2, 3, 4]
    assert kept(scores, top_k=2) == [1, 3]
    assert kept(scores, top_k=99) == [0, 1, 2, 3, 4]
    assert kept(scores, top_p=0.39) == [1]
    assert kept(scores, top_p=0.41) == [1, 3]
    assert kept(scores, top_p=0.71) == [1, 3, 4]
    assert kept(scores, top_p=1.0) == [0, 1, 2, 3, 4]
    assert kept(scores, min_p=0.5) == [1, 3]
    assert kept(scores, min_p=1.0) == [1]
    assert kept(scores, top_k=3, min_p=0.5) == [1, 3]
    # top_p counts what top_k left: 0.4 and 0.3 of 0.7 are 57 % and 43 %.
    assert kept(scores, top_k=2, top_p=0.5) == [1]


def test_the_penalty_and_the_ban_change_what_is_likeliest():
    scores, seen = torch.tensor([[2.0, 1.5, -1.0]]), torch.tensor([[True, False, True]])
    dials = dials_of(0.0, Filters(repetition_penalty=2.0), (), 3, CPU)
    assert adjusted(scores, dials, seen).tolist() == [[1.0, 1.5, -2.0]]
    keys = noise_keys([0], 1, CPU)
    assert int(choose(scores, dials, keys, STEP, seen)) == 1
    assert int(choose(scores, dials_of(0.0, Filters(), (0,), 3, CPU), keys, STEP, None)) == 1
    assert int(choose(scores, Dials(), keys, STEP, None)) == 0


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"top_k": 0}, "top_k is 0: give 1 or more"),
        ({"top_p": 0.0}, "top_p is 0.0: give a share above 0 and up to 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -1.0}, "min_p is -1.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0: give a number above 0"),
    ],
)
def test_filters_that_cannot_be_are_refused(filters: dict[str, float], message: str):
    with pytest.raises(InputError, match=message):
        Filters(**filters)
