"""`pellucid kv-report` as a user types it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pellucid.cli.show_kv_report import show, size
from pellucid.model.config import Linear, Tag
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.pretrained.save import save
from pellucid.spectra.kv_report import kv_report
from pellucid.spectra.kv_results import KvReport
from tests.generation.models import writer

from .running import run

TEXT = "the cat sat on the mat"
IDS = [7, 3, 12, 40, 3, 3, 25, 60, 12, 90, 5, 8]


def saved(folder: Path, name: str, **changes: Any) -> Path:
    config = preset(name).model_copy(update=changes)
    return save(Model(config, Transformer(config, seed=0).eval()), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("caches")
    saved(made / "llama", "tiny-llama")
    saved(made / "t5", "tiny-t5")
    saved(made / "linear", "tiny-llama", attention=Linear())
    saved(made / "tagger", "tiny-bert", head=Tag(labels=2))
    model = writer()
    save(model, made / "bytes")
    assert model.tokenizer is not None
    model.tokenizer.pipeline.save(str(made / "bytes" / "tokenizer.json"))
    (made / "ids.json").write_text(json.dumps(IDS))
    (made / "few.json").write_text("[1, 2, 3]")
    (made / "text.txt").write_text(TEXT)
    return made


def test_the_json_is_what_python_gives(folder: Path) -> None:
    asked = ["--rank", "2", "--rank", "5", "--window", "3", "--sinks", "1", "--context", "10", "--seed", "4"]
    result = run("kv-report", folder / "llama", "--ids", folder / "ids.json", *asked, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    wanted = kv_report(load(folder / "llama"), IDS, ranks=[2, 5], window=3, sinks=1, context=10, seed=4)
    assert json.loads(result.stdout) == json.loads(json.dumps(wanted.to_json()))


def test_the_tables_show_those_numbers(folder: Path) -> None:
    result = run("kv-report", folder / "llama", "--ids", folder / "ids.json", "--rank", "3")
    assert (result.returncode, result.stderr) == (0, "")
    found = kv_report(load(folder / "llama"), IDS, ranks=[3])
    lines = [line.split() for line in result.stdout.splitlines()]
    assert "2 x 2 blocks x 2 key-value heads x head width 8 x 4 bytes = 256 bytes per token" in result.stdout
    assert ["64", "16,384", "16", "KiB"] in lines
    (first,) = found.changes[:1]
    assert [
        *("rank", "3", f"{first.bytes:,}", f"{first.bytes / first.of:.1%}", f"{first.mean:.3g}"),
        *(f"{first.largest:.3g}", f"{first.divergence:.3g}", f"{first.loss:+.4f}", f"{first.agreement:.1%}"),
    ] in lines
    assert sum(line[:2] == ["0", "value"] for line in lines) == 1
    assert result.stdout.count("key before rotation") == 2
    assert "The cache of the first 6 tokens was altered, and the 6 after them were read with it" in result.stdout


def test_words_are_read_and_no_baseline_leaves_its_columns_out(folder: Path) -> None:
    result = run("kv-report", folder / "bytes", "--text", folder / "text.txt", "--no-baseline")
    assert f"the cache of {len(TEXT)} tokens, float64" in result.stdout
    assert "   random" not in result.stdout


def test_an_encoder_decoder_reads_a_pair(folder: Path) -> None:
    pair = ["--ids", folder / "ids.json", "--target", folder / "ids.json"]
    result = run("kv-report", folder / "t5", *pair)
    assert "cross value" in result.stdout
    assert "and its source" in result.stdout
    alone = run("kv-report", folder / "t5", *pair[:2])
    assert (alone.returncode, "pairs (source, target)" in alone.stderr) == (2, True)


def test_linear_attention_says_that_there_is_nothing_per_token(folder: Path) -> None:
    result = run("kv-report", folder / "linear", "--ids", folder / "ids.json")
    assert result.returncode == 0
    assert "sums of constant size: 0 bytes per token" in result.stdout
    assert "nothing per token" in result.stdout
    assert "rank" not in result.stdout


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", ["--ids", "ids.json", "--rank", "9"], "rank 9 is above the width 8 of a head"),
        ("llama", ["--ids", "ids.json", "--window", "0"], "a window of 0 tokens shows nothing"),
        ("llama", ["--ids", "ids.json", "--context", "99"], "the text has 12 tokens"),
        ("llama", ["--ids", "few.json"], "the text has 3 tokens"),
        ("llama", ["--text", "text.txt"], "without a tokenizer"),
        ("llama", [], "give the text with --text FILE, or its ids with --ids FILE"),
        ("llama", ["--text", "nowhere.txt"], "cannot be read"),
        ("tagger", ["--ids", "ids.json"], "`pellucid spectrum` measures its attention"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, name: str, options: list[str], message: str) -> None:
    result = run("kv-report", folder / name, *(folder / o if Path(o).suffix else o for o in options))
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def shown(report: KvReport, width: int) -> str:
    out = io.StringIO()
    show(report, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


def test_a_narrow_terminal_gets_fewer_columns_and_is_told(folder: Path) -> None:
    report = kv_report(load(folder / "llama"), IDS)
    narrow, wide = shown(report, 60), shown(report, 200)
    assert max(map(len, narrow.splitlines())) <= 60
    assert "…" not in narrow
    assert "Too narrow for rank 0.95, random" in narrow
    assert "Too narrow" not in wide


def test_sizes_are_in_binary_units() -> None:
    assert [size(count) for count in (5, 2048, 3 * 2**20, 2**31, 2**41)] == [
        "5 bytes",
        "2 KiB",
        "3 MiB",
        "2 GiB",
        "2 TiB",
    ]
