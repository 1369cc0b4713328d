"""`pellucid train`, `finetune` and `evaluate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pellucid
from pellucid.training.runfile import shown
from tests.cli.running import run
from tests.training.runs import run_of, stories, tagging_run, translation_run


def written(folder: Path, config) -> Path:
    file = folder / "run.toml"
    file.write_text(shown(config))
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    done = run("train", written(folder, run_of(folder, stories(folder))), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 20
    assert found["metrics"]["loss"] > 0
    return folder


def test_a_run_is_shown_with_changes(tmp_path: Path) -> None:
    file = written(tmp_path, run_of(tmp_path, stories(tmp_path)))
    done = run("train", file, "--show", "--set", "optimizer.rate=0.5")
    assert done.returncode == 0
    assert "rate = 0.5\n" in done.stdout
    assert not (tmp_path / "out").exists()


def test_progress_goes_to_stderr_and_the_result_to_stdout(tmp_path: Path) -> None:
    done = run("train", written(tmp_path, run_of(tmp_path, stories(tmp_path))))
    assert "tokenising the data" in done.stderr
    assert "step 20/20" in done.stderr
    assert "tokens/s" in done.stderr
    assert "20 steps" in done.stdout


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    file = written(tmp_path, run_of(tmp_path, stories(tmp_path)))
    done = run("train", file, "--set", "optimizer.rat=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pellucid: optimizer: rat: ")
    assert done.stderr.count("\n") == 1


def test_evaluation_knows_how_the_model_was_trained(trained: Path) -> None:
    done = run("evaluate", trained / "out/model", "--data", trained / "stories.txt", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"loss", "perplexity", "bits_per_byte", "documents"} <= set(found)
    assert "bits per byte" in run("evaluate", trained / "out/model", "--data", trained / "stories.txt").stdout


def test_what_a_run_held_out_can_be_evaluated_alone(trained: Path) -> None:
    found = json.loads(
        run("evaluate", trained / "out/model", "--data", trained / "stories.txt", "--held-out", "--json").stdout
    )
    assert found["documents"] < 20
    during = json.loads((trained / "out/result.json").read_text())["metrics"]
    assert found["loss"] == pytest.approx(during["loss"], rel=1e-5)


def test_evaluation_of_another_model_needs_a_run(trained: Path) -> None:
    done = run("evaluate", "worked-example", "--data", trained / "stories.txt")
    assert done.returncode == 2
    assert "--run RUN.toml" in done.stderr


def test_fine_tuning_goes_on_from_the_weights(trained: Path, tmp_path: Path) -> None:
    config = run_of(tmp_path, stories(tmp_path, seed=5), model=None)
    file = tmp_path / "run.toml"
    file.write_text(shown(config))
    assert "fine-tune" in run("train", file).stderr
    done = run("finetune", trained / "out/model", file, "--json")
    assert done.returncode == 0, done.stderr
    before = json.loads((trained / "out/result.json").read_text())["metrics"]["loss"]
    assert json.loads(done.stdout)["metrics"]["loss"] < before
    assert (
        pellucid.load(tmp_path / "out/model").encode("the")[0] == pellucid.load(trained / "out/model").encode("the")[0]
    )


def test_a_tagger_grows_from_an_encoder(tmp_path: Path) -> None:
    first = tagging_run(tmp_path, output={"folder": str(tmp_path / "first")})
    assert run("train", written(tmp_path, first)).returncode == 0
    again = tagging_run(tmp_path, model=None, data={"format": {"kind": "conllu", "label": "deprel"}})
    done = run("finetune", tmp_path / "first/model", written(tmp_path, again), "--json")
    assert done.returncode == 0, done.stderr
    assert pellucid.load(tmp_path / "out/model").labels == ("dep",)


def test_translations_are_scored_by_sacrebleu(tmp_path: Path) -> None:
    assert run("train", written(tmp_path, translation_run(tmp_path))).returncode == 0
    arguments = ("evaluate", tmp_path / "out/model", "--data", tmp_path / "pairs.tsv", "--translate", "4", "--json")
    found = json.loads(run(*arguments).stdout)
    assert 0 <= found["bleu"] <= 100
    assert found["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "char" in json.loads(run(*arguments, "--bleu-tokens", "char").stdout)["signature"]
    assert "bleu_tokens" in run(*arguments, "--bleu-tokens", "no").stderr
