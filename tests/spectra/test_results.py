"""Spectra as data, as rows, as a table of a notebook, and in words."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pellucid.spectra.results import Spectra
from pellucid.spectra.summary import compare, head_name, sentences, unsettled

from .made_up import measured, spectra


def test_a_row_holds_the_ends_and_the_baseline_beside_them() -> None:
    row = spectra().rows()[2]
    assert (row["block"], row["head"], row["tokens"]) == (0, 2, 64)
    assert (row["rank_0.9_low"], row["rank_0.9_high"]) == (8, 20)
    assert (row["baseline_rank_0.95_low"], row["baseline_rank_0.95_high"]) == (20, 20)
    assert (row["settled"], row["failure"], row["baseline_settled"]) == (False, 1e-8, True)


def test_the_frame_has_a_row_per_head_and_a_column_per_key() -> None:
    frame = spectra(baseline=False).to_frame()
    assert frame.shape[0] == 6
    assert list(frame.columns) == list(spectra(baseline=False).rows()[0])
    assert not any(name.startswith("baseline") for name in frame.columns)


def test_the_json_has_the_keys_that_others_rely_on() -> None:
    answer = spectra().to_json()
    assert set(answer) == {"model", "tokens", "tau", "heads"}
    keys = {"energy", "singular_values", "effective_rank", "stable_rank", "decay", "entropy", "sink", "distance"}
    for head in answer["heads"]:
        assert {"stack", "block", "head", "kind", "tokens", "method", "baseline"} | keys <= set(head)
        assert keys | {"method"} <= set(head["baseline"])
        assert set(head["effective_rank"]) == {"0.9", "0.95"}
        assert {"alpha", "r2"} <= set(head["decay"])


class Cells(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.inside = tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def test_a_notebook_shows_brackets_beside_the_baseline() -> None:
    rows = Cells(spectra()._repr_html_()).rows
    assert rows[0][:4] == ["head", "tokens", "rank at 0.9", "rank at 0.95"]
    assert rows[1][:5] == ["decoder 0 head 0", "64", "3 | 10", "6 | 20", "1.25 | 1.25"]
    assert rows[3][2] == "[8, 20] | 10"
    assert len(rows) == 7


def test_a_notebook_shows_the_first_of_many_and_no_markup_of_names() -> None:
    fragment = spectra(40, 3, model="<img src=x>")._repr_html_()
    assert "img" not in Cells(fragment).tags
    assert "56 more" in fragment
    assert len(fragment) < 60_000


def test_only_brackets_that_do_not_overlap_are_told_apart() -> None:
    found = compare(spectra(), 0.9)
    assert [head.name for head in found.far_below] == ["decoder 0 head 0", "decoder 1 head 0"]
    assert {head.head for head in found.above} == {head.head for head in found.far_above} == {1}
    assert (len(found.below), len(found.above), found.compared) == (2, 2, 6)


@pytest.mark.parametrize(("own", "below", "far"), [((4, 4), 1, 1), ((5, 5), 1, 0), ((9, 9), 1, 0), ((9, 10), 0, 0)])
def test_far_below_is_less_than_half(own: tuple[int, int], below: int, far: int) -> None:
    one = spectra(1, 1)
    found = compare(replace(one, heads=(replace(one.heads[0], measured=measured(own)),)), 0.9)
    assert (len(found.below), len(found.far_below)) == (below, far)


def test_the_words_say_what_is_not_certain() -> None:
    words = " ".join(sentences(spectra()))
    assert "2 heads of 6 have a lower effective rank than the random weights (less than half: decoder 0 head 0" in words
    assert "2 cannot be told apart" in words
    assert "8 of 12 effective ranks are exact" in words
    assert "the widest [8, 20], 60%, of decoder 0 head 2 at tau 0.9" in words
    assert "decoder 0 head 2, decoder 1 head 2. A larger budget settles them" in words
    assert "at most 1e-08" in words
    assert [head.name for head in unsettled(spectra())] == ["decoder 0 head 2", "decoder 1 head 2"]


def test_exact_ranks_and_missing_baselines_are_said() -> None:
    one = spectra(1, 1, baseline=False)
    assert sentences(one)[0].startswith("No baseline was measured")
    assert sentences(one)[-1] == "Every effective rank is exact."
    some = replace(spectra(1, 2), heads=(spectra(1, 2).heads[0], one.heads[0]))
    assert "1 head has no baseline yet." in sentences(some)


def test_a_text_is_named_where_there_are_several() -> None:
    two = spectra(1, 1, texts=2)
    assert head_name(two, two.heads[1]) == "decoder 0 head 0, text 1"
    cross = replace(two.heads[0], kind="cross")
    assert head_name(Spectra("m", 4, (0.9,), (cross,)), cross) == "decoder 0 cross head 0"
