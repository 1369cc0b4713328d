"""Every parameter of two models: sizes and ranks of what differs, and adapters as factors."""

from __future__ import annotations

import copy

import pytest
import torch

from pellucid import lora
from pellucid.errors import InputError
from pellucid.lora import Lora
from pellucid.pretrained.facade import Model
from pellucid.spectra.parameters import ParameterChange, noise_like, odd_shape, parameter_change, parameter_changes
from tests.web.serving import random_model, tuned

QUERY = "decoder.1.attention.to_query.weight"


def by_name(first: Model, second: Model, widest: int = 1024) -> dict[str, ParameterChange]:
    return {one.name: one for one in parameter_changes(first, second, widest=widest)}


def test_an_adapter_changes_its_maps_by_its_rank_and_nothing_else() -> None:
    base, model = random_model(), tuned()
    found = by_name(base, model)
    assert list(found) == list(base.network.state_dict())
    differ = {name for name, one in found.items() if one.difference > 0}
    assert differ == {f"decoder.{k}.attention.to_{name}.weight" for k in range(3) for name in ("query", "value")}
    for name in differ:
        change = found[name].change
        assert change is not None
        assert (change.factored, change.spectrum.ranks.numerical) == (True, 2)
    assert {one.relative for name, one in found.items() if name not in differ} == {0.0}
    old, new = (one.network.plain().get_parameter(QUERY).detach().double() for one in (base, model))
    assert found[QUERY].relative == pytest.approx(float((new - old).norm() / old.norm()), rel=1e-12)


def test_either_may_come_first_and_both_may_have_adapters() -> None:
    base, model, other = random_model(), tuned(), tuned()
    back = parameter_change(model, base, QUERY)
    assert back.change is not None
    assert (back.change.factored, back.change.spectrum.ranks.numerical) == (True, 2)
    with torch.no_grad():
        other.network.get_submodule("decoder.1.attention.to_query").change.of("default").up.mul_(-1)
    two = parameter_change(model, other, QUERY)
    assert two.change is not None
    # B1 A - B0 A with B1 = -B0: twice the change, of the same rank though it has four columns of factors.
    assert (two.change.factored, two.change.spectrum.ranks.numerical) == (True, 2)
    ours, theirs = (one.network.plain().get_parameter(QUERY).detach().double() for one in (model, other))
    wanted = torch.linalg.svdvals(theirs - ours)
    # The plain weights were rounded to float32 once more than the factors.
    assert two.change.spectrum.singular_values[:2] == pytest.approx(wanted[:2].tolist(), rel=1e-5)


def test_merged_weights_are_subtracted() -> None:
    base, model = random_model(), tuned()
    lora.merge(model, keep=False)
    found = parameter_change(base, model, QUERY)
    assert found.change is not None
    assert (found.change.factored, found.change.spectrum.ranks.numerical) == (False, 2)


def test_tables_and_vectors() -> None:
    base, model = random_model(), random_model()
    with torch.no_grad():
        model.network.tokens.weight[3] += 1
        model.network.get_parameter("decoder.0.attention.to_query.bias").add_(1)
    found = by_name(base, model)
    table = found["tokens.weight"].change
    assert table is not None
    assert table.spectrum.ranks.numerical == 1
    bias = found["decoder.0.attention.to_query.bias"]
    assert bias.change is None
    assert (bias.size, bias.relative) == (0.0, None)
    assert bias.difference == pytest.approx(32**0.5)


def test_wide_matrices_are_ranked_when_asked_for_alone() -> None:
    base, model = random_model(), tuned()
    assert by_name(base, model, widest=31)[QUERY].change is None
    assert parameter_change(base, model, QUERY).change is not None
    with pytest.raises(InputError, match="nothing"):
        parameter_change(base, model, "nothing")


def test_progress_goes_through_all() -> None:
    seen: list[int] = []
    parameter_changes(random_model(), tuned(), widest=0, progress=lambda done, total, name: seen.append(total - done))
    assert seen == list(range(51, 0, -1))


def test_noise_has_the_same_size_and_is_full() -> None:
    found = parameter_change(random_model(), tuned(), QUERY)
    assert found.change is not None
    noise = noise_like(found.change, found.size)
    assert noise.relative == pytest.approx(found.change.relative, rel=1e-12)
    assert noise.spectrum.ranks.numerical == 32
    assert noise.spectrum.ranks.at(0.9) > 10


def test_the_first_odd_shape_is_named() -> None:
    base = random_model()
    assert odd_shape(base, copy.deepcopy(base)) is None
    assert odd_shape(base, tuned()) is None
    odd = odd_shape(base, random_model(decoder_blocks=4))
    assert odd is not None
    assert (odd.name, odd.first) == ("decoder.3.attention.to_key.bias", None)
    wide = odd_shape(base, random_model(vocab=30))
    assert wide is not None
    assert (wide.name, wide.first, wide.second) == ("tokens.weight", (24, 32), (30, 32))
    with pytest.raises(InputError):
        parameter_change(base, random_model(vocab=30), "tokens.weight")


def test_an_unused_adapter_changes_nothing() -> None:
    base, model = random_model(), random_model()
    lora.add(model, Lora(rank=2), seed=0)
    assert {one.difference for one in parameter_changes(base, model, widest=1024)} == {0.0}
