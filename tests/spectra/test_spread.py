"""Heads over processes: two of them find what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import save
from pellucid.spectra.measure import Share, spectrum
from pellucid.spectra.spectrum import Effort
from pellucid.spectra.spread import _order, gather, joined, launched, own_device

from .made_up import spectra

FREE = Effort(budget=24, top=4)


def model() -> Model:
    config = preset("tiny-t5")
    return Model(config, Transformer(config, seed=0).eval())


def ids(length: int, seed: int) -> list[int]:
    return torch.randint(0, 96, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_shares_are_apart_and_together_all_in_the_same_order() -> None:
    pairs = [(ids(30, 0), ids(20, 1)), (ids(25, 2), ids(22, 3))]
    whole = spectrum(model(), *pairs, effort=FREE, method="free", seed=5)
    parts = [spectrum(model(), *pairs, effort=FREE, method="free", seed=5, share=Share(i, 3)) for i in range(3)]
    heads = [head for part in parts for head in part.heads]
    assert len(heads) == len(whole.heads)
    assert max(len(part.heads) for part in parts) - min(len(part.heads) for part in parts) <= 1
    assert tuple(sorted(heads, key=_order)) == whole.heads


def test_one_process_keeps_what_it_has() -> None:
    found = spectra()
    with joined(Share()):
        assert gather(found, Share()) is found


def test_the_launcher_says_which_share_and_which_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert launched() == Share(0, 1)
    assert own_device("cuda") == "cuda"
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert launched() == Share(3, 4)
    assert [own_device(name) for name in ("cuda", "cpu", "cuda:0")] == ["cuda:1", "cpu", "cuda:0"]


def test_the_order_is_that_of_a_forward_pass() -> None:
    one = spectra(1, 1).heads[0]
    places = [("encoder", 0, "self"), ("encoder", 1, "self"), ("decoder", 0, "self"), ("decoder", 0, "cross")]
    heads = [replace(one, stack=stack, block=block, kind=kind) for stack, block, kind in places]
    assert [_order(head) for head in heads] == sorted(_order(head) for head in heads)


def test_torchrun_prints_the_result_of_one_process_once(tmp_path: Path) -> None:
    config = preset("tiny-gpt2")
    folder = save(Model(config, Transformer(config, seed=0).eval()), tmp_path / "model")
    (tmp_path / "ids.json").write_text(json.dumps(ids(24, 0)))
    command = ["pellucid", "spectrum", str(folder), "--ids", str(tmp_path / "ids.json"), "--json", "--seed", "3"]
    command += ["--method", "free", "--budget", "20", "--top", "4"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *command], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    opened = Model(config, Transformer(config, seed=0).eval())
    alone = spectrum(opened, ids(24, 0), effort=Effort(budget=20, top=4), method="free", seed=3).to_json()
    same(json.loads(done.stdout)["heads"], alone["heads"])


def same(found: Any, wanted: Any) -> None:
    """Equal, but for the rounding of numbers."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-5, abs=1e-7)
    else:
        assert found == wanted
