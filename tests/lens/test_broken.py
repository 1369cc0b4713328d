"""What the recheck is for: each part of the library, broken a little, is found at the site where it is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pellucid.kernels import fused, linear, linformer, reference, relu
from pellucid.kernels.mask import Mask
from pellucid.lens.trace import relative_error, trace
from pellucid.model import config as c
from pellucid.model import feed_forward, mechanisms, positions
from pellucid.pretrained.facade import Model
from tests.lens.models import DTYPES, TOLERANCE, build, ids


@dataclass(frozen=True)
class Break:
    """A function put in place of another, and the sites that it spoils."""

    owner: Any
    name: str
    broken: Any
    spoils: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    sites: tuple[str, ...] | None = None
    stacks: str = "decoder"


def times(function: Callable[..., Tensor], factor: float = 1.001) -> Callable[..., Tensor]:
    return lambda *arguments, **options: function(*arguments, **options) * factor


def causal_times(*arguments: Any) -> Any:
    heads, state = linear_causal(*arguments)
    return heads * 1.001, state


def one_further(queries: int, keys: int, offset: int, device: torch.device) -> Tensor:
    return distances(queries, keys, offset, device) + 1


def backwards(rotation: positions.Rotation, x: Tensor) -> Tensor:
    return turn(replace(rotation, sin=-rotation.sin), x)


def larger_epsilon(module: nn.LayerNorm, x: Tensor) -> Tensor:
    return functional.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps + 1e-3)


def sees_one_more(mask: Mask, queries: int, keys: int, offset: int = 0, device: Any = None) -> Tensor | None:
    return dense(mask, queries, keys, offset + 1, device)


linear_causal, distances, turn, dense = linear.causal, positions.distances, positions.Rotation.turn, Mask.dense
LINEAR = {"attention": c.Linear(chunk=3)}
FUSED = ("*.heads",)
BREAKS = {
    "softmax": Break(reference, "softmax_weights", times(reference.softmax_weights), (".weights",)),
    "scores": Break(reference, "scores", times(reference.scores), (".scores",)),
    "mixing": Break(reference, "mix", times(reference.mix), (".heads",)),
    "sdpa": Break(fused, "sdpa", times(fused.sdpa), (".heads",), sites=FUSED),
    "linear, causal": Break(linear, "causal", causal_times, (".heads",), LINEAR, FUSED),
    "linear, whole": Break(linear, "read", times(linear.read), (".heads",), LINEAR, FUSED, "encoder"),
    "linear weights": Break(linear, "reference_weights", times(linear.reference_weights), (".weights",), LINEAR),
    "normalised relu": Break(
        reference,
        "normalized_relu_weights",
        times(reference.normalized_relu_weights),
        (".weights",),
        {"attention": c.NormalizedRelu()},
    ),
    "normalised relu, in tiles": Break(
        relu,
        "normalized_relu",
        times(relu.normalized_relu),
        (".heads",),
        {"attention": c.NormalizedRelu()},
        FUSED,
    ),
    "linformer": Break(
        mechanisms,
        "project",
        times(linformer.project),
        (".scores", ".heads"),
        {"attention": c.Linformer(rank=3), "position": c.Learned()},
        stacks="encoder",
    ),
    "epsilon of a norm": Break(
        nn.LayerNorm, "forward", larger_epsilon, ("attention.input", "feed_forward.input", "final.norm")
    ),
    "sign of a rotation": Break(positions.Rotation, "turn", backwards, (".query", ".key")),
    "bias one further": Break(positions, "distances", one_further, (".scores",), {"position": c.ALiBi()}),
    "relative bias one further": Break(
        positions, "distances", one_further, (".scores",), {"position": c.Relative(max_distance=40)}
    ),
    "mask one further": Break(Mask, "dense", sees_one_more, (".scores",)),
    "activation": Break(
        feed_forward,
        "ACTIVATIONS",
        {"gelu": times(functional.gelu)},
        ("feed_forward.active",),
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_part_is_caught_where_it_is_broken(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BREAKS[name]
    monkeypatch.setattr(case.owner, case.name, case.broken)
    model = build(case.stacks, dtype=dtype, **case.config)
    found = trace(model, *ids(model, 2, 8), sites=case.sites)
    spoilt = {step.site for step in found.steps if not step.error < 10 * TOLERANCE[dtype]}
    expected = {step.site for step in found.steps if step.site.endswith(case.spoils)}
    assert expected
    assert spoilt == expected
    assert not found.error < TOLERANCE[dtype]


def test_a_wrong_weight_of_one_cell_is_caught() -> None:
    """The largest error counts, not a mean that many right numbers could hide it in."""
    model = build()
    step = trace(model, *ids(model, 1, 8))["decoder.1.attention.weights"]
    wrong = step.full.clone()
    wrong[0, 2, 5, 3] += 1e-9
    again = step.recipe.again({name: step.recorded[name].double() for name in step.inputs})
    assert relative_error(step.full, again) < 1e-12 < relative_error(wrong, again)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_an_infinite_error(bad: float) -> None:
    model = build()
    with torch.no_grad():
        model.network.get_parameter("decoder.0.feed_forward.up.weight")[0, 0] = bad
    found = trace(model, *ids(model, 1, 4))
    assert found.error == float("inf")


def test_hidden_and_shown_must_agree() -> None:
    hidden = torch.tensor([[0.0, -torch.inf]])
    assert relative_error(hidden, hidden) == 0
    assert relative_error(hidden, torch.zeros(1, 2)) == float("inf")
    assert relative_error(torch.zeros(1, 2), hidden) == float("inf")


def test_positive_random_features_say_where_float32_loses_the_keys() -> None:
    """Features of keys far from every row vanish in float32: the heads are zeros there, and the trace says so."""
    config = {"attention": c.Linear(features=c.PositiveRandom(count=4, scale=150.0), chunk=3), "position": c.Learned()}
    double, single = build(**config), build(dtype=torch.float32, **config)
    text = ids(double, 1, 6)
    assert _heads_error(double, text) < 1e-12
    assert _heads_error(single, text) > 1e-5


def _heads_error(model: Model, text: list[Tensor]) -> float:
    return trace(model, *text, sites=("decoder.0.attention.heads",)).error
