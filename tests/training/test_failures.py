"""What goes wrong is said in words, and the last good checkpoint stays."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from pellucid.errors import CheckpointError, ConfigError, InputError, PellucidError
from pellucid.training import checkpoint
from pellucid.training.distributed import World
from pellucid.training.loop import Loop
from pellucid.training.run import train
from tests.training.processes import abandoned, outside
from tests.training.runs import run_of, stories

HERE = World(torch.device("cpu"))


def steps_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out/checkpoints").iterdir())


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = checkpoint.save_file, []

    def full(tensors, file, *more):
        calls.append(file)
        if len(calls) == 4:  # the optimizer of the second checkpoint
            real(tensors, file)
            os.truncate(file, 100)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(tensors, file, *more)

    monkeypatch.setattr(checkpoint, "save_file", full)
    run = run_of(tmp_path, stories(tmp_path))
    with pytest.raises(CheckpointError, match=r"step-00000010 could not be written: the disk is full; the last good"):
        train(run)
    assert steps_of(tmp_path) == ["step-00000005"]
    assert checkpoint.latest(tmp_path / "out/checkpoints").step == 5
    monkeypatch.setattr(checkpoint, "save_file", real)
    assert train(run).steps == 20


def test_a_write_that_really_fails_half_way(tmp_path: Path) -> None:
    """Files may not grow past a limit: the system itself refuses the rest of the second checkpoint."""
    checkpoint.write(tmp_path, 1, {"model": {"x": torch.zeros(10)}}, {"n": 1}, HERE, sharded=False)
    handler, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"step-00000002 could not be written.*step-00000001"):
            checkpoint.write(tmp_path, 2, {"model": {"x": torch.zeros(10_000)}}, {"n": 2}, HERE, sharded=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.latest(tmp_path).step == 1


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = Loop._learn

    def poisoned(self, work):
        if self.step == 12:
            with torch.no_grad():
                next(self.network.parameters()).fill_(float("nan"))
        learn(self, work)

    monkeypatch.setattr(Loop, "_learn", poisoned)
    with pytest.raises(PellucidError, match=r"not finite by step 13: the last good checkpoint is .*step-00000010"):
        train(run_of(tmp_path, stories(tmp_path)))
    assert steps_of(tmp_path) == ["step-00000005", "step-00000010"]
    found = checkpoint.latest(tmp_path / "out/checkpoints")
    with checkpoint.safe_open(found.folder / "model.safetensors", framework="pt") as file:
        assert all(torch.isfinite(file.get_tensor(name)).all() for name in file.keys())  # noqa: SIM118


def test_a_damaged_checkpoint_is_passed_over_aloud(tmp_path: Path) -> None:
    train(run_of(tmp_path, stories(tmp_path)))
    folder = tmp_path / "out/checkpoints"
    newest = folder / "step-00000020/optimizer.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"\1")
    said: list[str] = []
    assert checkpoint.latest(folder, said.append).step == 15
    assert "optimizer.safetensors differs" in said[0]
    (folder / "step-00000015/state.json").write_text("{")
    assert checkpoint.latest(folder) is None


def test_what_was_left_unfinished_is_cleared(tmp_path: Path) -> None:
    left = tmp_path / "out/checkpoints/.step-00000007.unfinished"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    (tmp_path / "out/run.json").write_text("{}")
    run = run_of(tmp_path, stories(tmp_path))
    with pytest.raises(ConfigError, match="holds another run"):
        train(run)
    (tmp_path / "out/run.json").unlink()
    with pytest.raises(InputError, match="files that are no run"):
        train(run)
    checkpoint.clear_unfinished(left.parent)
    assert not left.exists()


def test_the_death_of_a_partner_is_told_in_words(tmp_path: Path) -> None:
    """One of two processes is killed; the other one says so, and the checkpoint is whole."""
    run = run_of(tmp_path, stories(tmp_path), schedule={"steps": 5000, "warmup": 4})
    (found,) = outside(abandoned(run), folder=tmp_path)
    assert found["code"] == 1
    assert "PellucidError: another process of this run died" in found["error"]
    assert checkpoint.latest(tmp_path / "out/checkpoints").step >= 5


def test_another_run_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    file = stories(tmp_path)
    done = train(run_of(tmp_path, file))
    assert train(run_of(tmp_path, file)) == done  # nothing left to do
    with pytest.raises(ConfigError, match="its seed differs"):
        train(run_of(tmp_path, file, seed=1))
    longer = train(run_of(tmp_path, file, schedule={"steps": 25, "warmup": 4}))
    assert longer.steps == 25
    log = [json.loads(line) for line in (tmp_path / "out/log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == list(range(1, 26))
