"""What cannot be right is refused by a `CheckpointError` that names it, and nothing is loaded half-way."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import CheckpointError
from pellucid.pretrained import save
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.family import DEPTHS, ConfigReader
from tests.pretrained.checkpoints import BLOOM, FREE, GPT2, WEIGHTS, assert_same, edit_json, edit_tensors, write

TABLE, SCALE = "transformer.wte.weight", "transformer.h.1.ln_2.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("errors") / "whole", GPT2, "gpt2")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(whole, tmp_path / "damaged"))


@pytest.fixture
def sharded(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(save, "SHARD_BYTES", 4096)
    return save.export(pellucid.load(whole), tmp_path / "sharded")


def refused(folder: Path, *words: str, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        pellucid.load(folder, **options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    return message


# --- config.json ---


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_theta": 10_000}, ["rope_theta", "10000", "not known"]),
        ({"n_embd": "16"}, ["n_embd", "'16'", "a whole number"]),
        ({"n_head": True}, ["n_head", "True", "a whole number"]),
        ({"n_layer": 2.0}, ["n_layer", "2.0", "a whole number"]),
        ({"layer_norm_epsilon": "small"}, ["layer_norm_epsilon", "a number"]),
        ({"tie_word_embeddings": "yes"}, ["tie_word_embeddings", "true or false"]),
        ({"activation_function": "mish"}, ["activation_function", "mish", "gelu_new"]),
        ({"architectures": "GPT2LMHeadModel"}, ["architectures", "a list"]),
        ({"id2label": {"one": "x"}}, ["id2label", "whole numbers"]),
        ({"vocab_size": None}, ["vocab_size", "has no"]),
        ({"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx", "True"]),
        ({"model_type": "mamba"}, ["mamba", *FAMILIES]),
        ({"model_type": ["gpt2"]}, ["model_type", "['gpt2']"]),
        ({"model_type": None}, ["model_type", "--family"]),
    ],
    ids=str,
)
def test_a_key_that_cannot_be_right_is_named(folder: Path, change: dict[str, Any], words: list[str]) -> None:
    edit_json(folder / "config.json", lambda config: config.update(change))
    refused(folder, *words)


@pytest.mark.parametrize("key", ["n_embd", "n_head", "n_layer", "n_positions", "vocab_size"])
def test_a_missing_key_is_named(folder: Path, key: str) -> None:
    edit_json(folder / "config.json", lambda config: config.pop(key))
    refused(folder, key, "has no")


def test_a_config_without_model_type_needs_the_family(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.pop("model_type"))
    refused(folder, "model_type", "--family", "gpt2", "bloom")
    model = pellucid.load(folder, family="gpt2")
    save.export(model, folder.parent / "again")
    assert json.loads((folder.parent / "again" / "config.json").read_text())["model_type"] == "gpt2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": 23}, ["tensor transformer.wte.weight", "[24, 16]", "[23, 16]"]),
        ({"vocab_size": 65}, ["vocab = 65", "64"]),
        ({"vocab_size": 10**12}, ["vocab = 1000000000000", "64"]),
        ({"n_embd": 10**9, "n_head": 10**9}, ["width = 1000000000"]),
        ({"n_positions": 10**30}, ["context = 1" + "0" * 30]),
        ({"n_inner": 10**18}, ["hidden = 1" + "0" * 18]),
        ({"n_layer": 10**9}, ["n_layer = 1000000000", "28 tensors"]),
        ({"n_layer": 1}, ["unknown", "transformer.h.1."]),
        ({"n_layer": 3}, ["lacks", "transformer.h.2."]),
        ({"n_inner": 63}, ["tensor transformer.h.0.mlp.c_fc.weight", "[16, 64]", "[16, 63]"]),
        ({"architectures": ["GPT2ForTokenClassification"], "num_labels": 3}, ["lacks classifier.bias"]),
    ],
    ids=str,
)
def test_sizes_that_disagree_with_the_tensors_are_refused_at_once(
    folder: Path, change: dict[str, Any], words: list[str]
) -> None:
    edit_json(folder / "config.json", lambda config: config.update(change))
    refused(folder, *words)


@pytest.mark.parametrize("key", sorted(DEPTHS))
def test_no_family_counts_to_a_billion_blocks(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"{key} = 1000000000, .* 3 tensors"):
        ConfigReader({key: 10**9}, ["a", "b", "c"]).take(key, int)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", ["not valid JSON"]), (b"[1]", ["JSON object", "list"]), (b"\xff", ["not valid JSON"]), (b"", ["JSON"])],
)
def test_a_config_that_is_no_object_is_refused(folder: Path, content: bytes, words: list[str]) -> None:
    (folder / "config.json").write_bytes(content)
    refused(folder, "config.json", *words)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere" / "at all", "neither a folder nor a hub id")
    refused(folder / "config.json", "config.json", "neither a folder")
    (folder / "config.json").unlink()
    refused(folder, "config.json", "No such file")
    (folder / WEIGHTS).unlink()
    refused(folder, WEIGHTS)


# --- tensors ---


def test_missing_and_unknown_tensors_are_named(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"transformer.extra": tensors.pop(SCALE)}))
    refused(folder, f"lacks {SCALE}", "unknown transformer.extra")


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({SCALE: torch.ones(15)}))
    refused(folder, SCALE, "[15]", "[16]")


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64], ids=str)
def test_quantised_and_integer_weights_are_refused(folder: Path, dtype: torch.dtype) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({SCALE: torch.ones(16).to(dtype)}))
    refused(folder, SCALE, str(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_nan_is_refused(folder: Path, dtype: torch.dtype) -> None:
    broken = torch.ones(16, dtype=dtype)
    broken[7] = torch.nan
    edit_tensors(folder, lambda tensors: tensors.update({SCALE: broken}))
    refused(folder, SCALE, "NaN")


def test_infinity_is_let_through(folder: Path) -> None:
    """It is a number that softmax understands (a bias may rule a token out), and not a sign of damage."""
    weight = torch.ones(16)
    weight[3], weight[4] = torch.inf, -torch.inf
    edit_tensors(folder, lambda tensors: tensors.update({SCALE: weight}))
    assert torch.equal(pellucid.load(folder).network.state_dict()["decoder.1.before_feed_forward.weight"], weight)


def test_a_tied_unembedding_that_differs_is_refused(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[TABLE] + 1}))
    refused(folder, "lm_head.weight", TABLE, "tie_word_embeddings")
    edit_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[TABLE].clone()}))
    assert pellucid.load(folder).config.head.tied


def test_a_file_of_several_dtypes_is_opened_in_the_widest(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({TABLE: tensors[TABLE].half()}))
    assert {tensor.dtype for tensor in pellucid.load(folder).network.state_dict().values()} == {torch.float32}


# --- files ---


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 500, -1, -1000])
def test_a_file_cut_short_is_refused(folder: Path, kept: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:kept])
    refused(folder, WEIGHTS, "cut short or damaged")


def test_a_folder_in_place_of_the_file_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()
    refused(folder, WEIGHTS)


@pytest.mark.parametrize("declared", [2**60, 2**64 - 1, 10**8, 0])
def test_a_false_length_of_the_header_is_refused(folder: Path, declared: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(declared.to_bytes(8, "little") + whole[8:])
    refused(folder, WEIGHTS)


def test_sharded_weights_load_as_the_single_file(sharded: Path, whole: Path) -> None:
    assert len(list(sharded.glob("*.safetensors"))) > 3
    assert_same(pellucid.load(sharded), pellucid.load(whole))


def any_shard(index: dict[str, Any]) -> str:
    return str(index["weight_map"][SCALE])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda index: index["weight_map"].update({SCALE: "missing.safetensors"}), [SCALE, "'missing.safetensors'"]),
        (lambda index: index["weight_map"].update({SCALE: "../x"}), [SCALE, "'../x'"]),
        (lambda index: index["weight_map"].update({SCALE: ".."}), [SCALE, "'..'"]),
        (lambda index: index["weight_map"].update({SCALE: ""}), [SCALE, "''"]),
        (lambda index: index["weight_map"].update({SCALE: "x" * 5000}), [SCALE]),
        (lambda index: index["weight_map"].update({SCALE: 3}), [SCALE, "3"]),
        (lambda index: index["weight_map"].update({"transformer.new": any_shard(index)}), ["transformer.new", "not"]),
        (lambda index: index.update({"weight_map": [1]}), ["weight_map"]),
        (lambda index: index.update({"weight_map": {}}), ["weight_map"]),
        (lambda index: index.pop("weight_map"), ["weight_map"]),
    ],
)
def test_an_index_that_cannot_be_right_is_refused(sharded: Path, edit: Callable[..., object], words: list[str]) -> None:
    shutil.copy(next(sharded.glob("*.safetensors")), sharded.parent / "x")
    edit_json(sharded / INDEX, edit)
    refused(sharded, INDEX, *words)


def test_a_tensor_that_the_index_forgot_counts_like_any_other(sharded: Path, whole: Path) -> None:
    forgotten = "transformer.h.0.attn.c_attn.bias"
    edit_json(sharded / INDEX, lambda index: index["weight_map"].pop(forgotten))
    assert_same(pellucid.load(sharded), pellucid.load(whole))


# --- writing ---


def test_nothing_is_written_over(folder: Path) -> None:
    model = pellucid.load(folder)
    for write_it in (save.export, save.save):
        with pytest.raises(CheckpointError, match="not empty"):
            write_it(model, folder)
        with pytest.raises(CheckpointError, match="exists"):
            write_it(model, folder / "config.json")


@pytest.mark.parametrize("write_it", [save.export, save.save])
@pytest.mark.parametrize("failing", ["save_file", "_copy_sidecars"])
def test_an_interrupted_write_leaves_nothing_behind(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_it: Callable[..., Path], failing: str
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(save, failing, stop)
    with pytest.raises(KeyboardInterrupt):
        write_it(pellucid.load(whole), tmp_path / "deep" / "new")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.parametrize("config", [GPT2, FREE, BLOOM], ids=["gpt2", "free", "bloom"])
def test_an_export_opens_again_to_the_bit(tmp_path: Path, config: Any) -> None:
    family = "bloom" if config is BLOOM else "gpt2"
    model = pellucid.load(write(tmp_path / "one", config, family))
    assert model.config == config
    assert model.encode("the cat sat") == [8, 9, 10]
    again = pellucid.load(save.export(model, tmp_path / "two"))
    assert_same(again, model)
    assert again.encode("the cat sat") == [8, 9, 10]


def test_messages_end_without_a_traceback_or_a_nested_error(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")
    assert not re.search(r"Traceback|\n", refused(folder, WEIGHTS))
