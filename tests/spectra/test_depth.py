"""Ranks through depth: of the values that the sites hold, in every family; and inequalities that are true of them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.lens.trace import record
from pellucid.model import config as c
from pellucid.model.presets import PRESETS, preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.spectra.depth import DepthRanks, rank_through_depth
from pellucid.spectra.rank import distance_to_mean_row, numerical_rank, ranks, singular_values
from tests.lens.models import with_words

TINY = [name for name in PRESETS if name.startswith("tiny-")]
MECHANISMS: list[c.Softmax | c.NormalizedRelu | c.Linformer | c.Linear] = [
    c.NormalizedRelu(),
    c.Linear(),
    c.Linformer(rank=5),
]


def build(config: c.ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    return Model(config, Transformer(config, seed=seed).to(dtype).eval())


def texts(model: Model, length: int = 14) -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    given = [torch.randint(96, (1, length), generator=draw), torch.randint(96, (1, length - 5), generator=draw)]
    return given[: 2 if model.config.is_encoder_decoder else 1]


def check_inequalities(found: DepthRanks) -> None:
    wrong = [each for each in found.bounds if not each.bound.holds or not each.bound.consistent]
    assert not wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TINY)
def test_every_family(name: str, dtype: torch.dtype) -> None:
    model = build(preset(name), dtype=dtype)
    given = texts(model)
    found = rank_through_depth(model, *given, baseline_seed=None)
    check_inequalities(found)
    names = {site.site for site in found.sites}
    with torch.no_grad(), record(model.network, names) as values:
        model.network(*given)
    for site in found.sites:
        # The other kernel rounds otherwise, which the last singular values show.
        again = ranks(values[site.site][0])
        assert site.ranks.stable == pytest.approx(again.stable, rel=1e-4)
        assert site.ranks.distance_to_rank_one == pytest.approx(again.distance_to_rank_one, rel=1e-4)
        assert site.distance_to_mean_row == pytest.approx(distance_to_mean_row(values[site.site][0]), rel=1e-4)
    blocks, config = model.config.encoder_blocks + model.config.decoder_blocks, model.config
    crosses = config.decoder_blocks if config.is_encoder_decoder else 0
    sums = [each for each in found.bounds if each.bound.law == "sum"]
    assert len(sums) == 2 * blocks + crosses
    assert len(found.bounds) - len(sums) == 2 * config.heads * (blocks + crosses)
    assert {name for name in names if ".output" in name} == {
        name for name in names if name.endswith(("attention.output", "cross.output", "feed_forward.output"))
    }
    assert found.tokens == given[-1].shape[1]


def test_the_inequalities_are_about_the_model_s_own_matrices() -> None:
    """Grouped heads, rotated queries and keys, a sum before the norm that follows it."""
    model = build(preset("tiny-llama"))
    (ids,) = texts(model)
    found = {(each.site, each.head): each.bound for each in rank_through_depth(model, ids).bounds}
    parts = {f"decoder.1.attention.{part}" for part in ("query", "key", "value", "weights", "heads", "scores")}
    network = model.network.with_kernel("reference")
    with torch.no_grad(), record(network, parts) as values:
        network(ids)
    query, weights = (values[f"decoder.1.attention.{part}"][0] for part in ("query", "weights"))
    key, value = (values[f"decoder.1.attention.{part}"][0].repeat_interleave(2, 0) for part in ("key", "value"))
    for head in range(4):
        for bound, left, right, whole in (
            (found["decoder.1.attention.scores", head], query[head], key[head], query[head] @ key[head].T),
            (found["decoder.1.attention.heads", head], weights[head], value[head], weights[head] @ value[head]),
        ):
            assert (bound.left, bound.right) == (ranks(left).numerical, ranks(right).numerical)
            assert bound.measured == ranks(whole).numerical
        assert found["decoder.1.attention.scores", head].inner == 8
        assert found["decoder.1.attention.heads", head].inner == 14


def test_heads_read_the_keys_and_values_of_their_group() -> None:
    model = build(preset("tiny-llama"))
    assert model.network.decoder is not None
    attention = model.network.decoder.blocks[0].attention
    with torch.no_grad():
        attention.to_value.weight[1:8] = 0
        attention.to_key.weight[8:] = 0
    found = [each for each in rank_through_depth(model, *texts(model)).bounds if each.site.startswith("decoder.0.att")]
    assert [each.bound.right for each in found if each.formula == "A V"] == [1, 1, 8, 8]
    assert [each.bound.right for each in found if each.formula == "Q K'"] == [8, 8, 0, 0]


def test_post_norm_sums_are_before_the_norm() -> None:
    """With more tokens than width, the norm's zero means take one from the rank of the stream."""
    model = build(preset("tiny-bert"))
    (ids,) = texts(model, 40)
    found = next(each.bound for each in rank_through_depth(model, ids).bounds if each.site == "encoder.0.residual.mid")
    with torch.no_grad(), record(model.network, {"embedding.norm", "encoder.0.attention.output"}) as values:
        model.network(ids)
    stream, change = values["embedding.norm"][0], values["encoder.0.attention.output"][0]
    total = stream.double() + change.double()
    assert found.left == ranks(stream).numerical == 31
    assert found.right == ranks(change).numerical
    assert found.measured == numerical_rank(singular_values(total), (40, 32), torch.float32)


@pytest.mark.parametrize("attention", MECHANISMS, ids=lambda each: each.kind)
def test_every_mechanism(attention: c.Linformer) -> None:
    changes = {"attention": attention, "causal": False, "position": c.Sinusoidal(), "context": 64}
    model = build(preset("tiny-gpt2").model_copy(update=changes))
    found = rank_through_depth(model, *texts(model), baseline_seed=None)
    check_inequalities(found)
    formulas = {each.formula for each in found.bounds}
    assert ("Q K'" in formulas) == (attention.kind != "linear")
    inner = {each.bound.inner for each in found.bounds if each.formula == "A V"}
    mixed = attention.kind == "linformer"
    assert inner == {5 if mixed else 14}
    assert {each.bound.right for each in found.bounds if each.bound.law == "product"} == {5 if mixed else 8}


def test_a_text_of_one_repeated_token_without_positions_is_rank_one() -> None:
    model = build(preset("tiny-gpt2").model_copy(update={"position": c.NoPositions(), "norm": c.RMSNorm()}))
    found = rank_through_depth(model, [7] * 10)
    assert {site.ranks.numerical for site in found.sites} == {1}
    assert max(site.distance_to_mean_row for site in found.sites) < 1e-6
    assert max(site.ranks.distance_to_rank_one for site in found.sites) < 1e-6
    assert found["embedding.sum"].ranks.at(0.9) == 1
    check_inequalities(found)


def test_one_token() -> None:
    model = build(preset("tiny-bloom"))
    found = rank_through_depth(model, [4])
    assert {site.ranks.numerical for site in found.sites} == {1}
    check_inequalities(found)


def test_without_heads_the_model_keeps_its_kernel() -> None:
    model = build(preset("tiny-gpt2"))
    (ids,) = texts(model)
    lean, full = rank_through_depth(model, ids, heads=False), rank_through_depth(model, ids)
    assert {each.bound.law for each in lean.bounds} == {"sum"}
    assert [site.site for site in lean.sites] == [site.site for site in full.sites]
    assert not any(module._forward_hooks for module in model.network.modules())


def test_baseline_is_the_same_text_on_random_weights() -> None:
    model = build(preset("tiny-t5"), seed=1)
    found = rank_through_depth(model, *texts(model), baseline_seed=2)
    other = rank_through_depth(build(preset("tiny-t5"), seed=2), *texts(model), baseline_seed=None)
    assert found.baseline is not None
    assert (found.baseline.sites, found.baseline.bounds) == (other.sites, other.bounds)
    assert found.baseline.sites != found.sites


def test_texts_and_json() -> None:
    model = with_words(build(preset("tiny-gpt2")))
    found = rank_through_depth(model, "a b c d", tau=(0.5,))
    assert found.sites == rank_through_depth(model, [0, 1, 2, 3], tau=(0.5,)).sites
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (plain["tokens"], plain["tau"]) == (4, [0.5])
    assert plain["sites"][0]["site"] == "embedding.sum"
    assert list(plain["sites"][0]["effective_rank"]) == ["0.5"]
    assert plain["bounds"][0]["formula"] == "Q K'"
    assert len(plain["baseline"]["bounds"]) == len(plain["bounds"])


def test_the_worked_example_of_note_000() -> None:
    """Q = H and K = H / 2 with H of rank 2, so the scores have rank 2 although Sylvester only says 1."""
    found = rank_through_depth(load("worked-example"), [0, 1], baseline_seed=None)
    scores = next(each.bound for each in found.bounds if each.formula == "Q K'")
    assert (scores.left, scores.right, scores.inner, scores.low, scores.measured, scores.high) == (2, 2, 3, 1, 2, 2)
    check_inequalities(found)


# --- what is refused ---


def test_a_text_is_needed_and_one_only() -> None:
    model = build(preset("tiny-gpt2"))
    with pytest.raises(InputError, match="one text is measured at a time, but 2 came"):
        rank_through_depth(model, torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match="empty"):
        rank_through_depth(model, [])
    with pytest.raises(InputError, match="without a tokenizer"):
        rank_through_depth(model, "words")
    with pytest.raises(InputError, match="empty"):
        rank_through_depth(with_words(model), "")
    with pytest.raises(InputError, match="give both"):
        rank_through_depth(build(preset("tiny-t5")), [1, 2])
    with pytest.raises(InputError, match="strictly between"):
        rank_through_depth(model, [1, 2], tau=(1.0,))


def test_a_site_that_was_not_measured_is_refused() -> None:
    found = rank_through_depth(build(preset("tiny-gpt2")), [1, 2], heads=False)
    with pytest.raises(InputError, match=r"embedding\.sum"):
        found["decoder.0.attention.query"]


def test_dropout_is_refused() -> None:
    config = preset("tiny-gpt2").model_copy(update={"dropout": 0.1})
    with pytest.raises(InputError, match=r"network\.eval"):
        rank_through_depth(Model(config, Transformer(config, seed=0).train()), [1, 2])


def test_numbers_that_are_not_finite_are_named_by_their_site() -> None:
    model = build(preset("tiny-gpt2"))
    assert model.network.decoder is not None
    with torch.no_grad():
        model.network.decoder.blocks[1].feed_forward.down.weight[0, 0] = math.nan
    with pytest.raises(InputError, match=r"decoder\.1\.feed_forward\.output"):
        rank_through_depth(model, [1, 2, 3])
    assert not any(module._forward_hooks for module in model.network.modules())


def test_arithmetic_too_coarse_for_a_rank_is_refused() -> None:
    model = build(preset("tiny-gpt2").model_copy(update={"width": 128}), dtype=torch.bfloat16)
    with pytest.raises(InputError, match="has no numerical rank"):
        rank_through_depth(model, [1, 2, 3])
