"""Fine-tuning by an adapter: over all tasks, what changes, what is written, and how it goes on."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pellucid
from pellucid import lora
from pellucid.cli.options import open_model
from pellucid.errors import ConfigError, InputError
from pellucid.training.config import RunConfig
from pellucid.training.run import Trained, train
from pellucid.training.runfile import shown
from tests.cli.running import run as command
from tests.training.processes import killed, outside, whole
from tests.training.runs import ENCODER, run_of, stories, tagging_run, translation_run

LORA = {"rank": 4, "targets": ["attention.*", "feed_forward.*"]}
FAST = {"rate": 1e-2, "decay": 0.0}
TASKS = ["language_model", "masked_language_model", "translation", "tagging", "classification"]


def classes(folder: Path) -> Path:
    file = folder / "kinds.jsonl"
    rows = [{"text": "ab" * (k % 5 + 1) + "x" * (k % 2), "label": "with" if k % 2 else "without"} for k in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run_for(task: str, folder: Path, **changes: Any) -> RunConfig:
    folder.mkdir(parents=True, exist_ok=True)
    if task == "translation":
        return translation_run(folder, **changes)
    if task == "tagging":
        return tagging_run(folder, **changes)
    if task == "classification":
        data = {"format": {"kind": "jsonl"}, "holdout": 0.2, "holdout_by": "end"}
        return run_of(folder, classes(folder), **{"model": ENCODER, "task": {"kind": task}, "data": data} | changes)
    model = {"model": ENCODER} if task == "masked_language_model" else {}
    return run_of(folder, stories(folder), **model | {"task": {"kind": task}} | changes)


def base_of(task: str, folder: Path, **changes: Any) -> Path:
    done = train(run_for(task, folder / "base", schedule={"steps": 10, "warmup": 2}, **changes))
    assert done.model is not None
    return done.model


# --- every task ---


@pytest.fixture(scope="module", params=TASKS)
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Trained]:
    """The folder of a run that adapts a base to its own task, that base, and what came out, merged too."""
    folder = tmp_path_factory.mktemp(request.param)
    base = base_of(request.param, folder)
    run = run_for(request.param, folder, lora=LORA, optimizer=FAST, model=None, output={"merge": True})
    run = run.model_copy(update={"output": run.output.model_copy(update={"folder": str(folder / "out")})})
    return folder, base, train(run, base=pellucid.load(base))


def test_it_learns_with_few_parameters(tuned: tuple[Path, Path, Trained]) -> None:
    _, base, done = tuned
    before = json.loads((base.parent / "result.json").read_text())
    assert done.metrics["loss"] < before["metrics"]["loss"]
    assert 0 < done.trained < done.parameters / 2


def test_a_checkpoint_holds_the_adapter_alone(tuned: tuple[Path, Path, Trained]) -> None:
    folder, _, done = tuned
    kept = load_file(folder / "out/checkpoints/step-00000020/model.safetensors")
    assert sum(tensor.numel() for tensor in kept.values()) == done.trained
    assert all(".change." in name for name in kept)


def test_the_adapter_on_its_base_is_the_merged_model(tuned: tuple[Path, Path, Trained]) -> None:
    _, base, done = tuned
    adapted, merged = open_model(str(done.adapter)), pellucid.load(done.model)
    assert adapted.origin.folder == base
    untouched = pellucid.load(base).network.state_dict()
    own = adapted.network.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in untouched.items())
    plain = adapted.plain().network.state_dict()
    assert all(torch.equal(plain[name], tensor) for name, tensor in merged.network.state_dict().items())
    assert any(not torch.equal(plain[name], tensor) for name, tensor in untouched.items())


def test_evaluation_with_the_adapter_equals_that_of_the_merged_model(tuned: tuple[Path, Path, Trained]) -> None:
    folder, base, done = tuned
    data = next(path for path in folder.iterdir() if path.is_file())
    ways = [(base, "--adapter", done.adapter), (done.adapter,), (done.model,)]
    found = [command("evaluate", *way, "--data", data, "--json") for way in ways]
    assert all(each.returncode == 0 for each in found), found[0].stderr
    losses = [json.loads(each.stdout)["loss"] for each in found]
    assert losses[0] == losses[1]
    # The sums of at most 32 numbers in float32 round differently, in each of a few products.
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


# --- a new head ---


def test_a_new_head_trains_whole_and_goes_with_the_adapter(tmp_path: Path) -> None:
    base = base_of("masked_language_model", tmp_path, model={**ENCODER, "context": 64})
    run = tagging_run(tmp_path, lora=LORA, optimizer=FAST, model=None, schedule={"steps": 60, "warmup": 4})
    done = train(run, base=pellucid.load(base))
    assert "head.to_labels is new" in done.notes[-1]
    assert done.model is None
    opened = open_model(str(done.adapter))
    assert opened.labels == ("DET", "NOUN", "PROPN", "VERB")
    assert lora.adapters(opened)["default"].whole == ("head.to_labels",)
    data = ("--data", tmp_path / "tagged.conllu", "--held-out", "--json")
    found = json.loads(command("evaluate", base, "--adapter", done.adapter, *data).stdout)
    assert found["accuracy"] == done.metrics["accuracy"]
    assert found["loss"] < math.log(4)
    assert not any(name.startswith("head.to_labels") for name in pellucid.load(base).network.state_dict())


def test_other_labels_of_the_same_number_need_a_new_head_and_the_same_ones_keep_it(tmp_path: Path) -> None:
    base = base_of("tagging", tmp_path)
    same = tagging_run(tmp_path, lora=LORA, model=None, schedule={"steps": 2, "warmup": 0})
    assert len(train(same, base=pellucid.load(base)).notes) == 1
    renamed = (tmp_path / "tagged.conllu").read_text().replace("VERB", "ACTION")
    (tmp_path / "renamed.conllu").write_text(renamed)
    data = {**same.data.model_dump(), "train": ["renamed.conllu"]}
    other = RunConfig(**same.model_dump() | {"data": data, "output": {"folder": str(tmp_path / "other")}})
    done = train(other, base=pellucid.load(base))
    assert "head.to_labels is new" in done.notes[-1]
    assert open_model(str(done.adapter)).labels == ("ACTION", "DET", "NOUN", "PROPN")


# --- PEFT ---


@pytest.mark.parametrize(
    ("before", "task", "name"),
    [
        ("tagging", "tagging", "tiny-bert"),
        ("masked_language_model", "tagging", "tiny-bert"),
        ("language_model", "language_model", "tiny-llama"),
    ],
)
def test_peft_opens_what_a_run_leaves(before: str, task: str, name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    words = {"head": {"kind": "unembed", "transform": "gelu", "bias": True}} if before.startswith("masked") else {}
    base = base_of(before, tmp_path, model={"preset": name, "context": 64, **words})
    pellucid.export(pellucid.load(base), tmp_path / "theirs")
    run = run_for(task, tmp_path, lora={**LORA, "targets": ["attention.*"]}, optimizer=FAST, model=None)
    done = train(run, base=pellucid.load(tmp_path / "theirs"))
    assert done.adapter is not None
    assert {path.name for path in done.adapter.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    kind = "AutoModelForTokenClassification" if task == "tagging" else "AutoModelForCausalLM"
    options = {"num_labels": 4} if task == "tagging" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(transformers, kind).from_pretrained(tmp_path / "theirs", **options)
        theirs = peft.PeftModel.from_pretrained(theirs, done.adapter).eval()
    ids = torch.tensor([[5, 6, 7, 8, 3]])
    with torch.no_grad():
        expected = theirs(input_ids=ids).logits
    torch.testing.assert_close(open_model(str(done.adapter)).logits(ids), expected, rtol=0, atol=2e-5)


# --- going on ---

# Dropout in the adapter, a running mean and the best weights: everything that has a state.
STATEFUL = {
    "lora": {**LORA, "dropout": 0.1, "targets": ["attention.to_query+to_key+to_value", "up"]},
    "optimizer": {**FAST, "average": 0.9},
    "evaluation": {"every": 10, "best": True},
    "record": {"points": 2, "tokens": 16},
}


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The same run whole, killed four times, and by two processes."""
    folder = tmp_path_factory.mktemp("spread")
    base = base_of("language_model", folder)
    schedule = {"steps": 60, "warmup": 4}
    own = {"batch": {"tokens": 256, "context": 64, "micro": 64}, "schedule": schedule, "model": None, **STATEFUL}
    runs = {name: run_for("language_model", folder / name, **own) for name in ("whole", "killed", "two")}
    moments = ["tokenising", "writing", "renamed", "running"]
    jobs = [
        whole(runs["whole"], base=base),
        killed(runs["killed"], moments, base=base),
        whole(runs["two"], 2, base=base),
    ]
    return folder, dict(zip(runs, outside(*jobs, folder=folder), strict=True))


def adapter_bytes(folder: Path) -> bytes:
    return next((folder / "out/adapter").glob("*.safetensors")).read_bytes()


def test_a_killed_run_ends_with_the_same_bits(spread: tuple[Path, dict[str, Any]]) -> None:
    folder, found = spread
    assert found["whole"]["codes"] == found["killed"]["codes"] == [0]
    assert all(found["killed"]["killed"])
    assert adapter_bytes(folder / "killed") == adapter_bytes(folder / "whole")


def test_two_processes_learn_what_one_learns(spread: tuple[Path, dict[str, Any]]) -> None:
    _, found = spread
    assert found["two"]["codes"] == [0, 0]
    losses = [torch.tensor([entry["loss"] for entry in found[name]["log"]]) for name in ("two", "whole")]
    torch.testing.assert_close(*losses, rtol=0, atol=1e-4)


# --- what is refused ---


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_of("language_model", tmp_path_factory.mktemp("small"))


def test_a_target_that_is_not_there_is_told_before_anything_is_written(small: Path, tmp_path: Path) -> None:
    run = run_for("language_model", tmp_path, lora={"targets": ["to_querry"]}, model=None)
    with pytest.raises(ConfigError, match=r"no linear map is called 'to_querry'; the nearest are to_query.*instead"):
        train(run, base=pellucid.load(small))
    assert not (tmp_path / "out").exists()


def test_lora_needs_a_model_without_adapters(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pellucid finetune MODEL"):
        train(run_for("language_model", tmp_path, lora={}))
    base = pellucid.load(small)
    lora.add(base)
    with pytest.raises(InputError, match="--merge"):
        train(run_for("language_model", tmp_path, lora={}, model=None), base=base)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"lora": {"rang": 4}}, "rang"),
        ({"lora": {"rank": 0}}, "rank"),
        ({"lora": {}, "compute": {"device": "cpu", "strategy": "fsdp"}}, "set it to ddp"),
        ({"output": {"merge": True}}, "output.merge is for a run with lora"),
    ],
)
def test_wrong_runs_are_refused(part: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run_for("language_model", tmp_path, **part)


def test_a_run_goes_on_with_its_own_base_and_adapter_alone(small: Path, tmp_path: Path) -> None:
    run = run_for("language_model", tmp_path, lora={"rank": 2}, model=None, schedule={"steps": 2, "warmup": 0})
    base = pellucid.load(small)
    train(run, base=base)
    assert train(run, base=base).steps == 2
    other = replace(base, network=pellucid.Transformer(base.config, seed=1))
    for changed, model, what in (
        (run, other, "base"),
        (run.model_copy(update={"lora": lora.Lora(rank=3)}), base, "lora"),
        (run.model_copy(update={"lora": None}), base, "lora, base"),
    ):
        with pytest.raises(ConfigError, match=f"its {what} differs"):
            train(changed, base=model)


# --- the command ---


def test_the_command_line_asks_for_an_adapter(small: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(shown(run_for("language_model", tmp_path, model=None)))
    assert "[lora]" not in command("finetune", small, file, "--show").stdout
    assert "[lora]\nrank = 8\n" in command("finetune", small, file, "--lora", "--show").stdout
    assert "[lora]\nrank = 3\n" in command("finetune", small, file, "--lora", "3", "--show").stdout
    assert "as in --lora 3" in command("finetune", small, file, "3").stderr
    done = command("finetune", small, file, "--lora", "2", "--merge", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert Path(found["model"]).is_dir()
    assert Path(found["adapter"]).is_dir()
    assert command("generate", found["adapter"], "the", "--max-tokens", "3").returncode == 0


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    run = run_for("language_model", tmp_path, lora={"ranks": {"decoder.0.*": 2}})
    file = tmp_path / "again.toml"
    file.write_text(shown(run))
    from pellucid.training.runfile import read_run

    assert read_run(file).lora == run.lora
