import math

import pytest
import torch

from pellucid.kernels import linear, reference
from pellucid.kernels.linear import Phi
from pellucid.model.positions import Rotation
from tests.kernels.cases import BATCH, HEADS, assert_same, draw, padding

LENGTH, FEATURES, VALUES = 10, 6, 3
CHUNKS = [1, 3, 128]
turned_or_not = pytest.mark.parametrize("turned", [False, True])
padded_or_not = pytest.mark.parametrize("side", [None, "left", "right"])


def quarter_turns(length):
    """Angles that grow with the slot, so that turned products change sign now and then."""
    angle = torch.arange(length)[:, None] * torch.tensor([1.0, 0.3, 0.05], dtype=torch.float64)
    return Rotation(angle.cos()[None, None], angle.sin()[None, None], interleaved=False)


def leaves(length=LENGTH):
    """Features of queries and of keys, above zero, and values."""
    query, key = (draw(BATCH, HEADS, length, FEATURES, seed=seed).abs() + 0.1 for seed in (1, 2))
    return [x.requires_grad_() for x in (query, key, draw(BATCH, HEADS, length, VALUES, seed=3))]


def phi(features, turned):
    return Phi(features, quarter_turns(features.shape[-2]).turn(features) if turned else features)


def keep_of(side, length=LENGTH):
    return None if side is None else padding(length, left=side == "left")


def part(features, start, stop):
    return Phi(features.plain[:, :, start:stop], features.turned[:, :, start:stop])


def with_gradients(attend, inputs):
    heads = attend(*inputs)
    return [heads.detach(), *torch.autograd.grad(heads, inputs, draw(*heads.shape, seed=99))]


def twin(turned, side, *, causal):
    def attend(query, key, value):
        keys = phi(key, turned).without(keep_of(side))
        return linear.reference_weights(phi(query, turned), keys, causal=causal) @ value

    return attend


@turned_or_not
@padded_or_not
def test_summarize_and_read_equal_the_twin(turned, side):
    def attend(query, key, value):
        state = linear.summarize(phi(key, turned).without(keep_of(side)), value)
        return linear.read(phi(query, turned), state, value.dtype)

    inputs = leaves()
    assert_same(with_gradients(attend, inputs), with_gradients(twin(turned, side, causal=False), inputs))


@turned_or_not
@padded_or_not
@pytest.mark.parametrize("chunk", CHUNKS)
def test_causal_equals_the_twin(turned, side, chunk):
    def attend(query, key, value):
        keys = phi(key, turned).without(keep_of(side))
        return linear.causal(phi(query, turned), keys, value, chunk=chunk)[0]

    inputs = leaves()
    assert_same(with_gradients(attend, inputs), with_gradients(twin(turned, side, causal=True), inputs))


@turned_or_not
def test_padding_is_as_if_it_were_not_there(turned):
    _, key, value = leaves()
    real = keep_of("right")
    length = int(real[0].sum())
    padded = linear.summarize(phi(key, turned).without(real), value)
    short = linear.summarize(part(phi(key, turned), 0, length), value[:, :, :length])
    assert_same([padded.moments[0], padded.normalizer[0]], [short.moments[0], short.normalizer[0]])
    assert phi(key, turned).without(None).plain is key


@turned_or_not
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("split", [1, 2, 3, 5, 9])
def test_a_text_may_be_split_anywhere(turned, chunk, split):
    def attend(query, key, value):
        queries, keys = phi(query, turned), phi(key, turned).without(keep_of("left"))
        before, state = linear.causal(part(queries, 0, split), part(keys, 0, split), value[:, :, :split], None, chunk)
        rest = part(queries, split, LENGTH), part(keys, split, LENGTH), value[:, :, split:]
        return torch.cat((before, linear.causal(*rest, state, chunk)[0]), -2)

    inputs = leaves()
    assert_same(with_gradients(attend, inputs), with_gradients(twin(turned, "left", causal=True), inputs))


@turned_or_not
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_state_after_a_text_is_the_summary_of_its_keys(turned, chunk):
    query, key, value = leaves()
    whole = linear.summarize(phi(key, turned), value)
    _, first = linear.causal(part(phi(query, turned), 0, 4), part(phi(key, turned), 0, 4), value[:, :, :4], None, chunk)
    rest = part(phi(query, turned), 4, LENGTH), part(phi(key, turned), 4, LENGTH), value[:, :, 4:]
    _, last = linear.causal(*rest, first, chunk)
    assert_same([last.moments, last.normalizer], [whole.moments, whole.normalizer])


def test_the_weights_are_ratios_of_products():
    q, k = (phi(features.detach(), True) for features in leaves()[:2])
    weights = linear.reference_weights(q, k, causal=True)
    for i in range(LENGTH):
        total = sum(q.plain[1, 2, i] @ k.plain[1, 2, j] for j in range(i + 1))
        for j in range(LENGTH):
            expected = q.turned[1, 2, i] @ k.turned[1, 2, j] / total if j <= i else torch.tensor(0.0)
            assert float(weights[1, 2, i, j]) == pytest.approx(float(expected), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_zero_denominators_give_zeros_and_finite_gradients(causal):
    query, key, value = leaves()
    with torch.no_grad():
        query[0] = -query[0]  # all features of text 0's queries are cut off by the relu
        key[1, :, :4] = -key[1, :, :4]  # the first queries of text 1 find no key with a feature

    def attend(query, key, value):
        q, k = (Phi(x.relu(), x.relu()) for x in (query, key))
        if causal:
            return linear.causal(q, k, value, chunk=3)[0]
        return linear.read(q, linear.summarize(k, value), value.dtype)

    def formed(query, key, value):
        q, k = (Phi(x.relu(), x.relu()) for x in (query, key))
        return linear.reference_weights(q, k, causal=causal) @ value

    results = with_gradients(attend, [query, key, value])
    assert all(result.isfinite().all() for result in results)
    assert torch.count_nonzero(results[0][0]) == 0
    assert torch.count_nonzero(results[0][1, :, :4]) == (0 if causal else HEADS * 4 * VALUES)
    assert_same(results, with_gradients(formed, [query, key, value]))


def test_elu_plus_one_is_positive_and_follows_its_formula():
    x = [-30.0, -1.0, 0.0, 0.5, 3.0]
    expected = [math.exp(v) if v < 0 else v + 1 for v in x]
    ours = linear.elu_plus_one(torch.tensor(x, dtype=torch.float64))
    # exp(x) - 1 + 1 rounds at the size of 1.
    assert ours.tolist() == pytest.approx(expected, rel=0, abs=2.3e-16)


# --- positive random features ---

WIDTH, SCALE = 4, 0.5
every_kind_of_rows = pytest.mark.parametrize("orthogonal", [False, True])


def rows(count, *, orthogonal, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return linear.gaussian_rows(count, WIDTH, orthogonal=orthogonal, generator=generator)


@every_kind_of_rows
def test_products_of_positive_features_are_unbiased(orthogonal):
    query, key = draw(3, WIDTH, seed=1), draw(3, WIDTH, seed=2)
    blocks = 50_000
    projection = rows(blocks * WIDTH, orthogonal=orthogonal)
    features = [linear.positive_random(x, projection, SCALE) for x in (query, key)]
    # Features are scaled by the number of rows: one estimate per block of rows is a mean over the block.
    estimates = (features[0] * features[1]).reshape(3, blocks, WIDTH).sum(-1) * blocks
    error = estimates.mean(-1) - (SCALE * (query * key).sum(-1)).exp()
    assert (error.abs() < 4 * estimates.std(-1) / blocks**0.5).all()


def test_orthogonal_rows_estimate_better_than_plain_ones():
    query, key = draw(WIDTH, seed=1), draw(WIDTH, seed=2)
    spread = {}
    for orthogonal in (False, True):
        projection = rows(20_000 * WIDTH, orthogonal=orthogonal)
        features = [linear.positive_random(x[None], projection, SCALE)[0] for x in (query, key)]
        spread[orthogonal] = float((features[0] * features[1]).reshape(-1, WIDTH).sum(-1).std())
    # Both spreads are known to about 2 %, and here orthogonality takes away a tenth.
    assert spread[True] < 0.95 * spread[False]


def test_orthogonal_rows_are_orthogonal_within_a_block():
    drawn = rows(10, orthogonal=True)
    for block in drawn.split(WIDTH):
        products = block @ block.T
        torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-13)
    # Two blocks of the same space cannot all be orthogonal.
    assert (drawn[:WIDTH] @ drawn[WIDTH : 2 * WIDTH].T).abs().max() > 0.1


@every_kind_of_rows
def test_each_row_has_the_moments_of_a_standard_normal(orthogonal):
    count = 40_000
    drawn = rows(count, orthogonal=orthogonal, seed=3)
    deviations = 5 / count**0.5  # five standard errors, times the deviation of what is averaged
    assert drawn.mean(0).abs().max() < deviations
    products = drawn.T @ drawn / count
    assert (products - torch.eye(WIDTH, dtype=torch.float64)).abs().max() < deviations * 2**0.5
    assert (drawn.pow(4).mean(0) - 3).abs().max() < deviations * 96**0.5
    squares = drawn.square().sum(1)
    assert abs(squares.mean() - WIDTH) < deviations * (2 * WIDTH) ** 0.5


def test_the_number_of_rows_need_not_be_a_multiple_of_the_width():
    for count in (1, 3, 4, 5, 9):
        assert rows(count, orthogonal=True).shape == (count, WIDTH)


def test_shift_cancels_in_the_ratio():
    query, key, value = (draw(BATCH, HEADS, LENGTH, WIDTH, seed=seed) for seed in (1, 2, 3))
    projection = rows(32, orthogonal=True)
    state = linear.summarize(phi(linear.positive_random(key, projection, SCALE), False), value)
    plain, shifted = (linear.positive_random(query, projection, SCALE, shift=shift) for shift in (False, True))
    assert not torch.allclose(plain, shifted)
    assert_same(
        [linear.read(phi(shifted, False), state, value.dtype)], [linear.read(phi(plain, False), state, value.dtype)]
    )


def test_shift_keeps_a_far_query_from_vanishing():
    query = torch.full((1, WIDTH), 60.0)  # float32, where exp(-|x|^2/2) is zero
    projection = rows(32, orthogonal=True).float()
    assert torch.count_nonzero(linear.positive_random(query, projection, 1.0)) == 0
    assert linear.positive_random(query, projection, 1.0, shift=True).max() == pytest.approx(32**-0.5)


@every_kind_of_rows
def test_the_error_falls_like_one_over_the_root_of_the_features(orthogonal):
    # Short vectors: features are log-normal with variance |q + k|^2 scale, and the law sets in after its exponential.
    query, key = (0.3 * draw(1, 1, 6, WIDTH, seed=seed) for seed in (1, 2))
    exact = reference.softmax_weights(SCALE * query @ key.transpose(-1, -2))
    few, many, draws = 32, 512, 200

    def error(count):
        squares = 0.0
        for seed in range(draws):
            projection = rows(count, orthogonal=orthogonal, seed=seed)
            q, k = (phi(linear.positive_random(x, projection, SCALE), False) for x in (query, key))
            squares += float((linear.reference_weights(q, k, causal=False) - exact).square().mean())
        return (squares / draws) ** 0.5

    slope = math.log(error(many) / error(few)) / math.log(many / few)
    # Each error is known to about 1/sqrt(2 x 200) = 5 %, so the slope to about 0.03.
    assert slope == pytest.approx(-0.5, abs=0.1)
