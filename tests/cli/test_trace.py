"""`pellucid trace` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import save
from tests.cli.running import run


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a tokenizer: it is traced by ids."""
    config = preset("tiny-llama")
    model = Model(config, Transformer(config, seed=0).eval())
    return save(model, tmp_path_factory.mktemp("checkpoints") / "llama")


def test_the_worked_example_ends_in_love() -> None:
    result = run("trace", "worked-example", "I love", "--json")
    answer = json.loads(result.stdout)
    assert answer["tokens"] == ["I", "love"]
    assert answer["prediction"][0]["token"] == "love"
    assert answer["prediction"][0]["probability"] == pytest.approx(0.595735, abs=1e-6)
    assert max(step["error"] for step in answer["steps"]) < 1e-12


def test_the_terminal_shows_every_step() -> None:
    result = run("trace", "worked-example", "I love")
    assert result.returncode == 0, result.stderr
    for site in ("embedding.sum", "decoder.0.attention.weights", "decoder.0.residual.out", "logits"):
        assert site in result.stdout


def test_one_cell_as_arithmetic() -> None:
    result = run("trace", "worked-example", "I love", "--explain", "decoder.0.attention.scores[0,1,0]")
    assert result.returncode == 0, result.stderr
    assert "0.1645" in result.stdout


def test_the_note_beside_the_exact_numbers() -> None:
    answer = json.loads(run("trace", "worked-example", "I love", "--against-note", "--json").stdout)
    assert "fresh" in json.dumps(answer)


@pytest.mark.parametrize("option", [["--norm", "post"], ["--norm", "pre"], ["--mask", "causal"]], ids=" ".join)
def test_the_worked_example_has_its_variants(option: list[str]) -> None:
    answer = json.loads(run("trace", "worked-example", "I love", "--json", *option).stdout)
    assert answer["prediction"][0]["token"] == "love"


def test_sites_blocks_and_heads_are_chosen(llama: Path) -> None:
    result = run("trace", llama, "5 6 7 8", "--ids", "--json", "--site", "*.weights", "--block", "1", "--head", "0")
    steps = json.loads(result.stdout)["steps"]
    assert [(step["site"], step["shape"]) for step in steps] == [("decoder.1.attention.weights", [1, 1, 4, 4])]


def test_values_can_be_left_out(llama: Path) -> None:
    answer = json.loads(run("trace", llama, "5 6 7", "--ids", "--json", "--no-values").stdout)
    assert all("values" not in step and "error" in step for step in answer["steps"])


def test_a_page_is_written(llama: Path, tmp_path: Path) -> None:
    result = run("trace", llama, "5 6 7", "--ids", "--html", tmp_path / "page.html")
    assert result.returncode == 0, result.stderr
    assert "decoder.1.residual.out" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "option",
    [
        ["--temperature", "2"],
        ["--no-scaling"],
        ["--similarity", "cosine"],
        ["--similarity", "distance"],
        ["--similarity", "keys-queries"],
        ["--relu"],
        ["--mask", "none"],
        ["--no-positions"],
        ["--norm", "identity"],
    ],
    ids=" ".join,
)
def test_what_if_compares_with_the_original(llama: Path, option: list[str]) -> None:
    result = run("trace", llama, "5 6 7 8", "--ids", "--json", *option)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["", "--ids"], "empty"),
        (["1 two", "--ids"], "whole numbers"),
        (["1 2", "--ids", "--site", "decoder.0.atention.query"], "decoder.0.attention.query"),
        (["1 2", "--ids", "--block", "7"], "blocks 0 to 1"),
        (["1 2", "--ids", "--head", "9"], "heads 0 to 3"),
        (["1 2", "--ids", "--tokens", "5:9"], "the text has 2"),
        (["1 2", "--ids", "--tokens", "x"], "--tokens wants A:B"),
        (["1 2", "--ids", "--target", "3"], "reads one text"),
        (["1 2", "--ids", "--against-note"], "worked-example"),
        (["hello"], "without a tokenizer"),
        (["1 2", "--ids", "--relu", "--no-scaling"], "one what-if at a time"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_input_is_one_line_and_exit_code_two(llama: Path, arguments: list[str], said: str) -> None:
    result = run("trace", llama, *arguments)
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
