"""The page of spectra: one closed file that shows every head, believes no name and loads nothing."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from vl_convert import vegalite_to_svg

from pellucid.report.spectrum_page import _vega, spectrum_page
from pellucid.spectra.summary import sentences
from tests.spectra.made_up import spectra

from .test_trace_page import Checked


@pytest.fixture(scope="module")
def page() -> str:
    return spectrum_page(spectra())


def charts_of(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_it_is_valid_and_says_what_the_summary_says(page: str) -> None:
    text = Checked(page).text
    for sentence in sentences(spectra()):
        assert sentence in text
    assert "Spectra of made-up" in text


def test_it_loads_nothing(page: str) -> None:
    checked = Checked(page)
    assert checked.links == []
    assert not {"link", "img", "iframe", "object"} & set(checked.tags)
    assert "default-src 'none'" in page
    assert "unsafe-eval" not in page
    own = page.replace(_vega(), "")
    assert set(re.findall(r"https?://[^\s\"'<]*", own)) <= {"https://vega.github.io/schema/vega-lite/v6.4.0.json"} | {
        chart["$schema"] for chart in charts_of(page)
    }


def test_every_chart_has_its_place_and_compiles(page: str) -> None:
    charts = charts_of(page)
    ids = Checked(page).ids
    assert [f"chart-{place}" in ids for place in range(len(charts))] == [True] * 5
    for chart in charts:
        assert vegalite_to_svg(json.dumps(chart)).startswith("<svg")


def test_the_table_shows_brackets_baselines_and_what_has_not_settled(page: str) -> None:
    body = page.split("<tbody>")[1].split("</tbody>")[0]
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in body.split("</tr>")[:-1]]
    assert len(rows) == 6
    assert rows[0][:6] == [
        "decoder 0",
        "0",
        "64",
        "3<small>10</small>",
        "6<small>20</small>",
        "1.25<small>1.25</small>",
    ]
    assert rows[2][1:5] == ["2*", "64", "[8, 20]<small>10</small>", "[16, 40]<small>20</small>"]
    assert 'data-v="14.0">[8, 20]' in body


def test_every_column_is_explained(page: str) -> None:
    head = page.split("<thead>")[1].split("</thead>")[0]
    names = re.findall(r"<button[^>]*>(.*?)</button>", head)
    explained = re.findall(r"<dt>(.*?)</dt>", page)
    assert set(names) - {"attention", "head", "tokens"} <= set(explained)
    assert "[low, high]" in explained


def test_no_name_is_read_as_markup() -> None:
    nasty = "</script><script>alert(1)</script><b>&\u202e\x07"
    page = spectrum_page(spectra(1, 1, model=nasty), title=nasty)
    checked = Checked(page)
    assert checked.tags.count("script") == 3
    assert "b" not in checked.tags
    assert "\u202e" not in page
    assert "\x07" not in page


def test_texts_and_densities_get_their_column_and_their_chart() -> None:
    page = spectrum_page(spectra(1, 2, texts=2, density=True))
    assert '<button type="button">text</button>' in page
    assert len(charts_of(page)) == 6
    assert "How the singular values are spread" in page


def test_without_a_baseline_nothing_is_made_up() -> None:
    page = spectrum_page(spectra(baseline=False))
    assert "No baseline was measured" in page
    assert "<small>10</small>" not in page


def test_144_heads_stay_below_five_megabytes() -> None:
    assert len(spectrum_page(spectra(12, 12, size=1024)).encode()) < 3e6
