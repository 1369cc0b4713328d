"""A run file says what it means, or is refused with the key."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from pellucid.errors import ConfigError, InputError
from pellucid.model.config import Classify, Tag
from pellucid.training.config import RunConfig, Schedule
from pellucid.training.optimizer import rate_at
from pellucid.training.record import chosen_steps
from pellucid.training.runfile import read_run, shown

RUN = """
model = "tiny-gpt2"
[task]
kind = "language_model"
[data]
train = ["a.txt"]
[schedule]
steps = 10
[batch]
context = 64
[output]
folder = "out"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def test_every_default_is_shown_and_reads_back(file: Path) -> None:
    run = read_run(file)
    assert run.data.root == str(file.parent)
    text = shown(run)
    for key in ("rate", "warmup", "clip", "micro", "precision", "keep", "points"):
        assert key in text
    assert RunConfig(**tomllib.loads(text)) == run


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("optimizer.rat=1", "optimizer: rat: Extra inputs"),
        ("speed=1", "speed: Extra inputs"),
        ('task={kind="language_model", packin="x"}', "packin: Extra inputs"),
        ('task={kind="singing"}', "singing"),
        ('model="gpt-9"', "no preset is called 'gpt-9'"),
        ('model={preset="tiny-gpt2", depth=3}', "depth: Extra inputs"),
        ('model="tiny-bert"', "is for a decoder alone, but the model has 2 encoder"),
        ('task.kind="translation"', "text data cannot serve the task translation"),
        ("batch.context=128", "the model has 64 positions, but batch.context is 128"),
        ("batch.micro=10", "batch.micro 10 is less than one row"),
        ("batch.tokens=10", "batch.tokens 10 is less than one row"),
        ('data.format={kind="tsv"}', "tsv data cannot serve the task language_model"),
        ("schedule.steps=0", "greater than 0"),
        ("evaluation.length_penalty=nan", "finite number"),
        ('model={preset="tiny-llama", attention={kind="linear"}}', 'task.packing to "padded"'),
        ("nothing", "not of the form key.key=value"),
        ("model.width=3", "model is not a table"),
    ],
)
def test_what_cannot_be_right_is_refused(file: Path, change: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_run(file, (change,))
    assert words in str(error.value)


def test_files_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_run(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_run(tmp_path / "bad.toml")


def test_the_head_is_the_tasks(file: Path) -> None:
    changes = ('model="tiny-bert"', 'task={kind="tagging"}', 'data.format={kind="conllu"}')
    assert read_run(file, changes).model_config_for(50, 7).head == Tag(labels=7)
    changes = ('model="tiny-bert"', 'task={kind="classification"}', 'data.format={kind="jsonl"}')
    config = read_run(file, changes).model_config_for(50, 3)
    assert config.head == Classify(labels=3)
    assert config.vocab == 50


@pytest.mark.parametrize("kind", ["cosine", "linear", "inverse_sqrt", "constant"])
def test_rates_rise_and_fall(kind: str) -> None:
    part = Schedule(kind=kind, steps=100, warmup=10, floor=0.1)
    rates = [rate_at(step, part, 2.0) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert max(rates) == pytest.approx(2.0)
    last = {"cosine": 0.2, "linear": 0.2, "inverse_sqrt": 2 * 0.1**0.5, "constant": 2.0}[kind]
    assert rates[-1] == pytest.approx(last)
    assert all(a >= b for a, b in pairwise(rates[10:]))


def test_records_are_close_together_at_first() -> None:
    assert chosen_steps(0, 100) == set()
    assert chosen_steps(1, 100) == {100}
    steps = sorted(chosen_steps(8, 1000))
    assert (steps[0], steps[-1]) == (0, 1000)
    assert steps[1] - steps[0] < steps[-1] - steps[-2]


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "examples/runs").glob("*.toml")), ids=lambda p: p.stem
)
def test_the_runs_that_ship_are_valid(path: Path) -> None:
    run = read_run(path)
    assert run.model_config_for(4096, 17).width
