"""`pellucid spectrum` as a user types it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from pellucid.cli.show_spectrum import show
from pellucid.model.config import Linear
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import save
from pellucid.spectra import measure
from tests.cli.running import run
from tests.spectra.made_up import spectra


def saved(folder: Path, name: str, **changes: Any) -> Path:
    config = preset(name).model_copy(update=changes)
    return save(Model(config, Transformer(config, seed=0).eval()), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models without a tokenizer, and files to read."""
    made = tmp_path_factory.mktemp("spectra")
    saved(made / "gpt2", "tiny-gpt2")
    saved(made / "t5", "tiny-t5")
    saved(made / "linear", "tiny-original", attention=Linear())
    ids = torch.randint(0, 96, (2, 24), generator=torch.Generator().manual_seed(0)).tolist()
    (made / "ids.json").write_text(json.dumps(ids[0]))
    (made / "more.json").write_text(json.dumps(ids[1][:20]))
    (made / "text.txt").write_text("a text")
    (made / "empty.txt").write_text(" \n")
    (made / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (made / "words.json").write_text('["a"]')
    (made / "broken.json").write_text("[1, 2")
    return made


@pytest.fixture(scope="module")
def answer(folder: Path) -> dict[str, Any]:
    result = run("spectrum", folder / "gpt2", "--ids", folder / "ids.json", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_the_json_is_what_python_gives(folder: Path, answer: dict[str, Any]) -> None:
    import pellucid

    ids = json.loads((folder / "ids.json").read_text())
    assert answer == json.loads(json.dumps(pellucid.spectrum(pellucid.load(folder / "gpt2"), ids).to_json()))
    assert (answer["tokens"], answer["tau"], len(answer["heads"])) == (24, [0.9, 0.95], 2 * 4)
    for head in answer["heads"]:
        assert sum(value**2 for value in head["singular_values"]) == pytest.approx(head["energy"])
        assert head["baseline"]["effective_rank"]["0.9"][0] >= 1


def test_the_table_shows_those_numbers(folder: Path, answer: dict[str, Any]) -> None:
    result = run("spectrum", folder / "gpt2", "--ids", folder / "ids.json")
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("decoder")]
    assert len(lines) == 8
    for line, head in zip(lines, answer["heads"], strict=True):
        ranks = [str(found["effective_rank"][tau][0]) for tau in ("0.9", "0.95") for found in (head, head["baseline"])]
        assert line[:8] == ["decoder", str(head["block"]), str(head["head"]), "24", *ranks]
        assert line[8] == f"{head['stable_rank']:.2f}"
        assert line[-2:] == [f"{head['sink']:.3f}", f"{head['distance']:.1f}"]
    assert "at least low, at most high" in result.stdout
    assert "Every effective rank is exact." in result.stdout


def test_a_budget_leaves_brackets_and_heads_that_have_not_settled(folder: Path) -> None:
    options = ["--method", "free", "--budget", "3", "--top", "3", "--block", "1", "--head", "0", "--tau", "0.99"]
    result = run("spectrum", folder / "gpt2", "--ids", folder / "ids.json", *options)
    row = next(line for line in result.stdout.splitlines() if line.startswith("decoder"))
    assert " 0*" in row
    assert "[" in row
    assert "*: the top values have not settled." in result.stdout
    assert "still growing when the budget was spent" in result.stdout
    assert "decoder 1 head 0" in result.stdout


def test_blocks_heads_taus_context_and_texts_are_chosen(folder: Path) -> None:
    both = ["--ids", folder / "ids.json", "--ids", folder / "more.json"]
    chosen = ["--block", "1", "--head", "0", "--head", "2", "--tau", "0.5", "--context", "16", "--no-baseline"]
    answer = json.loads(run("spectrum", folder / "gpt2", *both, *chosen, "--json").stdout)
    assert [(head["text"], head["block"], head["head"]) for head in answer["heads"]] == [
        (0, 1, 0),
        (0, 1, 2),
        (1, 1, 0),
        (1, 1, 2),
    ]
    assert all(list(head["effective_rank"]) == ["0.5"] for head in answer["heads"])
    assert all(head["tokens"] == 16 and head["baseline"] is None for head in answer["heads"])
    shown = run("spectrum", folder / "gpt2", *both, *chosen).stdout
    assert "2 texts of up to 16 tokens" in shown
    assert "No baseline was measured" in shown


def test_an_encoder_decoder_reads_pairs(folder: Path) -> None:
    pair = ["--ids", folder / "ids.json", "--target", folder / "more.json", "--no-baseline"]
    answer = json.loads(run("spectrum", folder / "t5", *pair, "--json").stdout)
    places = {(head["stack"], head["kind"], head["tokens"], head["keys"]) for head in answer["heads"]}
    assert places == {("encoder", "self", 24, 24), ("decoder", "self", 20, 20), ("decoder", "cross", 20, 24)}
    shown = run("spectrum", folder / "t5", *pair, "--block", "0").stdout
    assert "20x24" in shown
    assert "cross" in shown


def test_a_mechanism_without_softmax_is_measured_from_its_matrix(folder: Path) -> None:
    pair = ["--ids", folder / "ids.json", "--target", folder / "more.json", "--no-baseline", "--block", "0"]
    answer = json.loads(run("spectrum", folder / "linear", *pair, "--json").stdout)
    assert {head["method"] for head in answer["heads"]} == {"dense"}
    refused = run("spectrum", folder / "linear", *pair, "--method", "free")
    assert refused.returncode == 2
    assert "no matrix-free operator" in refused.stderr


def test_a_page_is_written_beside_the_json(folder: Path, tmp_path: Path) -> None:
    few = ["--ids", folder / "ids.json", "--block", "0", "--density", "--html", tmp_path / "page.html", "--json"]
    result = run("spectrum", folder / "gpt2", *few)
    assert json.loads(result.stdout)["heads"][0]["density"]["counts"]
    assert f"written to {tmp_path / 'page.html'}" in result.stderr
    assert "Effective rank" in (tmp_path / "page.html").read_text()


def test_a_text_may_be_piped_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"I love")))
    result = run("spectrum", "worked-example", "--text", "-", "--json")
    assert json.loads(result.stdout)["tokens"] == 2


@pytest.mark.parametrize("after", [0, 3, 10])
def test_an_interruption_keeps_what_was_measured(folder: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    seen: list[int] = []
    original = measure.statistics_of_matrix

    def interrupted(matrix: Any) -> Any:
        seen.append(1)
        if len(seen) > after:
            raise KeyboardInterrupt
        return original(matrix)

    monkeypatch.setattr(measure, "statistics_of_matrix", interrupted)
    result = run("spectrum", folder / "gpt2", "--ids", folder / "ids.json", "--json")
    assert result.returncode == 130
    assert f"stopped: {min(after, 8)} heads" in result.stderr
    heads = json.loads(result.stdout)["heads"] if after else []
    assert len(heads) == min(after, 8)
    assert sum(head["baseline"] is not None for head in heads) == max(after - 8, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give the text with --text FILE, or its ids with --ids FILE"),
        (["--text", "text.txt", "--ids", "ids.json"], "not both"),
        (["--text", "nowhere.txt"], "cannot be read: No such file"),
        (["--text", "empty.txt"], "is empty"),
        (["--text", "binary.txt"], "is not UTF-8"),
        (["--text", "text.txt"], "without a tokenizer"),
        (["--ids", "words.json"], "no list of whole numbers"),
        (["--ids", "broken.json"], "is not JSON"),
        (["--ids", "ids.json", "--context", "25"], "the text has 24 tokens, but a context of 25"),
        (["--ids", "ids.json", "--tau", "1"], "strictly between 0 and 1"),
        (["--ids", "ids.json", "--tau", "0"], "strictly between 0 and 1"),
        (["--ids", "ids.json", "--top", "25"], "only 24"),
        (["--ids", "ids.json", "--top", "9", "--budget", "4"], "raise the budget"),
        (["--ids", "ids.json", "--block", "7"], "2 blocks of 4 heads"),
        (["--ids", "ids.json", "--target", "more.json"], "one text, not a pair"),
        (["--ids", "ids.json", "--target", "more.json", "--target", "more.json"], "1 texts and 2 targets"),
        (["--ids", "ids.json", "--html", "no/where/page.html"], "there is no folder"),
        (["--ids", "ids.json", "--html", "/"], "is a folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_input_is_one_line_and_exit_code_two(folder: Path, arguments: list[str], said: str) -> None:
    files = {".txt", ".json", ".html"}
    result = run("spectrum", folder / "gpt2", *(folder / a if Path(a).suffix in files else a for a in arguments))
    assert result.returncode == 2, result.stdout
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout


def test_an_encoder_decoder_without_a_target_is_refused(folder: Path) -> None:
    result = run("spectrum", folder / "t5", "--ids", folder / "ids.json")
    assert (result.returncode, "pairs (source, target)" in result.stderr) == (2, True)


def shown_in(width: int) -> str:
    out = io.StringIO()
    show(spectra(), Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


def test_a_narrow_terminal_gets_fewer_columns_and_is_told() -> None:
    narrow, wide = shown_in(60), shown_in(200)
    table = [line for line in narrow.splitlines() if line.startswith("decoder")]
    assert all(len(line) <= 60 and "…" not in line for line in table)
    assert "Too narrow for rank 0.95 measured, rank 0.95 random, stable" in narrow
    assert "Too narrow" not in wide
    assert "[8, 20]" in wide
    assert wide.count("2*") == 2
