from functools import partial
from itertools import product

import pytest
import torch

from pellucid.errors import KernelError
from pellucid.kernels import fused, reference, relu
from pellucid.kernels.mask import Mask
from tests.kernels.cases import MASKS, SCALE, SIZES, assert_same, outcome, problem

# Tiles of two queries, so that there are several and the last one is short.
PAIRS = {
    "sdpa": (fused.sdpa, reference.softmax),
    "grouped": (fused.grouped, reference.softmax),
    "tiled relu": (partial(relu.normalized_relu, tile=2), reference.normalized_relu),
}
every_pair = pytest.mark.parametrize("pair", PAIRS)


@every_pair
@pytest.mark.parametrize(("mask", "size"), list(product(MASKS, SIZES)))
@pytest.mark.parametrize("biased", [False, True])
def test_equals_its_twin_in_values_and_gradients(pair, mask, size, biased):
    fast, twin = PAIRS[pair]
    case = problem(mask, *size, biased=biased)
    assert_same(outcome(fast, case), outcome(twin, case))


@every_pair
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("mask", ["none", "causal", "padding left", "causal and window"])
@pytest.mark.parametrize("value_width", [2, 5])
def test_equals_its_twin_for_grouped_keys(pair, groups, mask, value_width):
    fast, twin = PAIRS[pair]
    case = problem(mask, groups=groups, value_width=value_width, biased=True, seed=10)
    assert_same(outcome(fast, case), outcome(twin, case))


@pytest.mark.parametrize("tile", [1, 3, 7, 256])
def test_the_size_of_a_tile_does_not_matter(tile):
    case = problem("causal and padding left", biased=True)
    tiled = partial(relu.normalized_relu, tile=tile)
    assert_same(outcome(tiled, case), outcome(reference.normalized_relu, case))


@every_pair
def test_without_gradients_the_values_are_the_same(pair):
    fast, twin = PAIRS[pair]
    case = problem("causal and window", 5, 9, 4, biased=True)
    with torch.no_grad():
        heads = fast(case.query, case.key, case.value, scale=SCALE, view=case.view)
    assert not heads.requires_grad
    assert_same([heads], outcome(twin, case)[:1])


BLIND = {
    "padding": (Mask.causal() & Mask(padding=torch.tensor([[False] * 5, [False] * 2 + [True] * 3])), 5, 5, 0),
    "window": (Mask(window=2), 6, 4, 1),
}


@every_pair
@pytest.mark.parametrize("blindness", BLIND)
@pytest.mark.parametrize("biased", [False, True])
def test_blind_queries_give_exact_zeros_and_finite_gradients(pair, blindness, biased):
    fast, _ = PAIRS[pair]
    case = problem(*BLIND[blindness], biased=biased)
    heads, *gradients = outcome(fast, case)
    blind = case.view.blind.expand(*heads.shape[:-1], 1)
    assert blind.any()
    assert not blind.all()
    assert torch.count_nonzero(heads.masked_select(blind)) == 0
    assert torch.count_nonzero(gradients[0].masked_select(blind)) == 0
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_flex_refuses_a_cpu_and_names_the_kernel_to_use():
    case = problem()
    with pytest.raises(KernelError, match=r"cpu.*kernel='fused'"):
        fused.flex(case.query, case.key, case.value, scale=SCALE, view=case.view)
