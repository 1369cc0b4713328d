import pytest
import torch

from pellucid.kernels import fused, reference
from pellucid.kernels.linformer import project
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from tests.kernels.cases import BATCH, CPU, SCALE, assert_same, draw, outcome, padding, problem

GROUPS, KEYS, WIDTH, RANK = 2, 6, 3, 4


@pytest.mark.parametrize("texts", [1, BATCH])
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_project_mixes_the_slots_that_are_not_padding(texts, side):
    """One mixture for all texts, or one for each."""
    mixture, x = draw(texts, RANK, KEYS, seed=1), draw(BATCH, GROUPS, KEYS, WIDTH, seed=2)
    real = torch.ones(BATCH, KEYS, dtype=torch.bool) if side is None else padding(KEYS, left=side == "left")
    mixed = project(mixture, x, None if side is None else real)
    assert mixed.shape == (BATCH, GROUPS, RANK, WIDTH)
    for text in range(BATCH):
        for group in range(GROUPS):
            for row in range(RANK):
                weights = mixture[text % texts, row]
                expected = sum(weights[j] * x[text, group, j] for j in range(KEYS) if real[text, j])
                torch.testing.assert_close(mixed[text, group, row], expected, rtol=1e-13, atol=1e-13)


def test_what_stands_in_padding_changes_nothing():
    mixture, x = draw(1, RANK, KEYS), draw(BATCH, GROUPS, KEYS, WIDTH)
    real = padding(KEYS, left=False)
    other = x.masked_fill(~real[:, None, :, None], 7.0)
    assert torch.equal(project(mixture, x, real), project(mixture, other, real))


def test_an_identity_mixture_of_full_rank_is_softmax_attention():
    def attend(query, key, value, *, scale, view):
        mixture = torch.eye(view.keys, dtype=torch.float64)[None]
        mixed = project(mixture, key, None), project(mixture, value, None)
        return fused.sdpa(query, *mixed, scale=scale, view=View(view.queries, view.keys, CPU))

    case = problem()
    assert_same(outcome(attend, case), outcome(reference.softmax, case))


def test_a_mixture_is_a_mean_of_keys_and_values_if_its_rows_are():
    """With one mixture, every query gets the mean value, whatever it asks."""
    case = problem()
    mean = torch.full((1, 1, 7), 1 / 7, dtype=torch.float64)
    mixed = project(mean, case.key, None), project(mean, case.value, None)
    heads = reference.softmax(case.query, *mixed, scale=SCALE, view=View(7, 1, CPU))
    expected = reference.share(case.value.mean(2, keepdim=True), 4).expand_as(heads)
    torch.testing.assert_close(heads, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_a_network_with_identity_mixtures_is_the_softmax_network(kernel):
    length = 5
    shape = {"vocab": 11, "width": 8, "heads": 2, "encoder_blocks": 2, "feed_forward": c.Plain(hidden=16)}
    softmax = Transformer(c.ModelConfig(**shape), kernel=kernel, seed=0).double()
    config = c.ModelConfig(**shape, context=length, attention=c.Linformer(rank=length))
    linformer = Transformer(config, kernel=kernel, seed=1).double()
    missing = linformer.load_state_dict(softmax.state_dict(), strict=False).missing_keys
    with torch.no_grad():
        for name in missing:
            linformer.get_parameter(name).copy_(torch.eye(length))
    ids = torch.arange(BATCH * length).reshape(BATCH, length) % 11
    torch.testing.assert_close(linformer(ids), softmax(ids), rtol=1e-12, atol=1e-12)
