"""A trace in the terminal: in 80 columns, with and without colour."""

from __future__ import annotations

import io

import pytest
import torch
from rich.cells import cell_len
from rich.console import Console

from pellucid.cli.show_trace import plain_formula, show
from pellucid.lens.trace import Trace
from tests.report.traces import made_up, tiny


def shown(found: Trace, width: int = 80, terminal: bool = False, max_rows: int = 8) -> str:
    file = io.StringIO()
    colour = "truecolor" if terminal else None
    show(found, Console(file=file, width=width, force_terminal=terminal, color_system=colour), max_rows=max_rows)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-bert", "tiny-t5"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    assert max(cell_len(line) for line in shown(tiny(name, length=20), width).splitlines()) <= width


def test_every_step_stands_there_with_its_error() -> None:
    found = tiny()
    text = shown(found)
    for step in found.steps:
        assert f"{step.site}  error {step.error:.1e}\n" in text
    assert f"largest error {found.error:.1e} at " in text
    assert text.rstrip().endswith(", verified")


def test_no_colour_codes_outside_a_terminal() -> None:
    assert "\x1b" not in shown(tiny())
    assert "\x1b[" in shown(tiny(), terminal=True)


def test_tokens_are_names_and_cannot_take_the_terminal_over() -> None:
    text = shown(tiny())
    assert "\x07" not in text
    assert "日本" in text
    assert "<i>" in text
    assert "75.00%" in text


def test_masked_cells_say_so() -> None:
    scores = shown(tiny(), width=100).split("decoder.0.attention.scores")[1].split("decoder.0.attention.weights")[0]
    assert scores.count("masked") == 15


def test_long_tables_are_cut_and_say_how_much_is_missing() -> None:
    text = shown(tiny(length=20), max_rows=3)
    assert "+17 rows" in text
    assert "+27" in text


def test_a_wrong_step_is_named() -> None:
    value = torch.ones(1, 2, 3)
    step = made_up("final.norm", ("batch", "token", "width"), value, value + 1)
    text = shown(Trace("m", ("a", "b"), (step,), ()))
    assert "error 5.0e-01 NOT verified" in text
    assert "largest error 5.0e-01 at final.norm, NOT verified" in text


@pytest.mark.parametrize(
    ("latex", "plain"),
    [
        (r"S = \frac{Q K^\top}{\sqrt{d_k}} + B + M", "S = (Q Kᵀ) / (√(d_k)) + B + M"),
        (r"A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}", "A_ij = (e^(S_ij)) / (Σ_k e^(S_ik))"),
        (r"H' = \mathrm{norm}(H + \Delta)", "H' = norm(H + Δ)"),
        (r"X_i = E_{t_i}", "X_i = E_(t_i)"),
    ],
)
def test_formulas_on_one_line(latex: str, plain: str) -> None:
    assert plain_formula(latex) == plain


def test_no_formula_keeps_its_markup() -> None:
    for name in ("tiny-gpt2", "tiny-llama", "tiny-bert", "tiny-t5", "tiny-original"):
        for step in tiny(name).steps:
            assert not set(plain_formula(step.formula)) & set("\\{}")
