import math
from itertools import product

import pytest
import torch

from pellucid.kernels import reference
from pellucid.kernels.mask import Mask
from tests.kernels.cases import BATCH, HEADS, MASKS, SCALE, draw, outcome, problem, shows


def exponential(scores):
    top = max(scores, default=0.0)
    return [math.exp(score - top) for score in scores]


def positive_part(scores):
    return [max(score, 0.0) for score in scores]


KERNELS = {"softmax": (reference.softmax, exponential), "normalized_relu": (reference.normalized_relu, positive_part)}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def by_loops(case, activation):
    """Attention as a sum over keys, one number at a time."""
    query, key, value = case.query.tolist(), case.key.tolist(), case.value.detach()
    view, shared = case.view, HEADS // case.key.shape[1]
    heads = torch.zeros(BATCH, HEADS, view.queries, case.value.shape[-1], dtype=torch.float64)
    bias = None if case.bias is None else case.bias.tolist()
    for text, head, i in product(range(BATCH), range(HEADS), range(view.queries)):
        seen = [j for j in range(view.keys) if shows(view.mask, text, i + view.offset, j)]
        scores = []
        for j in seen:
            inner = sum(a * b for a, b in zip(query[text][head][i], key[text][head // shared][j], strict=True))
            extra = 0.0 if bias is None else bias[head][j - i + view.queries - 1]
            scores.append(inner * SCALE + extra)
        weights = activation(scores)
        total = sum(weights)
        for j, weight in zip(seen, weights, strict=True):
            if total:
                heads[text, head, i] += weight / total * value[text, head // shared, j]
    return heads


@every_kernel
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
def test_equals_a_loop_over_queries_and_keys(kernel, mask, biased):
    attend, activation = KERNELS[kernel]
    case = problem(mask, 3, 7, 4, biased=biased)
    heads = attend(case.query, case.key, case.value, scale=SCALE, view=case.view)
    torch.testing.assert_close(heads.detach(), by_loops(case, activation), rtol=1e-12, atol=1e-12)


@every_kernel
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("value_width", [1, 5, 8])
def test_heads_share_keys_in_groups_and_values_have_their_own_width(kernel, groups, value_width):
    attend, activation = KERNELS[kernel]
    case = problem("causal", groups=groups, value_width=value_width)
    heads = attend(case.query, case.key, case.value, scale=SCALE, view=case.view)
    torch.testing.assert_close(heads.detach(), by_loops(case, activation), rtol=1e-12, atol=1e-12)


@every_kernel
@pytest.mark.parametrize("biased", [False, True])
def test_a_query_that_may_look_at_nothing_gives_zeros_and_passes_no_gradient(kernel, biased):
    attend, _ = KERNELS[kernel]
    # Text 0 has no key at all; in text 1 the first two queries have none yet.
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    case = problem(Mask.causal() & Mask(padding=padding), 4, 4, biased=biased)
    heads, *gradients = outcome(attend, case)
    query, key, value = gradients[:3]
    assert all(gradient.isfinite().all() for gradient in gradients)
    for silent in (heads[0], heads[1, :, :2], query[0], query[1, :, :2], key[0], value[0], key[1, :, :2]):
        assert torch.count_nonzero(silent) == 0
    assert torch.count_nonzero(heads[1, :, 2:]) > 0


def test_a_row_without_a_positive_score_gives_zeros_and_finite_gradients():
    case = problem()
    with torch.no_grad():
        case.query.copy_(torch.rand_like(case.query))
        case.key.copy_(-torch.rand_like(case.key))
    for result in outcome(reference.normalized_relu, case):
        assert torch.count_nonzero(result) == 0


@every_kernel
@pytest.mark.parametrize("mask", MASKS)
def test_rows_of_weights_sum_to_one_or_to_nothing(kernel, mask):
    weigh = {"softmax": reference.softmax_weights, "normalized_relu": reference.normalized_relu_weights}[kernel]
    case = problem(mask)
    scores = reference.scores(case.query, case.key, scale=SCALE, view=case.view)
    weights = weigh(scores)
    sums = weights.sum(-1)
    assert (((sums - 1).abs() < 1e-14) | (sums == 0)).all()
    assert torch.count_nonzero(weights[scores == -torch.inf]) == 0


def test_a_row_of_weights_with_nothing_to_look_at_has_no_gradient():
    scores = torch.tensor([[0.5, -torch.inf], [-torch.inf, -torch.inf], [1.0, 2.0]], dtype=torch.float64)[None, None]
    scores.requires_grad_()
    weights = reference.softmax_weights(scores)
    (gradient,) = torch.autograd.grad(weights, scores, draw(*weights.shape))
    assert weights[0, 0, :2].tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert torch.count_nonzero(gradient[0, 0, :2]) == 0
    assert torch.count_nonzero(gradient[0, 0, 2]) == 2


def test_large_scores_stay_finite():
    case = problem("causal")
    for result in outcome(lambda q, k, v, **rest: reference.softmax(q * 1e6, k, v, **rest), case):
        assert result.isfinite().all()
