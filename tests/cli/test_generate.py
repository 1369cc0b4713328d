"""`pellucid generate` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from pellucid.generation.beam import Searched
from pellucid.generation.decode import generate
from pellucid.generation.request import Stop
from pellucid.model.config import Classify, Head, Pool, Tag, Unembed
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.pretrained.save import save
from tests.generation.models import writer
from tests.pretrained.checkpoints import GPT2, write

from .running import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "gpt2", GPT2, "gpt2")


@pytest.fixture(scope="module")
def bytes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes bytes, most of which are no character alone."""
    place = tmp_path_factory.mktemp("models") / "bytes"
    model = writer()
    save(model, place)
    assert model.tokenizer is not None
    model.tokenizer.pipeline.save(str(place / "tokenizer.json"))
    return place


def test_text_is_what_python_generates(bytes_folder: Path):
    wanted = generate(load(bytes_folder), "añ", max_tokens=12)[0].text
    done = run("generate", bytes_folder, "añ", "--max-tokens", "12")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{wanted}\n"


def test_json_is_the_result_and_nothing_else(folder: Path):
    done = run("generate", folder, "the cat", "a b", "--max-tokens", "4", "--json", "--stats")
    found = json.loads(done.stdout)
    assert [each["prompt"] for each in found] == ["the cat", "a b"]
    assert found == [each.to_json() for each in generate(load(folder), ["the cat", "a b"], max_tokens=4)]
    assert "decode:" in done.stderr


def test_options_reach_the_generation(folder: Path):
    words = ["--temperature", "0.9", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.01", "--repetition-penalty", "1.2"]
    done = run("generate", folder, "the cat", "--samples", "3", "--seed", "4", "--max-tokens", "5", *words)
    assert len(done.stdout.splitlines()) == 3
    assert done.stdout.startswith("[0.0] ")
    best = run("generate", folder, "the cat", "--beams", "3", "--length-penalty", "0.5", "--max-tokens", "4")
    assert (best.returncode, len(best.stdout.splitlines())) == (0, 1)
    plain, slow = (run("generate", folder, "the cat", "--max-tokens", "5", *more) for more in ([], ["--no-cache"]))
    assert plain.stdout == slow.stdout


def test_stops_end_the_text(folder: Path):
    model = load(folder)
    whole = generate(model, "the cat", max_tokens=8)[0]
    token = whole.ids[3]
    wanted = generate(model, "the cat", max_tokens=8, stop=Stop(tokens=(token,)))[0]
    for stop in (str(token), model.tokenizer.token(token) if token < model.tokenizer.size else str(token)):
        done = run("generate", folder, "the cat", "--max-tokens", "8", "--stop-token", stop)
        assert done.stdout == f"{wanted.text}\n"


def test_ids_instead_of_words(folder: Path):
    done = run("generate", folder, "8 9", "--ids", "--max-tokens", "3", "--json")
    assert json.loads(done.stdout)[0]["prompt_ids"] == [8, 9]
    assert run("generate", folder, "8 x", "--ids").stderr == (
        "pellucid: --ids wants whole numbers with spaces between them, not '8 x'\n"
    )


def test_a_model_without_a_tokenizer_writes_ids(tmp_path: Path):
    save(Model(GPT2, Transformer(GPT2, seed=0).eval()), tmp_path / "bare")
    done = run("generate", tmp_path / "bare", "8 9", "--ids", "--max-tokens", "3")
    assert len(done.stdout.split()) == 3
    many = run("generate", tmp_path / "bare", "8 9", "7", "--ids", "--max-tokens", "3")
    assert [line.split()[0] for line in many.stdout.splitlines()] == ["[0.0]", "[1.0]"]


def test_stats_give_rates_the_formula_and_the_bandwidth(folder: Path):
    lines = run("generate", folder, "the cat", "--max-tokens", "6", "--stats").stderr.splitlines()
    assert lines[0].startswith("prefill: 2 tokens")
    assert lines[1].startswith("decode: 5 tokens")
    assert lines[2] == "cache: 256 bytes per token; 2 x blocks x key-value heads x head width x bytes = 256"
    assert "GB/s that a copy reaches" in lines[3]


def test_int8_prints_its_loss(folder: Path):
    done = run("generate", folder, "the cat sat", "--max-tokens", "6", "--quantize", "int8")
    assert done.returncode == 0
    assert done.stderr.startswith("int8: mean log-probability -")
    assert "tokens of the first text" in done.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_stream_prints_what_there_is(folder: Path, as_json: bool):
    from pellucid.generation.lanes import Drawn

    take, count = Drawn.take, 0

    def interrupted(self: Drawn, scores: Any) -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        take(self, scores)

    wanted = generate(load(folder), "the cat", max_tokens=3)[0]
    with patch.object(Drawn, "take", interrupted):
        done = run("generate", folder, "the cat", "--max-tokens", "9", *(["--json"] if as_json else []))
    assert done.returncode == 130
    assert done.stderr == ""
    if as_json:
        assert json.loads(done.stdout)[0]["continuations"][0]["ids"] == list(wanted.ids)
    else:
        assert done.stdout == f"{wanted.text}\n"


def stopping_after(count: int) -> Any:
    """Ctrl-C in the middle of a step of a beam search, after so many were taken."""
    go_on, steps = Searched._go_on, iter(range(count))

    def interrupted(self: Searched, *arguments: Any) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        go_on(self, *arguments)

    return patch.object(Searched, "_go_on", interrupted)


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupted_search_prints_the_best_text_that_had_ended(folder: Path, as_json: bool):
    model = load(folder)
    token = generate(model, "the cat", max_tokens=2, beams=3)[0].ids[3]
    wanted = generate(model, "the cat", max_tokens=12, beams=3, stop=Stop(tokens=(token,)))[0]
    options = ["--max-tokens", "12", "--beams", "3", "--stop-token", str(token), *(["--json"] if as_json else [])]
    with stopping_after(len(wanted.logprobs)):
        done = run("generate", folder, "the cat", *options)
    assert (done.returncode, done.stderr) == (130, "")
    if as_json:
        assert json.loads(done.stdout) == [wanted.to_json()]
    else:
        assert done.stdout == f"{wanted.text}\n"


@pytest.mark.parametrize("steps", [0, 2])
def test_an_interrupted_search_says_that_nothing_has_ended(folder: Path, steps: int):
    with stopping_after(steps):
        done = run("generate", folder, "the cat", "a b", "--max-tokens", "9", "--beams", "2")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped: no text of prompts 0, 1 had ended yet\n"
    with stopping_after(steps):
        done = run("generate", folder, "the cat", "--max-tokens", "9", "--beams", "2", "--json")
    assert json.loads(done.stdout)[0]["continuations"] == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-tokens", "0"], "max_tokens is 0: give 1 or more"),
        (["--max-tokens", "50"], "do not fit in the model's 20 positions"),
        (["a " * 21], "a prompt has 21 tokens, but the model has 20 positions"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--stop-token", "nope"], "stop token 'nope' is not in the vocabulary"),
        (["--top-p", "2"], "top_p is 2.0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, options: list[str], message: str):
    done = run("generate", folder, "the cat", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_empty_prompt_is_refused(folder: Path):
    assert "prompt 0 is empty" in run("generate", folder, "").stderr


@pytest.mark.parametrize(
    ("head", "verb"),
    [
        (Tag(labels=2), "model.tag(text)"),
        (Classify(labels=2), "model.classify(text)"),
        (Pool(), "model.embed(texts)"),
        (Unembed(), "model.logits(ids)"),
    ],
)
def test_an_encoder_says_which_verb_and_which_command_fit(tmp_path: Path, head: Head, verb: str):
    config = preset("tiny-bert").model_copy(update={"head": head})
    save(Model(config, Transformer(config, seed=0).eval()), tmp_path / "encoder")
    done = run("generate", tmp_path / "encoder", "5 6", "--ids")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"se {verb} in Python; `pellucid trace` shows its scores" in done.stderr
    assert run("trace", tmp_path / "encoder", "5 6", "--ids").returncode == 0
