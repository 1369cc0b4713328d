"""The charts of spectra: their data are the results, and they compile to an image."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from vl_convert import vegalite_to_svg

from pellucid.errors import InputError
from pellucid.figures.spectrum import (
    by_head,
    curves,
    decays,
    densities,
    looks,
    rank_map,
    sinks,
)
from pellucid.figures.spectrum_rows import BASELINE, MEASURED, statistic_rows
from pellucid.spectra.results import Spectra
from tests.spectra.made_up import measured, spectra

CHARTS = [rank_map, curves, sinks, looks, decays, densities]


def rows_of(chart: Any) -> list[dict[str, Any]]:
    """The rows of its largest data set."""
    return max(chart.to_dict()["datasets"].values(), key=len)


@pytest.mark.parametrize("draw", CHARTS, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("case", [{}, {"texts": 2}, {"baseline": False}, {"blocks": 1, "heads": 1}], ids=str)
def test_every_chart_compiles(draw: Any, case: dict[str, Any]) -> None:
    image = vegalite_to_svg(json.dumps(draw(spectra(**case, density=True)).to_dict()))
    assert image.startswith("<svg")
    assert "NaN" not in image
    assert ("head" in image) or ("block" in image)


def test_the_map_shows_the_middle_and_keeps_the_bracket() -> None:
    rows = rows_of(rank_map(spectra()))
    assert len(rows) == 6 * 2 * 2
    for row in rows:
        head = next(each for each in spectra().heads if (each.block, each.head) == (row["block"], row["number"]))
        found = {MEASURED: head.measured, BASELINE: head.baseline}[row["of"]]
        assert found is not None
        low, high = found.spectrum.effective[float(row["tau"])]
        assert row["rank"] == (low + high) / 2
        assert row["bracket"] == (str(low) if low == high else f"[{low}, {high}]")
        assert row["wide"] == (row["number"] == 2 and row["of"] == MEASURED)
        if row["of"] == MEASURED and row["tau"] == "0.9":
            assert row["ratio"] == pytest.approx(math.log2((low + high) / 20))


def test_both_maps_have_one_scale() -> None:
    panels = rank_map(spectra()).to_dict()["hconcat"]
    scales = [panel["layer"][0]["encoding"]["color"]["scale"] for panel in panels]
    assert scales[0] == scales[1]
    assert scales[0]["domain"] == [3, 100]
    assert scales[0]["type"] == "log"
    assert scales[2]["domain"][0] == -scales[2]["domain"][1]
    assert len(rank_map(spectra(baseline=False)).to_dict()["hconcat"]) == 1


def test_curves_hold_the_values_the_energy_and_the_fit() -> None:
    found = spectra().heads[0].measured.spectrum
    row = rows_of(curves(spectra()))[0]
    assert row["index"][0] == 1
    assert row["index"][-1] == 64
    for index, value, held, fit in zip(row["index"], row["value"], row["held"], row["fit"], strict=True):
        assert value == pytest.approx(found.values[index - 1], rel=1e-4)
        assert held == pytest.approx(math.fsum(v**2 for v in found.values[:index]) / found.energy, rel=1e-4)
        assert fit == pytest.approx(index**-1.5, rel=1e-4)
    assert row["alpha"] == 1.5


def test_a_head_without_a_fit_is_drawn_without_one() -> None:
    one = spectra(1, 1)
    plain = replace(one, heads=(replace(one.heads[0], measured=measured(alpha=None)),))
    assert rows_of(curves(plain))[0]["fit"] == [None] * len(rows_of(curves(plain))[0]["index"])
    assert vegalite_to_svg(json.dumps(curves(plain).to_dict())).startswith("<svg")


def test_many_heads_get_fewer_points_each() -> None:
    few, many = (rows_of(curves(spectra(blocks, 16, size=512))) for blocks in (2, 24))
    assert len(few[0]["index"]) > len(many[0]["index"]) > 12
    assert len(json.dumps(many)) < 1_200_000


def test_statistics_are_those_of_the_heads() -> None:
    assert all(
        (row["sink"], row["heaviest"], row["heaviest_key"]) == (0.125, 0.375, 7) for row in rows_of(sinks(spectra()))
    )
    assert all((row["entropy"], row["distance"]) == (2.5, 11.5) for row in rows_of(looks(spectra())))
    assert {row["of"] for row in rows_of(decays(spectra()))} == {MEASURED, BASELINE}
    own = rows_of(by_head(spectra(), {"previous": ("Weight on the slot before", "mean share")}))
    assert all(row["previous"] == 0.03125 for row in own)


def test_a_statistic_that_is_no_number_is_left_out() -> None:
    head = spectra().heads[0]
    unknown = replace(head.measured, statistics=replace(head.measured.statistics, sink=math.nan))
    row = next(iter(statistic_rows(replace(head, measured=unknown), ["sink", "entropy"])))
    assert row["sink"] is None
    assert row["entropy"] == head.measured.statistics.entropy


def test_a_count_stands_at_its_lower_edge() -> None:
    row = rows_of(densities(spectra(density=True)))[0]
    assert list(zip(row["size"], row["count"], strict=True)) == [(1.0, 3.0), (0.1, 3.0), (0.01, 4.5)]


def test_lists_to_choose_from_appear_where_there_is_a_choice() -> None:
    names = [param["name"] for param in rank_map(spectra(texts=2)).to_dict()["params"]]
    assert names == ["choice_tau", "choice_text"]
    options = {each["name"]: each["bind"]["options"] for each in curves(spectra()).to_dict()["params"]}
    assert options["choice_place"] == ["decoder 0", "decoder 1"]
    assert options["only"] == ["all heads", "0", "1", "2"]


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(InputError, match="no head"):
        rank_map(Spectra("m", 0, (0.9,), ()))
    with pytest.raises(InputError, match="--density"):
        densities(spectra())
