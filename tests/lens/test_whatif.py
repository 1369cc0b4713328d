"""Each what-if does what its name says, and its trace is verified like any other."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from pellucid.errors import ConfigError, InputError
from pellucid.lens import whatif as w
from pellucid.lens.explain import explain
from pellucid.lens.whatif import Change, Comparison, what_if
from pellucid.model import config as c
from pellucid.model.presets import preset

from ..model.small import config
from .test_explain import IDS, TINY, model_of

SCORES, WEIGHTS = "decoder.0.attention.scores", "decoder.0.attention.weights"
QUERY, KEY = "decoder.0.attention.query", "decoder.0.attention.key"


def compared(change: Change, name: str = "tiny-gpt2", **options: object) -> Comparison:
    described = preset(name)
    return what_if(model_of(described), [IDS], change, [IDS[:4]] if described.is_encoder_decoder else None, **options)


def both(found: Comparison, site: str) -> tuple[Tensor, Tensor]:
    return found.original[site].full, found.changed[site].full


def test_temperature_divides_the_scores() -> None:
    before, _ = both(found := compared(w.Temperature(2.5)), SCORES)
    torch.testing.assert_close(found.changed[WEIGHTS].full, (before / 2.5).softmax(-1), rtol=0, atol=1e-14)


def test_no_scaling_leaves_the_products() -> None:
    before, after = both(compared(w.NoScaling()), SCORES)
    torch.testing.assert_close(after, before * 8**0.5, rtol=1e-13, atol=0)


def test_keys_queries_is_the_transpose() -> None:
    unmasked = model_of(preset("tiny-gpt2").model_copy(update={"causal": False}))
    before, after = both(what_if(unmasked, [IDS], w.KeysQueries()), SCORES)
    torch.testing.assert_close(after, before.transpose(-1, -2), rtol=1e-13, atol=1e-15)


def test_cosine_and_distance() -> None:
    for change in (w.Cosine(), w.NegativeSquaredDistance()):
        found = compared(change, sites=[SCORES, WEIGHTS, QUERY, KEY])
        q, k, after = (found.changed[site].full for site in (QUERY, KEY, SCORES))
        if isinstance(change, w.Cosine):
            wanted = (q / q.norm(dim=-1, keepdim=True)) @ (k / k.norm(dim=-1, keepdim=True)).mT
        else:
            wanted = -torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist").square()
        hidden = after == -torch.inf
        assert torch.equal(hidden, torch.ones_like(hidden).triu(1))
        torch.testing.assert_close(after[~hidden], (wanted * 8**-0.5)[~hidden], rtol=1e-10, atol=1e-12)


def test_normalised_relu_has_its_own_weights() -> None:
    before, _ = both(found := compared(w.NormalizedRelu()), SCORES)
    positive = before.clamp(min=0)
    wanted = positive / positive.sum(-1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(found.changed[WEIGHTS].full, wanted, rtol=1e-13, atol=1e-15)


def test_mask_off_lets_the_future_in_and_on_keeps_it_out() -> None:
    before, after = both(compared(w.MaskOff()), WEIGHTS)
    future = torch.ones(len(IDS), len(IDS), dtype=torch.bool).triu(1)
    assert before[..., future].eq(0).all()
    assert after[..., future].gt(0).all()
    found = compared(w.MaskOn(), "tiny-bert")
    assert found.original["encoder.0.attention.weights"].full[..., future].gt(0).all()
    assert found.changed[WEIGHTS].full[..., future].eq(0).all()


def test_without_positions_two_equal_tokens_are_alike() -> None:
    bert = model_of(preset("tiny-bert"))
    found = what_if(bert, [IDS], w.PositionsOff())
    before, after = both(found, "encoder.1.residual.out")  # tokens 1 and 3 are the same word
    torch.testing.assert_close(after[0, 1], after[0, 3], rtol=1e-12, atol=1e-14)
    assert (before[0, 1] - before[0, 3]).abs().max() > 1e-3


def test_norms_move_or_vanish() -> None:
    found = compared(w.Norm("identity"), sites=["decoder.0.attention.input", "embedding.sum", "final.norm", "*.out"])
    assert torch.equal(*(found.changed[site].full for site in ("decoder.0.attention.input", "embedding.sum")))
    model = model_of(preset("tiny-gpt2"))
    moved = w.changed_model(model, w.Norm("post"))
    block, own = moved.network.decoder.blocks[0], model.network.decoder.blocks[0]
    assert torch.equal(block.after_attention.weight, own.before_attention.weight)
    assert isinstance(block.before_attention, torch.nn.Identity)
    back = w.changed_model(moved, w.Norm("pre")).network
    ids = torch.tensor([IDS])
    assert torch.equal(back(ids), model.network(ids))


CHANGES = [
    w.Temperature(0.5),
    w.NoScaling(),
    w.KeysQueries(),
    w.Cosine(),
    w.NegativeSquaredDistance(),
    w.NormalizedRelu(),
    w.MaskOff(),
    w.MaskOn(),
    w.PositionsOff(),
    w.Norm("identity"),
    w.Norm("pre"),
    w.Norm("post"),
]
REFUSED = (InputError, ConfigError)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_change_of_every_preset_is_verified_or_refused(change: Change, name: str) -> None:
    try:
        found = compared(change, name)
    except REFUSED:
        if isinstance(change, w.MaskOff | w.MaskOn | w.Norm | w.NoScaling):
            return
        raise
    assert found.original.error < 1e-12
    assert found.changed.error < 1e-12
    assert found.largest_change > 0
    json.dumps(found.to_json(), allow_nan=False)


def test_the_original_is_left_alone() -> None:
    model = model_of(preset("tiny-llama"))
    ids = torch.tensor([IDS])
    before = model.network(ids)
    for change in (w.Cosine(), w.KeysQueries(), w.NegativeSquaredDistance()):
        what_if(model, [IDS], change)
    assert torch.equal(model.network(ids), before)


def test_cross_attention_and_the_encoder_keep_their_scores() -> None:
    found = compared(w.Cosine(), "tiny-original", sites=["*.scores"])
    for site in ("encoder.0.attention.scores", "encoder.1.attention.scores"):
        assert torch.equal(*both(found, site))
    assert found.changed.error < 1e-12  # cross-attention is checked as the plain product


def test_predictions_stand_side_by_side() -> None:
    found = compared(w.Temperature(3.0))
    last = [found.original["probabilities"].full[0, -1], found.changed["probabilities"].full[0, -1]]
    for token, before, after in found.predictions:
        assert (before, after) == (float(last[0][int(token)]), float(last[1][int(token)]))
    assert {token for token, _ in found.original.prediction} <= {token for token, _, _ in found.predictions}
    assert found.largest_change == pytest.approx(
        float((found.original["probabilities"].full - found.changed["probabilities"].full).abs().max())
    )


def test_a_changed_config_can_be_explained() -> None:
    found = compared(w.NormalizedRelu())
    assert explain(found.changed, f"{WEIGHTS}[0,3,1]", found.model).error < 1e-10


def test_a_changed_score_is_not_explained_as_a_dot_product() -> None:
    found = compared(w.Cosine())
    with pytest.raises(InputError, match="what-if"):
        explain(found.changed, f"{SCORES}[0,3,1]", found.model)


@pytest.mark.parametrize(
    ("change", "described", "message"),
    [
        (w.Temperature(0.0), config(), "larger than 0"),
        (w.Temperature(2.0), config(attention=c.Linear()), "needs softmax attention, but this model's is linear"),
        (w.Cosine(), config(attention=c.Linear()), "no score per query and key"),
        (w.NoScaling(), config(attention=c.Softmax(scale=1.0)), "not scaled"),
        (w.MaskOn(), config(), "already"),
        (w.MaskOff(), config("encoder"), "no causal mask"),
        (w.PositionsOff(), config(position=c.NoPositions()), "no positions"),
        (w.Norm("pre"), config(norm=c.Identity()), "no norms"),
        (w.Norm("pre"), config(), "already"),
    ],
)
def test_refused_with_the_reason(change: Change, described: c.ModelConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        what_if(model_of(described), [IDS], change)
