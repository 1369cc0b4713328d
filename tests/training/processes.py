"""Runs in processes of their own, that can be killed or that share a run.

`python -m tests.training.processes SPEC.json` imports torch once and forks for every run: it never computes itself, so
that forking is safe.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from pellucid.training.config import RunConfig

LATE = (
    "pellucid.spectra.measure",
    "pellucid.training.run",
    "torch._dynamo",
    "torch.distributed.checkpoint.hf_storage",
    "torch.distributed.checkpoint.state_dict_saver",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
)


def outside(*jobs: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Do the jobs in one new process, and return what each found."""
    spec = folder / "jobs.json"
    spec.write_text(json.dumps(jobs))
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    command = [sys.executable, "-m", "tests.training.processes", str(spec)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def whole(run: RunConfig, processes: int = 1, base: Path | None = None) -> dict[str, Any]:
    """base: the folder of a model to fine-tune."""
    return {"kind": "whole", "run": run.model_dump(mode="json"), "processes": processes, "base": base and str(base)}


def killed(run: RunConfig, moments: list[str], seed: int = 0, base: Path | None = None) -> dict[str, Any]:
    """Start the run again and again; each time it is killed at the next moment, and the last time it may finish."""
    parts = {"moments": moments, "seed": seed, "base": base and str(base)}
    return {"kind": "killed", "run": run.model_dump(mode="json"), **parts}


def together(*runs: RunConfig) -> dict[str, Any]:
    """Runs of one process each, started at the same moment."""
    return {"kind": "together", "runs": [run.model_dump(mode="json") for run in runs]}


def abandoned(run: RunConfig) -> dict[str, Any]:
    """Two processes, of which the second is killed after the first checkpoint."""
    return {"kind": "abandoned", "run": run.model_dump(mode="json")}


# --- inside that process ---


def main() -> None:
    import torch

    for late in LATE:  # imported once, before the forks
        import_module(late)
    torch.set_num_threads(1)
    print(json.dumps([_do(job) for job in json.loads(Path(sys.argv[1]).read_text())]))


def _do(job: dict[str, Any]) -> dict[str, Any]:
    if job["kind"] == "together":
        return {"codes": _wait([_fork(RunConfig(**run)) for run in job["runs"]])}
    run = RunConfig(**job["run"])
    base = job.get("base")
    if job["kind"] == "whole":
        codes = _spread(run, job["processes"], base)
        return {"codes": codes, "log": _log(run)}
    if job["kind"] == "abandoned":
        return _abandon(run)
    draw = random.Random(job["seed"])
    steps = [_kill_at(moment, _fork(run, base=base), run, draw) for moment in job["moments"]]
    return {"killed": steps, "codes": _spread(run, 1, base), "log": _log(run)}


def _abandon(run: RunConfig) -> dict[str, Any]:
    out, port = Path(run.output.folder), _free_port()
    first, second = (_fork(run, rank, 2, port) for rank in range(2))
    while not any(out.glob("checkpoints/step-*")):
        time.sleep(0.01)
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    return {"code": code, "error": (out / "error-0.txt").read_text()}


def _spread(run: RunConfig, processes: int, base: str | None = None) -> list[int]:
    port = _free_port()
    return _wait([_fork(run, rank, processes, port, base) for rank in range(processes)])


def _wait(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _fork(run: RunConfig, rank: int = 0, processes: int = 1, port: int = 0, base: str | None = None) -> int:
    child = os.fork()
    if child:
        return child
    if processes > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_RANK=str(rank))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    code = 1
    try:
        from pellucid.pretrained.load import load
        from pellucid.training.run import train

        train(run, base=None if base is None else load(base))
        code = 0
    except BaseException as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        (Path(run.output.folder) / f"error-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _kill_at(moment: str, child: int, run: RunConfig, draw: random.Random) -> bool:
    """Wait for the moment and kill; whether the child was still running.

    A moment that the watcher slept through on a busy machine counts as reached: better a kill just after it than none.
    """
    out = Path(run.output.folder)
    before, end = _newest(out), time.perf_counter() + draw.uniform(0.02, 0.4)
    wait = {
        "tokenising": lambda: any(out.glob(".data.unfinished/*")) or (out / "data").exists(),
        "writing": lambda: any(out.glob("checkpoints/.step-*.unfinished/*")),
        "renamed": lambda: _newest(out) != before,
        "running": lambda: time.perf_counter() > end,
    }[moment]
    while not wait():
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.0003)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _newest(out: Path) -> str:
    return max((path.name for path in out.glob("checkpoints/step-*")), default="")


def _log(run: RunConfig) -> list[dict[str, Any]]:
    file = Path(run.output.folder) / "log.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
