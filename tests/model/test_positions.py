import math

import pytest
import torch

from pellucid.model import config as c
from pellucid.model import positions
from pellucid.model.positions import RotaryPositions, Rotation, alibi_slopes, rotary_angles, sinusoids, t5_bucket

PLACES = torch.tensor([[0, 1, 2, 7, 100, 4095]])
CPU = torch.device("cpu")


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(scheme, width, places=PLACES):
    return RotaryPositions(scheme, width).rotation(places, torch.float64)


# --- sinusoidal ---


@pytest.mark.parametrize("width", [1, 2, 7, 8])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("base", [10_000.0, 50.0])
def test_sinusoids_follow_the_formula(width, layout, base):
    table = sinusoids(PLACES, c.Sinusoidal(layout=layout, base=base), width)[0]
    angles = [[p / base ** (2 * i / width) for i in range((width + 1) // 2)] for p in PLACES[0].tolist()]
    for row, angle in zip(table.tolist(), angles, strict=True):
        sines, cosines = [math.sin(a) for a in angle], [math.cos(a) for a in angle][: width // 2]
        sines_at, cosines_at = (
            (row[0::2], row[1::2]) if layout == "interleaved" else (row[: len(sines)], row[len(sines) :])
        )
        # An angle of 4095 carries a rounding of 4.5e-13.
        assert sines_at == pytest.approx(sines, abs=1e-12)
        assert cosines_at == pytest.approx(cosines, abs=1e-12)


def test_a_shift_of_the_place_rotates_each_pair_of_sinusoids():
    width, shift = 8, 5
    places = torch.arange(20)[None]
    here, there = (sinusoids(p, c.Sinusoidal(), width)[0] for p in (places, places + shift))
    for i in range(width // 2):
        angle = shift / 10_000 ** (2 * i / width)
        sin, cos = here[:, 2 * i], here[:, 2 * i + 1]
        moved = sin * math.cos(angle) + cos * math.sin(angle), cos * math.cos(angle) - sin * math.sin(angle)
        torch.testing.assert_close(there[:, 2 * i : 2 * i + 2], torch.stack(moved, -1), rtol=0, atol=1e-13)


def test_sinusoids_of_low_precision_are_the_exact_ones_rounded_once():
    exact = sinusoids(PLACES, c.Sinusoidal(), 8)
    rounded = sinusoids(PLACES, c.Sinusoidal(precision="float32"), 8)
    assert exact.dtype == torch.float64
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact.float())
    vectors = positions.SinusoidalPositions(c.Sinusoidal(), 8).vectors(PLACES, torch.bfloat16)
    assert torch.equal(vectors, exact.bfloat16())


# --- score biases: ALiBi, T5, learned distances ---


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32])
def test_slopes_of_a_power_of_two_are_a_geometric_series(heads):
    first = 2 ** (-8 / heads)
    assert alibi_slopes(heads) == pytest.approx([first ** (h + 1) for h in range(heads)], rel=1e-14)


def test_published_slopes():
    eight = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]
    between = [0.7071067811865476, 0.3535533905932738, 0.17677669529663687, 0.08838834764831845]
    assert alibi_slopes(8) == eight
    assert alibi_slopes(12) == pytest.approx(eight + between, rel=1e-15)
    assert alibi_slopes(16)[:4] == pytest.approx([2**-0.5, 0.5, 2**-1.5, 0.25], rel=1e-15)


@pytest.mark.parametrize(("queries", "keys", "offset"), [(4, 4, 0), (2, 6, 4), (3, 5, 0)])
def test_alibi_takes_the_slope_off_for_each_step_of_distance(queries, keys, offset):
    bias = positions.ALiBiPositions(2).bias(queries, keys, offset, torch.zeros(1, dtype=torch.float64))
    assert bias.shape == (2, queries + keys - 1)
    for i in range(queries):
        for j in range(keys):
            entry = bias[:, j - i + queries - 1].tolist()
            assert entry == [-slope * abs(j - i - offset) for slope in (2**-4, 2**-8)]


def bucket_of(distance, buckets, max_distance, *, causal):
    """Raffel et al. 2020, for one distance = key slot - query slot; 1e-6 keeps edges such as log 2 / log 16 whole."""
    first = 0
    if causal:
        reach = max(-distance, 0)
    else:
        buckets //= 2
        reach, first = abs(distance), buckets if distance > 0 else 0
    exact = buckets // 2
    if reach < exact:
        return first + reach
    far = exact + int(math.log(reach / exact) / math.log(max_distance / exact) * (buckets - exact) + 1e-6)
    return first + min(far, buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (64, 100)])
def test_buckets_follow_the_definition(causal, buckets, max_distance):
    distance = torch.arange(-300, 301)
    ours = t5_bucket(distance, c.T5Buckets(buckets=buckets, max_distance=max_distance), causal=causal).tolist()
    assert ours == [bucket_of(d, buckets, max_distance, causal=causal) for d in distance.tolist()]


def test_published_buckets():
    seen = {-9: 8, -16: 10, -64: 14, -128: 15, -1000: 15, 0: 0, 1: 17, 128: 31, 1000: 31}
    ours = t5_bucket(torch.tensor(list(seen)), c.T5Buckets(), causal=False)
    assert ours.tolist() == list(seen.values())


def test_buckets_equal_those_of_the_released_models():
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distance = torch.arange(-500, 501)
    for causal in (False, True):
        theirs = t5._relative_position_bucket(distance, not causal, 32, 128)
        assert torch.equal(t5_bucket(distance, c.T5Buckets(), causal=causal), theirs)


@pytest.mark.parametrize("causal", [False, True])
def test_t5_bias_is_the_table_at_the_bucket_of_each_distance(causal):
    scheme = positions.T5Positions(c.T5Buckets(), 2, causal=causal)
    bias = scheme.bias(3, 20, 5, torch.zeros(1))
    for entry, distance in enumerate(range(-7, 15)):
        assert torch.equal(bias[:, entry], scheme.table.weight[bucket_of(distance, 32, 128, causal=causal)])


def test_relative_bias_is_the_table_at_each_distance_and_shared_beyond_the_largest():
    scheme = positions.RelativePositions(c.Relative(max_distance=3), 2)
    bias = scheme.bias(4, 9, 5, torch.zeros(1))
    for entry, distance in enumerate(range(-8, 4)):
        assert torch.equal(bias[:, entry], scheme.table.weight[max(-3, min(3, distance)) + 3])


def test_learned_positions_skip_the_first_rows():
    scheme = positions.LearnedPositions(c.Learned(skip=2), 5, 4)
    assert scheme.table.weight.shape == (7, 4)
    assert torch.equal(scheme.vectors(torch.tensor([[0, 4]]), torch.float32), scheme.table.weight[[2, 6]][None])


# --- rotary ---


def test_angles_follow_the_formula():
    angle, factor = rotary_angles(PLACES, c.Rotary(base=500.0), 6)
    expected = [[p * 500.0 ** (-2 * i / 6) for i in range(3)] for p in PLACES[0].tolist()]
    torch.testing.assert_close(angle[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)
    assert factor == 1.0


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_turn_multiplies_each_pair_by_a_rotation_matrix(layout):
    x = draw(1, 1, PLACES.shape[1], 6)
    turned = rotation(c.Rotary(layout=layout), 6).turn(x)
    for pair in range(3):
        at = [pair, pair + 3] if layout == "half" else [2 * pair, 2 * pair + 1]
        for slot, place in enumerate(PLACES[0].tolist()):
            angle = place * 10_000 ** (-2 * pair / 6)
            matrix = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            expected = torch.tensor(matrix, dtype=torch.float64) @ x[0, 0, slot, at]
            torch.testing.assert_close(turned[0, 0, slot, at], expected, rtol=1e-11, atol=1e-11)


def test_the_layouts_are_the_same_up_to_a_permutation():
    x = draw(2, 3, PLACES.shape[1], 8)
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # the interleaved numbers, first of each pair first
    half = rotation(c.Rotary(layout="half"), 8).turn(x[..., order])
    assert torch.equal(rotation(c.Rotary(layout="interleaved"), 8).turn(x)[..., order], half)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_a_fraction_turns_the_first_numbers_and_passes_the_rest(layout):
    x = draw(2, 3, PLACES.shape[1], 10)
    config = c.ModelConfig(
        vocab=2,
        width=20,
        heads=2,
        decoder_blocks=1,
        feed_forward=c.Plain(hidden=4),
        position=c.Rotary(layout=layout, fraction=0.4),
    )
    scheme = positions.build_positions(config, causal=True)
    turned = scheme.rotation(PLACES, torch.float64).turn(x)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert torch.equal(turned[..., :4], rotation(c.Rotary(layout=layout), 4).turn(x[..., :4]))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_turns_keep_norms_and_see_only_distances(layout):
    query, key = draw(1, 1, 1, 8, seed=1), draw(1, 1, 1, 8, seed=2)

    def turned(x, place):
        return rotation(c.Rotary(layout=layout), 8, torch.tensor([[place]])).turn(x)

    products = {
        (i, j): float((turned(query, i) * turned(key, j)).sum()) for i, j in [(0, 3), (4, 7), (1000, 1003), (3, 0)]
    }
    assert float(turned(query, 1000).norm()) == pytest.approx(float(query.norm()), rel=1e-14)
    assert products[0, 3] == pytest.approx(products[4, 7], rel=1e-12)
    assert products[0, 3] == pytest.approx(products[1000, 1003], rel=1e-11)  # an angle of 1000 is rounded at 1e-13
    assert abs(products[0, 3] - products[3, 0]) > 1e-3


def test_half_precision_is_turned_in_float32():
    x = draw(1, 1, PLACES.shape[1], 8)
    low = RotaryPositions(c.Rotary(), 8).rotation(PLACES, torch.bfloat16)
    assert low.cos.dtype == torch.float32
    assert low.turn(x.bfloat16()).dtype == torch.bfloat16
    # Rounded once on the way in and once on the way out, by 2^-9 of a vector's size each time.
    exact = rotation(c.Rotary(), 8).turn(x)
    torch.testing.assert_close(
        low.turn(x.bfloat16()).double(), exact, rtol=0, atol=2 * 2**-9 * float(x.abs().max()) * 1.5
    )


# --- scaled rotary ---

WIDTHS_AND_BASES = [(64, 10_000.0), (128, 500_000.0), (80, 1_000_000.0)]
FACTORS = [2.0, 3.0, 32.0, 40.0]
scaled = pytest.mark.parametrize(("width", "base"), WIDTHS_AND_BASES)
by_factor = pytest.mark.parametrize("factor", FACTORS)


def frequencies(scaling, width, base, precision="float64"):
    """The angles of place 1."""
    scheme = c.Rotary(base=base, scaling=scaling, precision=precision)
    angle, factor = rotary_angles(torch.ones(1, 1, dtype=torch.long), scheme, width)
    return angle[0, 0], factor


def plain(width, base):
    return [base ** (-2 * i / width) for i in range(width // 2)]


def by_linear(width, base, scaling):
    return [f / scaling.factor for f in plain(width, base)]


def by_ntk(width, base, scaling):
    """bloc97 2023."""
    return plain(width, base * scaling.factor ** (width / (width - 2)))


def by_yarn(width, base, scaling):
    """Peng et al. 2023, eqs. 17-23, with whole pairs at the ends of the ramp if asked."""

    def pair(turns):
        return width * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(scaling.fast), pair(scaling.slow)
    if scaling.whole_pairs:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    result = []
    for i, f in enumerate(plain(width, base)):
        ramp = min(max((i - low) / (high - low), 0), 1)
        result.append(ramp * f / scaling.factor + (1 - ramp) * f)
    return result


def by_llama3(width, base, scaling):
    """The released code of Llama 3.1: three cases by wavelength."""
    result = []
    for f in plain(width, base):
        wavelength = 2 * math.pi / f
        if wavelength < scaling.original_context / scaling.high:
            result.append(f)
        elif wavelength > scaling.original_context / scaling.low:
            result.append(f / scaling.factor)
        else:
            smooth = (scaling.original_context / wavelength - scaling.low) / (scaling.high - scaling.low)
            result.append((1 - smooth) * f / scaling.factor + smooth * f)
    return result


# By name: our scaling by a factor, the formula, and the words in which transformers knows it.
SCALINGS = {
    "linear": (lambda factor: c.LinearScaling(factor=factor), by_linear, {"rope_type": "linear"}),
    "ntk": (lambda factor: c.NtkScaling(factor=factor), by_ntk, {"rope_type": "dynamic"}),
    "yarn": (
        lambda factor: c.YarnScaling(factor=factor, original_context=4096),
        by_yarn,
        {"rope_type": "yarn", "original_max_position_embeddings": 4096},
    ),
    "yarn with parts of pairs": (
        lambda factor: c.YarnScaling(factor=factor, original_context=2048, fast=16, slow=2, whole_pairs=False),
        by_yarn,
        {
            "rope_type": "yarn",
            "original_max_position_embeddings": 2048,
            "truncate": False,
            "beta_fast": 16,
            "beta_slow": 2,
        },
    ),
    "llama3": (
        lambda factor: c.Llama3Scaling(factor=factor, original_context=8192),
        by_llama3,
        {
            "rope_type": "llama3",
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    ),
}
every_scaling = pytest.mark.parametrize("name", SCALINGS)


@every_scaling
@scaled
@by_factor
def test_scaled_frequencies_follow_the_published_formula(name, width, base, factor):
    scaling, formula, _ = SCALINGS[name]
    ours, _ = frequencies(scaling(factor), width, base)
    expected = torch.tensor(formula(width, base, scaling(factor)), dtype=torch.float64)
    torch.testing.assert_close(ours, expected, rtol=1e-13, atol=0)


@every_scaling
@scaled
@by_factor
def test_scaled_frequencies_in_float32_are_bit_equal_to_those_of_transformers(name, width, base, factor):
    transformers = pytest.importorskip("transformers")
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    scaling, _, words = SCALINGS[name]
    context = 65_536
    config = transformers.LlamaConfig(
        hidden_size=4 * width,
        num_attention_heads=4,
        max_position_embeddings=context,
        rope_parameters={"rope_theta": base, "factor": factor, **words},
    )
    # Dynamic NTK stretches by factor x length / context - (factor - 1): ask it for a length where that is `factor`.
    length = int(context * (2 - 1 / factor))
    stretched = factor * length / context - (factor - 1) if name == "ntk" else factor
    theirs, their_factor = rope.ROPE_INIT_FUNCTIONS[words["rope_type"]](config, CPU, seq_len=length)
    ours, our_factor = frequencies(scaling(stretched), width, base, "float32")
    assert torch.equal(ours, theirs)
    assert our_factor == their_factor


def test_unscaled_turns_in_float32_are_bit_equal_to_those_of_llama():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(hidden_size=256, num_attention_heads=4, max_position_embeddings=8192)
    cos, sin = llama.LlamaRotaryEmbedding(config)(torch.zeros(1), PLACES)
    ours = RotaryPositions(c.Rotary(precision="float32"), 64).rotation(PLACES, torch.float32)
    assert torch.equal(torch.cat((ours.cos, ours.cos), -1)[:, 0], cos)
    assert torch.equal(torch.cat((ours.sin, ours.sin), -1)[:, 0], sin)


def test_yarn_sharpens_by_its_attention_factor():
    def factor(**values):
        return frequencies(c.YarnScaling(original_context=64, **values), 8, 10_000.0)[1]

    assert factor(factor=4.0) == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)
    assert factor(factor=0.5) == 1.0
    assert factor(factor=4.0, attention_factor=1.5) == 1.5
    scaled_up = rotation(c.Rotary(scaling=c.YarnScaling(factor=4.0, original_context=64, attention_factor=1.5)), 8)
    x = draw(1, 1, PLACES.shape[1], 8)
    torch.testing.assert_close(scaled_up.turn(x).norm(dim=-1), 1.5 * x.norm(dim=-1), rtol=1e-13, atol=0)


def test_positions_do_nothing_by_default():
    nothing = positions.Positions()
    assert nothing.vectors(PLACES, torch.float32) is None
    assert nothing.rotation(PLACES, torch.float32) is None
    assert nothing.bias(2, 2, 0, torch.zeros(1)) is None


def test_a_turn_by_nothing_changes_nothing():
    x = draw(2, 2, 3, 4)
    still = Rotation(torch.ones(1, 1, 3, 2, dtype=torch.float64), torch.zeros(1, 1, 3, 2, dtype=torch.float64), False)
    assert torch.equal(still.turn(x), x)
