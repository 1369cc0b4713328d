"""Edits reach the output, and only where they should; the logit lens ends in the model's own answer."""

from __future__ import annotations

import json

import pytest
import torch

from pellucid.errors import InputError
from pellucid.lens.edit import Edit, Patch, Replace, Zero, edit, logit_lens
from pellucid.lens.trace import trace
from pellucid.model import config as c
from pellucid.model.presets import preset
from pellucid.model.sites import sites
from pellucid.pretrained.facade import Model

from ..model.small import config
from .test_explain import IDS, TINY, model_of

OTHER = [7, 2, 8, 2, 8, 1]


def gpt2(kernel: str = "reference") -> Model:
    model = model_of(preset("tiny-gpt2"))
    return Model(model.config, model.network.with_kernel(kernel))


def target_of(model: Model) -> list[list[int]] | None:
    return [IDS[:4]] if model.config.is_encoder_decoder else None


@pytest.mark.parametrize("name", TINY)
def test_a_value_replaced_by_itself_changes_nothing(name: str) -> None:
    model = model_of(preset(name))
    found = trace(model, [IDS], target_of(model))
    for step in found.steps:
        same = edit(model, [IDS], {step.site: Replace(step.full)}, target_of(model))
        assert torch.equal(same.before, same.after), step.site
        assert same.largest_change == 0
        patched = edit(model, [IDS], {step.site: Patch(found)}, target_of(model))
        assert torch.equal(patched.before, patched.after), step.site


@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_without_heads_and_feed_forward_a_block_adds_only_its_biases(kernel: str) -> None:
    model = gpt2(kernel)
    names = list(sites(model.network))
    edits: dict[str, Edit] = {name: Zero() for name in names if name.endswith((".heads", "feed_forward.active"))}
    after = edit(model, [IDS], edits).after
    network = model.network
    stream = trace(model, [IDS], sites=["embedding.sum"])["embedding.sum"].full
    for block in network.decoder.blocks:
        stream = stream + block.attention.to_output.bias + block.feed_forward.down.bias
    with torch.no_grad():
        wanted = network.head(network.final(stream), network.tokens.weight, None).softmax(-1)
    torch.testing.assert_close(after, wanted, rtol=1e-12, atol=1e-15)


def test_patching_the_last_residual_transfers_the_prediction() -> None:
    model = gpt2("fused")
    other = model.network.predict(torch.tensor([OTHER]))
    site = "decoder.1.residual.out"
    assert torch.equal(edit(model, [IDS], {site: Patch([OTHER])}).after, other)
    last = edit(model, [IDS], {site: Patch([OTHER], (slice(None), -1))})
    assert torch.equal(last.after[:, :-1], last.before[:, :-1])
    torch.testing.assert_close(last.after[:, -1], other[:, -1], rtol=1e-12, atol=0)
    token, before, after = max(last.predictions, key=lambda entry: entry[2])
    assert int(token) == int(other[0, -1].argmax())
    assert after != before


def test_an_index_changes_one_place() -> None:
    found = edit(gpt2(), [IDS], {"embedding.sum": Zero((0, 3))})
    assert torch.equal(found.after[0, :3], found.before[0, :3])
    assert not torch.equal(found.after[0, 3:], found.before[0, 3:])


def test_weights_can_be_edited_on_any_kernel() -> None:
    model = gpt2("fused")
    found = edit(model, [IDS], {"decoder.0.attention.weights": Replace(1.0, (0, 2, -1, 0))})
    assert found.largest_change > 0
    assert model.network.kernel == "fused"


def test_hooks_are_gone_afterwards() -> None:
    model, ids = gpt2(), torch.tensor([IDS])
    before = model.network(ids)
    edit(model, [IDS], {"decoder.0.residual.out": Zero()})
    with pytest.raises(InputError):
        edit(model, [IDS], {"decoder.0.residual.out": Replace(torch.zeros(3))})
    assert torch.equal(model.network(ids), before)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"decoder.0.residual.ouch": Zero()}, "nearest are decoder.0.residual.out"),
        ({"embedding.sum": Replace([1.0, 2.0])}, r"shape \[1, 6, 32\] there, but the new value has \[2\]"),
        ({"embedding.sum": Patch([OTHER[:4]])}, r"shape \[1, 6, 32\] there, but the new value has \[1, 4, 32\]"),
        ({"embedding.sum": Zero((0, 6))}, r"shape \[1, 6, 32\], where \(0, 6\) is no index"),
        ({"embedding.sum": Zero((0, 0, 0, 0))}, "is no index"),
    ],
)
def test_refused_with_both_shapes(edits: dict[str, Edit], message: str) -> None:
    with pytest.raises(InputError, match=message):
        edit(gpt2(), [IDS], edits)


def test_a_pooled_vector_is_compared_too() -> None:
    found = edit(model_of(preset("tiny-bert")), [IDS], {"encoder.0.residual.mid": Zero((0, 0))})
    assert found.predictions == ()
    assert found.largest_change > 0
    assert found.before.shape == (1, 32)


def test_edits_become_json() -> None:
    found = edit(gpt2(), [IDS], {"embedding.sum": Zero((0, slice(1, 3)))})
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["edits"] == {"embedding.sum": {"kind": "Zero", "index": [0, [1, 3, None]]}}
    assert plain["largest_change"] == found.largest_change


@pytest.mark.parametrize("name", [name for name in TINY if name != "tiny-bert"])
def test_the_logit_lens_ends_in_the_model(name: str) -> None:
    model = model_of(preset(name))
    found = logit_lens(model, [IDS], target_of(model), top=3)
    assert len(found.rows) == 3
    assert all(len(row.top) == len(found.tokens) for row in found.rows)
    answer = trace(model, [IDS], target_of(model), sites=["probabilities"])["probabilities"].full[0]
    for place, likeliest in enumerate(found.rows[-1].top):
        assert [int(token) for token, _ in likeliest] == answer[place].topk(3).indices.tolist()
        assert [share for _, share in likeliest] == answer[place].topk(3).values.tolist()
    json.dumps(found.to_json(), allow_nan=False)


def test_the_logit_lens_needs_an_unembedding() -> None:
    with pytest.raises(InputError, match="has the head 'tag'"):
        logit_lens(model_of(config("encoder", head=c.Tag(labels=3))), [IDS])


def test_a_run_that_is_known_is_not_run_again() -> None:
    model = gpt2()
    zero: dict[str, Edit] = {"decoder.0.attention.heads": Zero()}
    first = edit(model, [IDS], zero)
    runs = []
    model.network.register_forward_pre_hook(lambda module, inputs: runs.append(1))
    again = edit(model, [IDS], zero, before=first.before)
    assert len(runs) == 1
    assert torch.equal(again.after, first.after)
    assert again.predictions == first.predictions
