"""Two processes learn what one learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.processes import outside, whole
from tests.training.runs import run_of, stories

MODEL = {"width": 16, "heads": 2, "decoder_blocks": 2, "dropout": 0.1, "feed_forward": {"kind": "plain", "hidden": 32}}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict]]:
    """The same run alone, as copies, as shards, and as shards that are stopped half-way and go on."""
    folder = tmp_path_factory.mktemp("spread")
    jobs, places = [], {}
    for name, strategy, processes in (("alone", "ddp", 1), ("ddp", "ddp", 2), ("fsdp", "fsdp", 2)):
        places[name] = folder / name
        places[name].mkdir()
        jobs.append(whole(_run(places[name], strategy, 12), processes))
    places["resumed"] = folder / "resumed"
    places["resumed"].mkdir()
    jobs.append(whole(_run(places["resumed"], "fsdp", 12, until=6), 2))
    jobs.append(whole(_run(places["resumed"], "fsdp", 12), 2))
    found = outside(*jobs, folder=folder)
    found.pop(3)
    return dict(zip(places, zip(places.values(), found, strict=True), strict=True))


def _run(folder: Path, strategy: str, steps: int, until: int | None = None):
    # `until` stops early with the schedule of the whole run: its rate is constant.
    schedule = {"kind": "constant", "steps": until or steps, "warmup": 2}
    return run_of(
        folder,
        stories(folder),
        model=MODEL,
        batch={"tokens": 256, "context": 64, "micro": 64},
        schedule=schedule,
        optimizer={"average": 0.9},
        evaluation={"every": 4},
        compute={"device": "cpu", "strategy": strategy},
    )


@pytest.mark.parametrize("name", ["ddp", "fsdp", "resumed"])
def test_the_loss_curve_is_that_of_one_process(results: dict, name: str) -> None:
    alone, spread = results["alone"][1], results[name][1]
    assert spread["codes"] == [0, 0]
    for key in ("loss", "valid_loss"):
        expected = [entry[key] for entry in alone["log"] if key in entry and entry["step"] != 6]
        found = [entry[key] for entry in spread["log"] if key in entry and entry["step"] != 6]
        assert len(found) == len(expected) > 2
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["ddp", "fsdp", "resumed"])
def test_so_are_the_weights(results: dict, name: str) -> None:
    alone, spread = (load_file(results[each][0] / "out/model/model.safetensors") for each in ("alone", name))
    for tensor in alone:
        torch.testing.assert_close(spread[tensor], alone[tensor], rtol=0, atol=2e-4)


def test_shards_are_written_by_every_process(results: dict) -> None:
    folder, _ = results["fsdp"]
    files = sorted((folder / "out/checkpoints/step-00000012").glob("model/*.safetensors"))
    assert len(files) == 2
