"""Every kind of cell, written out, gives the traced number again."""

from __future__ import annotations

import json
import random

import pytest
import torch

from pellucid.errors import InputError
from pellucid.lens.explain import Explanation, explain
from pellucid.lens.trace import Trace, trace
from pellucid.model import config as c
from pellucid.model.presets import PRESETS, preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model

from ..model.small import MECHANISMS, config

TINY = [name for name in PRESETS if name.startswith("tiny")]
IDS = [3, 1, 4, 1, 5, 9]


def model_of(described: c.ModelConfig, seed: int = 0) -> Model:
    network = Transformer(described, kernel="reference", seed=seed).double().eval()
    with torch.no_grad():  # norms and biases start at 1 and 0, which would hide a forgotten one
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
    return Model(described, network)


def traced(model: Model) -> Trace:
    return trace(model, [IDS], [IDS[:4]] if model.config.is_encoder_decoder else None)


def assert_all_sites_agree(model: Model) -> None:
    found, choose = traced(model), random.Random(1)
    for step in found.steps:
        for _ in range(4):
            at = tuple(choose.randrange(size) for size in step.full.shape)
            cell = f"{step.site}[{','.join(map(str, at))}]"
            explained = explain(found, cell, model)
            assert explained.value == float(step.full[at])
            assert explained.error < 1e-10, (cell, explained)
            assert explained.lines
            assert tuple(explained.index) == step.axes
            json.dumps(explained.to_json(), allow_nan=False)


@pytest.mark.parametrize("name", TINY)
def test_every_site_of_every_tiny_preset(name: str) -> None:
    assert_all_sites_agree(model_of(preset(name)))


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism(name: str) -> None:
    linformer = name.startswith("linformer")
    position = c.Sinusoidal() if linformer else c.Rotary(fraction=0.5, layout="interleaved")
    described = config("encoder" if linformer else "decoder", attention=MECHANISMS[name], position=position)
    assert_all_sites_agree(model_of(described))


@pytest.mark.parametrize(
    "changes",
    [
        {"position": c.Relative(max_distance=2), "window": 3},
        {"query_key_norm": True, "position": c.Rotary(layout="half")},
        {"head": c.Tag(labels=5)},
        {"head": c.Classify(labels=5)},
        {"head": c.Pool(normalize=True)},
        {"head": c.Unembed(tied=False, bias=True, scale=0.5, transform="gelu")},
    ],
)
def test_other_parts(changes: dict[str, object]) -> None:
    assert_all_sites_agree(model_of(config("decoder", **changes)))


def test_linear_across_two_texts() -> None:
    assert_all_sites_agree(model_of(config("both", attention=c.Linear(), position=c.Sinusoidal())))


def test_float32_agrees_within_the_error_of_the_step() -> None:
    model = model_of(preset("tiny-gpt2"))
    model.network.float()
    found = traced(model)
    step = found["decoder.1.attention.scores"]
    explained = explain(found, "decoder.1.attention.scores[2,4,1]", model)
    visible = step.full[step.full.isfinite()]
    assert abs(explained.result - explained.value) <= step.error * float(visible.abs().max()) * (1 + 1e-9)


def score(at: str, model: Model | None = None) -> Explanation:
    model = model or model_of(preset("tiny-gpt2"))
    return explain(traced(model), f"decoder.0.attention.scores[{at}]", model)


def test_a_score_is_written_out_with_its_tokens() -> None:
    explained = score("1,2,0")
    products, (name, scale) = explained.terms[:-1], explained.terms[-1]
    assert explained.index == {"batch": 0, "heads": 1, "query": 2, "key": 0}
    assert name == "x scale"
    assert scale == 8**-0.5
    assert products[0][0] == "q[4 (2), 0] k[3 (0), 0]"
    assert sum(value for _, value in products) * scale == pytest.approx(explained.value, rel=1e-12)


def test_a_hidden_score_says_why() -> None:
    explained = score("0,1,4")
    assert explained.result == explained.value == float("-inf")
    assert "future" in explained.lines[-1]
    assert explained.to_json()["value"] is None
    windowed = model_of(config("decoder", window=2))
    assert "window of 2" in score("0,4,1", windowed).lines[-1]


def test_a_padded_key_says_so() -> None:
    model = model_of(config("encoder"))
    padding = torch.tensor([[True] * 4, [True, True, False, False]])
    found = _traced_with_padding(model, padding)
    explained = explain(found, "encoder.0.attention.scores[1,0,0,3]", model)
    assert explained.result == float("-inf")
    assert "padding" in explained.lines[-1]
    weight = explain(found, "encoder.0.attention.weights[1,0,0,3]", model)
    assert weight.result == 0
    assert "padding" in weight.lines[-1]


def _traced_with_padding(model: Model, padding: torch.Tensor) -> Trace:
    """As a batch of two texts of different lengths gives it."""

    class Letters:
        files, size = (), 13

        def encode(self, text: str) -> list[int]:
            return [ord(letter) - ord("a") for letter in text]

        def decode(self, ids: list[int]) -> str:
            return "".join(map(self.token, ids))

        def token(self, token_id: int) -> str:
            return chr(token_id + ord("a"))

    named = Model(model.config, model.network, Letters())
    return trace(named, ["a" * int(row.sum()) for row in padding])


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-original", "tiny-bert"])
def test_a_site_that_was_traced_alone(name: str) -> None:
    model = model_of(preset(name))
    for site in [step.site for step in traced(model).steps]:
        alone = trace(model, [IDS], [IDS[:4]] if model.config.is_encoder_decoder else None, sites=[site])
        at = ",".join("0" * alone[site].full.dim())
        assert explain(alone, f"{site}[{at}]", model).error < 1e-10


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": c.Linear()},
        {"attention": c.Linformer(rank=4), "position": c.Learned()},
        {"head": c.Classify(labels=3, pooling="mean")},
    ],
)
@pytest.mark.parametrize("left", [False, True])
def test_padding_is_explained_or_refused_but_never_wrong(changes: dict[str, object], left: bool) -> None:
    model = model_of(config("encoder", **changes))
    real = [False] * 2 + [True] * 4 if left else [True] * 4 + [False] * 2
    found, choose = trace(model, [IDS, IDS], padding=[[True] * 6, real]), random.Random(2)
    refused = 0
    for step in found.steps:
        for _ in range(6):
            at = (min(1, step.full.shape[0] - 1), *(choose.randrange(size) for size in step.full.shape[1:]))
            try:
                explained = explain(found, f"{step.site}[{','.join(map(str, at))}]", model)
            except InputError as error:
                refused += 1
                if "padding" not in str(error):
                    raise
            else:
                gap = abs(explained.result - explained.value) if explained.result != explained.value else 0
                assert gap <= 1e-4 * float(step.full[step.full.isfinite()].abs().max())
    assert refused < len(found.steps) * 3


def test_a_broken_step_shows_its_error() -> None:
    model = model_of(preset("tiny-gpt2"))
    hook = model.network.decoder.blocks[0].attention.scores.register_forward_hook(lambda m, i, value: value + 1)
    found = traced(model)
    hook.remove()
    assert found["decoder.0.attention.scores"].error > 1e-2
    assert explain(found, "decoder.0.attention.scores[0,3,1]", model).error > 1e-2


def test_long_sums_keep_the_largest_terms() -> None:
    model = model_of(preset("tiny-gpt2"))
    explained = explain(traced(model), "logits[0,7]", model)
    labels = [label for label, _ in explained.terms]
    assert len(labels) == 9
    assert labels[-1] == "24 more"
    assert sum(value for _, value in explained.terms) == pytest.approx(explained.value, rel=1e-12)
    assert any(line.startswith("and 24 more adding up to") for line in explained.lines)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("decoder.0.attention.scores[4,0,0]", "4 is out of range on the axis heads, which has 4"),
        ("decoder.0.attention.scores[0,0,-1]", "-1 is out of range on the axis key, which has 6"),
        ("decoder.0.attention.scores[0,0]", "2 indices, but .* axes batch 1, heads 4, query 6, key 6"),
        ("decoder.0.attention.score[0,0,0]", "nearest are decoder.0.attention.scores"),
        ("decoder.0.attention.scores", "a cell is a site and an index"),
    ],
)
def test_cells_that_are_not_there(cell: str, message: str) -> None:
    model = model_of(preset("tiny-gpt2"))
    with pytest.raises(InputError, match=message):
        explain(traced(model), cell, model)


def test_heads_of_a_kernel_without_weights() -> None:
    model = model_of(preset("tiny-gpt2"))
    fused = Model(model.config, model.network.with_kernel("fused"))
    found = trace(fused, [IDS], sites=["decoder.0.attention.heads"])
    with pytest.raises(InputError, match=r"together with decoder\.0\.attention\.weights"):
        explain(found, "decoder.0.attention.heads[0,0,0]", fused)
