"""Pickled weights: `convert` reads them without running them, `load` does not read them at all."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pellucid
from pellucid.errors import CheckpointError
from pellucid.pretrained.convert import convert
from tests.pretrained.checkpoints import BLOOM, GPT2, WEIGHTS, assert_same, edit_json, write

PICKLE = "pytorch_model.bin"


class Malicious:
    """A pickle that writes a file when it is read by `pickle.load`."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.witness),)


@pytest.fixture(params=["gpt2", "bloom"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / "whole", {"gpt2": GPT2, "bloom": BLOOM}[request.param], request.param)


def pickled(folder: Path, **options: Any) -> dict[str, Tensor]:
    """Turn the safetensors of a folder into a pickle."""
    tensors = load_file(folder / WEIGHTS)
    torch.save(OrderedDict(tensors), folder / PICKLE, **options)
    (folder / WEIGHTS).unlink()
    return tensors


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older than archives"])
def test_a_pickled_checkpoint_becomes_one_that_load_opens(whole: Path, tmp_path: Path, archive: bool) -> None:
    wanted = pellucid.load(whole)
    pickled(whole, _use_new_zipfile_serialization=archive)
    with pytest.raises(CheckpointError, match="pellucid import"):
        pellucid.load(whole)
    written = convert(whole, tmp_path / "new")
    assert_same(pellucid.load(written), wanted)
    assert not (written / PICKLE).exists()
    assert pellucid.load(written).encode("the cat") == wanted.encode("the cat")


def test_pickled_shards_are_read(whole: Path, tmp_path: Path) -> None:
    wanted = pellucid.load(whole)
    tensors = pickled(whole)
    (whole / PICKLE).unlink()
    names = sorted(tensors)
    shards = {"a.bin": names[: len(names) // 2], "b.bin": names[len(names) // 2 :]}
    for shard, held in shards.items():
        torch.save({name: tensors[name] for name in held}, whole / shard)
    index = {"weight_map": {name: shard for shard, held in shards.items() for name in held}}
    (whole / f"{PICKLE}.index.json").write_text(json.dumps(index))
    assert_same(pellucid.load(convert(whole, tmp_path / "new")), wanted)
    index["weight_map"][names[0]] = "b.bin"
    (whole / f"{PICKLE}.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=f"{names[0]} is in b.bin"):
        convert(whole, tmp_path / "newer")
    index["weight_map"][names[0]] = "../b.bin"
    (whole / f"{PICKLE}.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"'\.\./b.bin'"):
        convert(whole, tmp_path / "newer")


def test_safetensors_are_preferred(whole: Path, tmp_path: Path) -> None:
    (whole / PICKLE).write_bytes(b"not read")
    assert_same(pellucid.load(convert(whole, tmp_path / "new")), pellucid.load(whole))


def test_a_config_without_model_type_gets_one(whole: Path, tmp_path: Path) -> None:
    config = json.loads((whole / "config.json").read_text())
    edit_json(whole / "config.json", lambda values: values.pop("model_type"))
    pickled(whole)
    with pytest.raises(CheckpointError, match="--family"):
        convert(whole, tmp_path / "new")
    written = convert(whole, tmp_path / "new", family=config["model_type"])
    assert json.loads((written / "config.json").read_text()) == config
    pellucid.load(written)


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older than archives"])
def test_a_malicious_pickle_is_not_run(whole: Path, tmp_path: Path, archive: bool) -> None:
    tensors: dict[str, object] = dict(load_file(whole / WEIGHTS))
    (whole / WEIGHTS).unlink()
    witness = tmp_path / "it ran"
    torch.save(tensors | {"extra": Malicious(witness)}, whole / PICKLE, _use_new_zipfile_serialization=archive)
    with pytest.raises(CheckpointError, match="pickled weights"):
        pellucid.load(whole)
    with pytest.raises(CheckpointError, match=r"posix\.mkdir.*refused") as caught:
        convert(whole, tmp_path / "new")
    assert "weights_only" not in str(caught.value)
    assert not witness.exists()
    assert not (tmp_path / "new").exists()
    torch.load(whole / PICKLE, weights_only=False)
    assert witness.exists()  # so the pickle was what it seemed to be


def test_a_plain_pickle_is_not_run(whole: Path, tmp_path: Path) -> None:
    (whole / WEIGHTS).unlink()
    witness = tmp_path / "it ran"
    for protocol in (2, 4):
        (whole / PICKLE).write_bytes(pickle.dumps({"x": Malicious(witness)}, protocol=protocol))
        with pytest.raises(CheckpointError, match=PICKLE):
            convert(whole, tmp_path / "new")
        with pytest.raises(CheckpointError, match="pickled weights"):
            pellucid.load(whole)
    assert not witness.exists()


def test_a_pickle_beside_safetensors_or_named_as_one_is_not_run(whole: Path, tmp_path: Path) -> None:
    witness = tmp_path / "it ran"
    torch.save({"x": Malicious(witness)}, whole / PICKLE)
    pellucid.load(whole)
    torch.save({"x": Malicious(witness)}, whole / WEIGHTS)
    for read in (pellucid.load, lambda folder: convert(folder, tmp_path / "new")):
        with pytest.raises(CheckpointError, match=WEIGHTS):
            read(whole)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.ones(2)], "list"),
        ({"state_dict": {"x": torch.ones(2)}}, "'state_dict', which is dict"),
        ({"x": torch.eye(2).to_sparse()}, "'x', which is torch.sparse_coo"),
        ({"x": torch.empty(2, device="meta")}, "'x', which is torch.strided on meta"),
        ({3: torch.ones(2)}, "3"),
        ({}, "0 tensors"),
        ({"x": torch.ones(64), "y": torch.ones(96)}, r"lacks.*unknown transformer\.x, transformer\.y"),
        ({"x": torch.nn.Linear(1, 1)}, r"torch\.nn\.modules\.linear\.Linear"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_checkpoint_is_refused(whole: Path, tmp_path: Path, content: object, words: str) -> None:
    (whole / WEIGHTS).unlink()
    torch.save(content, whole / PICKLE)
    with pytest.raises(CheckpointError, match=words):
        convert(whole, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kept", [0, 1, 100, 5000, -1, -100])
def test_a_pickle_cut_short_is_refused(whole: Path, tmp_path: Path, kept: int) -> None:
    pickled(whole)
    (whole / PICKLE).write_bytes((whole / PICKLE).read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=PICKLE):
        convert(whole, tmp_path / "new")


def test_our_own_layout_needs_no_conversion(whole: Path, tmp_path: Path) -> None:
    folder = pellucid.save(pellucid.load(whole), tmp_path / "ours")
    with pytest.raises(CheckpointError, match="our own layout"):
        convert(folder, tmp_path / "new")
