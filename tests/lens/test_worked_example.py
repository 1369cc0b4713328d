"""The worked example of note 000: its exact numbers, its variants, and the note's own numbers beside them."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from rich.console import Console

import pellucid
from pellucid.cli.show_note import show
from pellucid.errors import InputError
from pellucid.lens.note import NoteComparison, against_note, mark_of
from pellucid.lens.trace import Trace, trace
from pellucid.lens.worked_example import MaskChoice, NormChoice, worked_example
from pellucid.pretrained.bundled import bundled_folder
from pellucid.pretrained.bundled import worked_example as script
from pellucid.pretrained.save import save

VARIANTS: list[tuple[NormChoice, MaskChoice]] = [
    (norm, mask) for norm in ("identity", "pre", "post") for mask in ("none", "causal")
]
EXACT = {
    "embedding.sum": [[0.3, 0.6, 0.0], [-0.1, 1.0, 0.6]],
    "decoder.0.attention.key": [[0.15, 0.3, 0.0], [-0.05, 0.5, 0.3]],
    "decoder.0.attention.scores": [[0.129904, 0.164545], [0.164545, 0.395485]],
    "decoder.0.attention.weights": [[0.491341, 0.508659], [0.442520, 0.557480]],
    "decoder.0.attention.output": [[0.096536, 0.803464, 0.305196], [0.077008, 0.822992, 0.334488]],
    "decoder.0.residual.mid": [[0.396536, 1.403464, 0.305196], [-0.022992, 1.822992, 0.934488]],
    "decoder.0.feed_forward.hidden": [
        [-0.149480, 0.469827, 0.582771, -0.021386],
        [-0.086551, 0.448850, 0.918394, -0.189197],
    ],
    "decoder.0.feed_forward.active": [[0, 0.469827, 0.582771, 0], [0, 0.448850, 0.918394, 0]],
    "decoder.0.feed_forward.output": [[-0.127849, 0.327074, -0.035688], [-0.230633, 0.457127, 0.002069]],
    "decoder.0.residual.out": [[0.268688, 1.730538, 0.269507], [-0.253625, 2.280119, 0.936557]],
}
PROBABILITIES = {
    "identity": [0.165781, 0.595735, 0.064224, 0.174259],
    "post": [0.213957, 0.577155, 0.056755, 0.152133],
}


@pytest.fixture(scope="module")
def walked() -> Trace:
    return trace(worked_example(), "I love")


@pytest.fixture(scope="module")
def comparison(walked: Trace) -> NoteComparison:
    return against_note(walked)


def assert_close(value: torch.Tensor, wanted: object) -> None:
    torch.testing.assert_close(value, torch.tensor(wanted, dtype=torch.float64), atol=1e-6, rtol=0)


# --- the model ---


def test_the_shipped_files_are_what_the_script_writes(tmp_path: Path) -> None:
    made, shipped = script.write(tmp_path / "made"), bundled_folder("worked-example")
    assert sorted(file.name for file in made.iterdir()) == sorted(file.name for file in shipped.iterdir())
    for file in made.iterdir():
        assert file.read_bytes() == (shipped / file.name).read_bytes(), file.name


def test_the_script_rewrites_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pellucid.json").write_text("outdated")
    monkeypatch.setattr("sys.argv", ["worked_example", str(tmp_path)])
    script.main()
    assert pellucid.load(tmp_path).config == script.CONFIG


def test_it_opens_by_name() -> None:
    model = pellucid.load("worked-example")
    assert model.dtype == torch.float64
    assert model.encode("I love") == [0, 1]
    assert model.decode([0, 1, 2, 3]) == "I love you <pad>"
    assert_close(model.logits([[0, 1]])[0, -1], [0.995679, 2.274806, 0.047391, 1.045551])


def test_a_folder_in_the_working_directory_hides_the_bundled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(worked_example("post"), tmp_path / "worked-example")
    monkeypatch.chdir(tmp_path)
    assert pellucid.load("worked-example").config.norm.kind == "layer_norm"
    assert worked_example().config.norm.kind == "identity"


def test_a_text_longer_than_its_two_positions_is_refused() -> None:
    with pytest.raises(InputError, match="3 positions, but the model has 2"):
        trace(pellucid.load("worked-example"), "I love you")


# --- its numbers ---


@pytest.mark.parametrize("site", EXACT)
def test_every_step_has_its_exact_value(walked: Trace, site: str) -> None:
    value = walked[site].value
    assert_close(value.reshape(-1, *value.shape[-2:])[0], EXACT[site])


def test_the_logits_are_exact(walked: Trace) -> None:
    assert_close(walked["logits"].value[0, -1], [0.995679, 2.274806, 0.047391, 1.045551])


@pytest.mark.parametrize("norm", PROBABILITIES)
def test_the_probabilities_are_exact(norm: NormChoice) -> None:
    assert_close(trace(worked_example(norm), "I love")["probabilities"].value[0, -1], PROBABILITIES[norm])


@pytest.mark.parametrize(("norm", "mask"), VARIANTS)
def test_every_variant_predicts_love_and_every_step_checks_out(norm: NormChoice, mask: MaskChoice) -> None:
    result = trace(worked_example(norm, mask), "I love")
    assert result.prediction[0][0] == "love"
    assert result.error < 1e-12


@pytest.mark.parametrize("norm", ["identity", "pre", "post"])
def test_a_mask_changes_the_first_row_and_not_one_bit_of_the_last(norm: NormChoice) -> None:
    free, masked = (trace(worked_example(norm, mask), "I love") for mask in ("none", "causal"))
    assert masked["decoder.0.attention.weights"].value[0, 0, 0].tolist() == [1, 0]
    assert torch.equal(free["logits"].value[0, -1], masked["logits"].value[0, -1])
    assert not torch.equal(free["logits"].value[0, 0], masked["logits"].value[0, 0])


def test_a_norm_hides_positions_that_shift_all_numbers_alike() -> None:
    changes = {}
    for norm in ("identity", "pre", "post"):
        model = worked_example(norm)
        before = model.logits([[0, 1]])
        with torch.no_grad():
            model.network.get_parameter("decoder.positions.table.weight").zero_()
        changes[norm] = float((model.logits([[0, 1]]) - before).abs().max())
    assert changes["identity"] == pytest.approx(0.418, abs=5e-4)
    assert changes["post"] == pytest.approx(6.7e-3, abs=5e-5)
    assert changes["pre"] < 1e-12


def test_only_the_pre_norm_variant_has_a_final_norm() -> None:
    assert [worked_example(norm).config.has_final_norm for norm in ("identity", "pre", "post")] == [False, True, False]
    norm = worked_example("pre").network.final.normalize
    assert (norm.eps, norm.weight.tolist(), norm.bias.tolist()) == (1e-5, [1, 1, 1], [0, 0, 0])


# --- the note's numbers beside them ---


def test_fifty_of_84_entries_are_wrong_and_twenty_of_those_are_fresh_mistakes(comparison: NoteComparison) -> None:
    assert len(comparison.entries) == 84
    assert (comparison.right, comparison.wrong, comparison.fresh, comparison.inherited) == (34, 50, 20, 30)


def test_each_step_has_its_share_of_right_fresh_and_inherited(comparison: NoteComparison) -> None:
    found = {}
    for step in comparison.steps:
        marks = Counter(entry.mark for entry in step.entries)
        found[step.name] = (marks["right"], marks["fresh mistake"], marks["inherited"])
    assert found == {
        "embedding sum": (6, 0, 0),
        "query": (6, 0, 0),
        "key": (6, 0, 0),
        "value": (6, 0, 0),
        "unscaled scores": (4, 0, 0),
        "scores": (3, 1, 0),
        "weights": (0, 4, 0),
        "attention output": (0, 0, 6),
        "residual after attention": (0, 0, 6),
        "hidden": (0, 8, 0),
        "active": (2, 0, 6),
        "feed-forward output": (0, 4, 2),
        "residual after feed-forward": (0, 0, 6),
        "logits": (0, 0, 4),
        "probabilities": (1, 3, 0),
    }


def test_a_printed_number_that_is_right_by_luck_counts_as_right(comparison: NoteComparison) -> None:
    """The note's own logits give 0.59 for 'love'; it prints 0.60, as the exact ones do."""
    entry = comparison["probabilities"].rows[0][1]
    assert (entry.printed, entry.mark) == ("0.60", "right")
    assert entry.from_previous == pytest.approx(0.592810, abs=1e-6)


@pytest.mark.parametrize(
    ("printed", "exact", "previous", "mark"),
    [
        ("0.50", 0.5049, 9.0, "right"),
        ("0.50", 0.505, 9.0, "right"),
        ("0.50", 0.5051, 0.5, "inherited"),
        ("0.500", 0.5051, 0.5006, "fresh mistake"),
        ("0", 0.0, 0.0, "right"),
        ("-0.1", 0.1, 0.1, "fresh mistake"),
    ],
)
def test_an_entry_is_judged_at_its_printed_decimals(printed: str, exact: float, previous: float, mark: str) -> None:
    assert mark_of(printed, exact, previous) == mark


def test_a_trace_in_float32_gives_the_same_marks(comparison: NoteComparison) -> None:
    again = against_note(trace(pellucid.load("worked-example", dtype=torch.float32), "I love"))
    assert [entry.mark for entry in again.entries] == [entry.mark for entry in comparison.entries]


@pytest.mark.parametrize(("norm", "mask"), VARIANTS[1:])
def test_a_variant_is_not_held_against_the_note(norm: NormChoice, mask: MaskChoice) -> None:
    with pytest.raises(InputError, match="is not the note's model"):
        against_note(trace(worked_example(norm, mask), "I love"))


def test_another_text_is_not_held_against_the_note() -> None:
    with pytest.raises(InputError, match="the trace is of 'I you'"):
        against_note(trace(worked_example(), "I you"))


def test_a_trace_without_a_printed_site_is_refused() -> None:
    with pytest.raises(InputError, match=r"no site is called 'embedding\.sum'"):
        against_note(trace(worked_example(), "I love", sites=["logits"]))


def test_an_unknown_step_is_refused_with_the_known_ones(comparison: NoteComparison) -> None:
    with pytest.raises(InputError, match="no step 'keys'; it has embedding sum, query, key"):
        _ = comparison["keys"]


def test_the_comparison_is_json(comparison: NoteComparison) -> None:
    answer = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert (answer["entries"], answer["wrong"], answer["fresh"]) == (84, 50, 20)
    weights = next(step for step in answer["steps"] if step["name"] == "weights")
    assert weights["site"] == "decoder.0.attention.weights"
    assert weights["rows"][1][0]["printed"] == "0.34"
    assert weights["rows"][1][0]["mark"] == "fresh mistake"


def test_the_terminal_shows_printed_exact_and_mark_in_words(comparison: NoteComparison) -> None:
    out = io.StringIO()
    show(comparison, Console(file=out, width=100))
    text = out.getvalue()
    assert all(step.site in text for step in comparison.steps)
    row = next(line for line in text.splitlines() if "0.34 " in line)
    assert row.split() == ["1,", "0", "0.34", "0.442520", "0.442505", "fresh", "mistake"]
    assert "84 printed entries: 34 right, 50 wrong (20 by a fresh mistake, 30 inherited)" in text
    assert "-0.000000" not in text
