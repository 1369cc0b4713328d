"""The commands as a user types them: output, JSON, exit codes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.pretrained.save import export
from tests.cli.running import run


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = preset("tiny-gpt2")
    model = Model(config, Transformer(config, seed=0).eval())
    return export(model, tmp_path_factory.mktemp("checkpoints") / "gpt2", family="gpt2")


def test_selftest_prints_a_table_and_succeeds(gpt2: Path) -> None:
    result = run("selftest", gpt2)
    assert result.returncode == 0, result.stderr
    assert "caching changes nothing" in result.stdout
    assert "FAILS" not in result.stdout


def test_selftest_compares_with_transformers(gpt2: Path) -> None:
    result = run("selftest", gpt2, "--json", "--dtype", "float64")
    answer = json.loads(result.stdout)
    assert answer["holds"]
    assert answer["dtype"] == "float64"
    peer = answer["checks"][-1]
    assert peer["name"] == "scores equal transformers'"
    assert peer["error"] <= 1e-9


def test_selftest_of_a_broken_model_exits_with_one(gpt2: Path, tmp_path: Path) -> None:
    """Infinite weights pass the reader and fail every comparison."""
    model = load(gpt2)
    with torch.no_grad():
        model.network.final.normalize.weight.fill_(torch.inf)
    result = run("selftest", export(model, tmp_path / "broken"), "--json")
    assert result.returncode == 1
    assert not json.loads(result.stdout)["holds"]


def test_export_then_import_keeps_every_tensor(gpt2: Path, tmp_path: Path) -> None:
    assert run("export", gpt2, tmp_path / "out").returncode == 0
    result = run("import", tmp_path / "out", tmp_path / "back", "--json")
    assert json.loads(result.stdout) == {"folder": str(tmp_path / "back")}
    before, after = load(gpt2).network.state_dict(), load(tmp_path / "back").network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_export_in_another_dtype_says_so(gpt2: Path, tmp_path: Path) -> None:
    assert run("export", gpt2, tmp_path / "half", "--dtype", "bfloat16").returncode == 0
    assert json.loads((tmp_path / "half" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert load(tmp_path / "half").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["selftest", "/nowhere/at all"], "neither a folder nor a hub id"),
        (["selftest", "MODEL", "--device", "abacus"], "is not a device"),
        (["selftest", "MODEL", "--device", "cuda:99"], "cuda"),
        (["export", "MODEL", "MODEL"], "exists and is not empty"),
        (["export", "MODEL", "NEW", "--family", "gtp2"], "'gtp2' is not a family"),
        (["import", "MODEL", "NEW", "--family", "nothing"], "'nothing' is not a family"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_input_is_one_line_and_exit_code_two(
    gpt2: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    places = {"MODEL": gpt2, "NEW": tmp_path / "new"}
    result = run(*(places.get(argument, argument) for argument in arguments))
    assert result.returncode == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not result.stdout
    assert not (tmp_path / "new").exists()


def test_models_lists_every_preset() -> None:
    from pellucid.model.presets import PRESETS

    rows = json.loads(run("models", "--json").stdout)
    presets = [row for row in rows if not row.get("bundled")]
    assert [row["name"] for row in presets] == list(PRESETS)
    assert next(row["parameters"] for row in presets if row["name"] == "gpt2-small") == 124_439_808


def test_models_lists_the_bundled_models_first() -> None:
    rows = json.loads(run("models", "--json").stdout)
    assert [row["name"] for row in rows if row.get("bundled")] == [row["name"] for row in rows][:12]
    assert (rows[0]["name"], rows[11]["name"]) == ("stories", "worked-example")
    # Embeddings 4 x 3, positions 2 x 3, four maps 3 x 3 and two of 3 x 4.
    assert rows[11]["parameters"] == 12 + 6 + 4 * 9 + 2 * 12 == 78
    assert all(row["description"] for row in rows[:12])
    shown = run("models").stdout
    assert shown.index("worked-example") < shown.index("gpt2-small")


def test_models_shows_the_card_of_one() -> None:
    card = json.loads(run("models", "translate-en-zh", "--json").stdout)
    assert {"data", "licence", "run", "scores", "samples"} <= set(card)
    shown = run("models", "translate-en-zh").stdout
    assert "examples/runs/translate-en-zh.toml" in shown
    assert "CC BY 2.0" in shown
    assert card["samples"][0]["written"] in shown


def test_models_refuses_a_name_that_is_not_bundled() -> None:
    result = run("models", "gpt2-small")
    assert result.returncode == 2
    assert "'gpt2-small' is not a bundled model; there are stories, " in result.stderr
