"""What a trace keeps, what it refuses, what it leaves as it was, and how it reads as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from pellucid.errors import InputError
from pellucid.lens.trace import Trace, trace
from pellucid.model import config as c
from pellucid.model.presets import preset
from pellucid.pretrained.facade import Model
from tests.lens.models import build, check, ids, of_config, with_words
from tests.model.small import CONTEXT, unchecked


def names(found: Trace) -> list[str]:
    return [step.site for step in found.steps]


def hooks(model: Model) -> int:
    return sum(len(module._forward_hooks) for module in model.network.modules())


# --- tracing changes nothing ---


@pytest.mark.parametrize("stacks", ["encoder", "decoder", "both"])
@pytest.mark.parametrize("kernel", ["fused", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_are_the_same_to_the_bit(kernel: str, stacks: str, dtype: torch.dtype) -> None:
    model = build(stacks, kernel=kernel, dtype=dtype)
    text = ids(model, 2, 7)
    before = model.logits(*text)
    found = trace(model, *text, sites=None if kernel == "reference" else ("*.residual.*", "*.heads", "logits"))
    assert found.notes == ()
    assert torch.equal(found["logits"].value, before)
    assert torch.equal(model.logits(*text), before)
    assert hooks(model) == 0


@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_hooks_are_removed_when_the_run_raises(kernel: str) -> None:
    model = build(kernel=kernel, position=c.Learned())
    with pytest.raises(InputError, match=f"needs {CONTEXT + 1} positions, but the model has {CONTEXT}"):
        trace(model, *ids(model, 1, CONTEXT + 1), sites=("*.residual.out",))
    assert hooks(model) == 0


def test_gradients_are_not_kept() -> None:
    model = build()
    assert not any(step.value.requires_grad for step in trace(model, *ids(model, 1, 4)).steps)


# --- kernels ---


@pytest.mark.parametrize("pattern", ["*.residual.*", "decoder.0.feed_forward.*", "*.heads", "logits", "*.output"])
def test_sites_without_matrices_stay_on_the_models_own_kernel(pattern: str) -> None:
    model = build()
    found = trace(model, *ids(model, 2, 6), sites=(pattern,))
    assert found.notes == ()
    assert not any(name.endswith((".scores", ".weights")) for step in found.steps for name in step.recorded)
    check(found, torch.float64)


@pytest.mark.parametrize("pattern", ["*", "*.weights", "decoder.0.attention.s*", "decoder.?.attention.weight[s]"])
def test_asking_for_matrices_switches_the_kernel_and_says_so(pattern: str) -> None:
    model = build()
    found = trace(model, *ids(model, 1, 6), sites=(pattern,))
    assert "reference" in found.notes[0]
    assert "'fused'" in found.notes[0]
    assert model.network.kernel == "fused"


# --- selection ---


def test_only_what_was_asked_for_and_its_inputs_are_recorded() -> None:
    model = build()
    found = trace(model, *ids(model, 1, 6), sites=("decoder.1.attention.weights",))
    assert names(found) == ["decoder.1.attention.weights"]
    assert set(found.steps[0].recorded) == {"decoder.1.attention.weights", "decoder.1.attention.scores"}
    residuals = trace(model, *ids(model, 1, 6), sites=("decoder.*.residual.out",))
    assert names(residuals) == ["decoder.0.residual.out", "decoder.1.residual.out"]
    assert set(residuals.steps[0].recorded) == {
        f"decoder.{block}.{site}"
        for block in (0, 1)
        for site in ("residual.mid", "feed_forward.output", "residual.out")
    }


def test_blocks_leave_out_the_other_blocks_alone() -> None:
    model = build()
    found = names(trace(model, *ids(model, 1, 6), blocks=[1]))
    assert not any(name.startswith("decoder.0.") for name in found)
    assert {"embedding.tokens", "decoder.1.attention.scores", "logits"} <= set(found)


def test_heads_pick_their_groups_and_tokens_pick_queries() -> None:
    model = build(key_value_heads=2)
    text = ids(model, 2, 6)
    whole, part = trace(model, *text), trace(model, *text, heads=[3], tokens=slice(2, 4))
    block = "decoder.0.attention"
    for site in ("query", "scores", "weights", "heads"):
        assert torch.equal(part[f"{block}.{site}"].value, whole[f"{block}.{site}"].value[:, 3:, 2:4])
    for site in ("key", "value"):
        assert torch.equal(part[f"{block}.{site}"].value, whole[f"{block}.{site}"].value[:, 1:])
    assert torch.equal(part["logits"].value, whole["logits"].value[:, 2:4])
    check(part, torch.float64)


def test_tokens_of_an_encoder_decoder_are_those_of_its_target() -> None:
    model = build("both")
    found = trace(model, *ids(model, 1, 4), tokens=slice(-1, None))
    assert found["encoder.0.residual.out"].value.shape[1] == 6
    assert found["decoder.0.residual.out"].value.shape[1] == 1
    assert found["decoder.0.cross.weights"].value.shape[2:] == (1, 6)


@pytest.mark.parametrize(
    ("head", "last"), [(c.Unembed(), "vocab"), (c.Tag(labels=3), "label"), (c.Classify(labels=3), "label")]
)
def test_the_axes_of_logits_are_those_of_the_head(head: c.Head, last: str) -> None:
    model = build("encoder", head=head)
    found = trace(model, *ids(model, 1, 4))
    assert found["logits"].axes == (("batch", last) if head.kind == "classify" else ("batch", "token", last))
    assert found["probabilities"].axes == found["logits"].axes
    assert len(found["logits"].axes) == found["logits"].value.dim()


# --- refusals ---


def test_a_request_beyond_the_memory_limit_is_refused_with_both_numbers() -> None:
    model = build()
    text = torch.zeros(1, 512, dtype=torch.long)
    # 2 blocks x scores and weights x 4 heads x 512 x 512 x 8 bytes
    with pytest.raises(InputError, match=r"4 matrices of up to 512 x 512.* need 32 MiB, but 1 MiB are allowed"):
        trace(model, text, memory_limit=2**20)
    # The check of a weight reads the scores, so that both are kept.
    with pytest.raises(InputError, match=r"2 matrices .* need 16 MiB"):
        trace(model, text, sites=("*.weights",), blocks=[0], memory_limit=2**20)
    assert trace(model, text, sites=("*.residual.*",), memory_limit=0).notes == ()


def test_cross_attention_and_linformer_need_what_their_matrices_take() -> None:
    both = build("both")
    source, target = ids(both, 1, 4)
    with pytest.raises(InputError, match=r"need 0.000732 MiB"):  # 4 heads x 4 x 6 x 8 bytes
        trace(both, source, target, sites=("decoder.0.cross.scores",), memory_limit=4 * 4 * 6 * 8 - 1)
    trace(both, source, target, sites=("decoder.0.cross.scores",), memory_limit=4 * 4 * 6 * 8)
    linformer = build("encoder", attention=c.Linformer(rank=3), position=c.Learned())
    trace(linformer, *ids(linformer, 1, 8), sites=("encoder.0.attention.scores",), memory_limit=4 * 8 * 3 * 8)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown site": (
        {"sites": ["decoder.0.atention.weights"]},
        "no site is called 'decoder.0.atention.weights'; the nearest are .*decoder.0.attention.weights",
    ),
    "unknown pattern": ({"sites": ["logits", "*.nothing"]}, r"no site is called '\*.nothing'"),
    "nothing left": ({"sites": ["decoder.0.*"], "blocks": [1]}, "nothing is left"),
    "head": ({"heads": [0, 4], "sites": ["logits"]}, r"heads \[0, 4\] were asked for, but the model has heads 0 to 3"),
    "negative head": ({"heads": [-1]}, "heads 0 to 3"),
    "no head": ({"heads": []}, "heads 0 to 3"),
    "block": ({"blocks": [2]}, r"blocks \[2\] were asked for, but the model has blocks 0 to 1"),
    "tokens past the end": ({"tokens": slice(3, 9)}, "tokens 3:9 were asked for, but the text has 6 tokens, 0 to 5"),
    "no tokens": ({"tokens": slice(2, 2)}, "tokens 2:2"),
    "tokens before the start": ({"tokens": slice(-9, None)}, "tokens -9:"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_selection_is_refused_before_anything_runs(case: str) -> None:
    model = build()
    model.network.tokens.register_forward_hook(lambda *_: pytest.fail("the network ran"))
    options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        trace(model, *ids(model, 1, 6), **options)


@pytest.mark.parametrize("text", ["", "   ", ["a b", ""], [], [[]]])
def test_an_empty_text_is_refused(text: Any) -> None:
    with pytest.raises(InputError, match="empty"):
        trace(with_words(build()), text)


def test_texts_need_a_tokenizer_and_stacks_their_texts() -> None:
    with pytest.raises(InputError, match="without a tokenizer"):
        trace(build(), "a b")
    both = build("both")
    with pytest.raises(InputError, match="needs both texts"):
        trace(both, ids(both, 1, 4)[0])
    model = build()
    with pytest.raises(InputError, match="takes no target"):
        trace(model, ids(model, 1, 4)[0], [[1]])
    with pytest.raises(InputError, match=r"no site is called 'decoder.0.x'"):
        trace(model, *ids(model, 1, 4))["decoder.0.x"]


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_is_refused_with_the_fix_named() -> None:
    model = build()
    with unchecked():
        whole = replace(model, network=torch.compile(model.network))
        with pytest.raises(InputError, match=r"OptimizedModule is compiled.*_orig_mod"):
            trace(whole, [[1, 2]])
    trace(model, [[1, 2]])
    model.network.get_submodule("decoder.1").compile()
    with pytest.raises(InputError, match="Block is compiled"):
        trace(model, [[1, 2]])


def test_dropout_at_work_is_refused() -> None:
    model = of_config(preset("tiny-gpt2").model_copy(update={"dropout": 0.1}))
    model.network.train()
    with pytest.raises(InputError, match=r"network.eval\(\)"):
        trace(model, [[1, 2]])


# --- texts and JSON ---


def test_texts_of_different_lengths_are_padded_and_each_stays_itself() -> None:
    model = with_words(build())
    together, alone = trace(model, ("a b c d e", "c d")), trace(model, "c d")
    assert torch.allclose(together["logits"].value[1, :2], alone["logits"].value[0], atol=1e-12)
    check(together, torch.float64)
    assert alone.tokens == ("c", "d")
    assert alone.prediction[0][0] == model.decode([int(alone["logits"].value[0, -1].argmax())])


def test_the_json_has_the_shape_that_others_rely_on() -> None:
    model = with_words(build())
    found = trace(model, "a b c")
    shape = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert list(shape) == ["model", "tokens", "steps", "prediction"]
    assert shape["tokens"] == ["a", "b", "c"]
    assert [set(share) for share in shape["prediction"]] == [{"token", "probability"}] * 5
    keys = ["site", "formula", "inputs", "axes", "shape", "values", "error"]
    assert all(list(step) == keys for step in shape["steps"])
    for step, original in zip(shape["steps"], found.steps, strict=True):
        assert step["shape"] == list(original.value.shape)
        assert len(step["axes"]) == len(step["shape"])
        assert set(step["inputs"]) <= {other["site"] for other in shape["steps"]}
        values = torch.tensor([[float("-inf") if x is None else x for x in _flat(step["values"])]], dtype=torch.float64)
        assert torch.equal(values[0], original.value.flatten())
    scores = next(step for step in shape["steps"] if step["site"] == "decoder.0.attention.scores")
    assert [x is None for x in scores["values"][0][0][1]] == [False, False, True]
    assert "values" not in found.to_json(values=False)["steps"][0]


def test_an_infinite_error_is_valid_json_and_beyond_every_tolerance() -> None:
    model = build()
    with torch.no_grad():
        model.network.get_parameter("decoder.0.feed_forward.up.weight")[0, 0] = float("nan")
    shape = json.loads(json.dumps(trace(model, [[1, 2, 3]], sites=("logits",)).to_json(), allow_nan=False))
    assert shape["steps"][0]["error"] > 1e300


def _flat(values: Any) -> list[Any]:
    return [x for row in values for x in _flat(row)] if isinstance(values, list) else [values]
