"""Spectra as charts, for a notebook, a page, a PNG or an SVG.

What was measured is blue or coloured, the baseline of random weights grey. Where there are several attentions, texts or
taus, a list beside the chart chooses; an image shows the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pellucid.errors import InputError
from pellucid.figures.spectrum_rows import (
    ALL_POINTS,
    BASELINE,
    LEAST_POINTS,
    MEASURED,
    POINTS,
    Row,
    curve_rows,
    density_rows,
    rank_rows,
    some,
    statistic_rows,
)
from pellucid.spectra.results import Spectra

BLUE, GREY = "#2f86d1", "#8c8c8c"
# The ends of the scale would vanish on a white or on a black ground.
LINES = alt.SchemeParams(name="viridis", extent=[0.12, 0.88])
ALL_HEADS, COMPARED = "all heads", "Measured against random"

Chart = alt.Chart | alt.LayerChart | alt.HConcatChart | alt.VConcatChart


def rank_map(spectra: Spectra) -> Chart:
    """The effective rank over blocks and heads, that of random weights on the same colours, and the ratio of the two.

    The colour is the middle of the bracket; a dot marks a bracket that is wide.
    """
    rows = [row for head in some(spectra) for tau in spectra.tau for row in rank_rows(head, tau)]
    choices = [_Choice("tau", "tau", [f"{tau:g}" for tau in spectra.tau]), _of_attentions(spectra), _texts(spectra)]
    middles = [row["rank"] for row in rows]
    colour = alt.Color(
        "rank:Q", title="effective rank", scale=alt.Scale(**_domain(middles), scheme="viridis"), legend=_legend()
    )
    data = _chosen(_chart(rows), choices)
    panels = [_cells(data.transform_filter(alt.datum.of == MEASURED), rows, colour, "Measured")]
    if any("ratio" in row for row in rows):
        panels.append(_cells(data.transform_filter(alt.datum.of == BASELINE), rows, colour, "Random weights"))
        far = max((abs(row["ratio"]) for row in rows if "ratio" in row), default=0.0) or 1.0
        ratio = alt.Color(
            "ratio:Q",
            title="measured / random weights",
            scale=alt.Scale(scheme="blueorange", domain=[-far, far], reverse=True),
            legend=_legend(values=[-far, 0, far], labelExpr="format(pow(2, datum.value), '.2~g')"),
        )
        compared = data.transform_filter(alt.FieldValidPredicate(field="ratio", valid=True))
        panels.append(_cells(compared, rows, ratio, COMPARED))
    return _finish(alt.hconcat(*panels, spacing=28), choices).resolve_scale(color="independent")


def curves(spectra: Spectra) -> Chart:
    """The singular values of each head of one attention, and the share of the energy that the largest hold.

    Choosing a head shows the power law that was fitted to it.
    """
    heads = some(spectra)
    places = list(dict.fromkeys(head.place for head in heads))
    numbers = sorted({head.head for head in heads})
    choices = [
        _Choice("place", "attention", places),
        _Choice("only", "head", [ALL_HEADS, *map(str, numbers)], field=None),
        _texts(spectra),
    ]
    points = max(min(POINTS, ALL_POINTS // (2 * len(heads))), LEAST_POINTS)
    rows = [row for head in heads for row in curve_rows(head, points)]
    data = _chosen(_chart(rows), choices).transform_flatten(["index", "value", "held", "fit"])
    shown = [value for row in rows for value in row["value"]]
    across = alt.Scale(type="log", domain=[1, max(2, *(row["index"][-1] for row in rows))], nice=False)
    x = alt.X("index:Q", title="how many, the largest first", scale=across, axis=_axis("~s"))
    # The power law may leave the picture; the picture stays that of the values.
    up = alt.Scale(type="log", domain=[min(*shown, max(shown) / 10), max(shown)], nice=True)
    compared = any(head.baseline for head in heads)
    y = alt.Y("value:Q", title="singular value", scale=up, axis=_axis("~g"))
    values = _lines(data, x, y, "Singular values", compared)
    fit = (
        data.transform_filter(f"datum.of == '{MEASURED}' && isValid(datum.fit)")
        .mark_line(strokeDash=[1, 3], strokeWidth=2, clip=True)
        .encode(x=x, y="fit:Q", color=_head_colour())
        .encode(opacity=alt.condition("only == datum.name", alt.value(1), alt.value(0)))
    )
    y = alt.Y("held:Q", title="share of the energy", scale=alt.Scale(domain=[0, 1]), axis=_axis(".0%"))
    held = _lines(data, x, y, "Energy held by the largest", compared)
    asked = _chart([{"tau": tau} for tau in spectra.tau])
    rules = asked.mark_rule(color=GREY, strokeDash=[2, 2]).encode(
        y="tau:Q", tooltip=alt.Tooltip("tau:Q", title="tau", format="g")
    )
    fits = any(head.measured.spectrum.decay.alpha is not None for head in heads)
    return _finish(alt.hconcat(values + fit if fits else values, held + rules, spacing=36), choices)


def sinks(spectra: Spectra) -> Chart:
    """The weight that queries put on the first key, and on the heaviest, head by head."""
    return by_head(
        spectra,
        {"sink": ("Weight on the first key", "mean share"), "heaviest": ("Weight on the heaviest key", "mean share")},
    )


def looks(spectra: Spectra) -> Chart:
    """How widely heads look, and how far."""
    return by_head(
        spectra,
        {"entropy": ("Entropy of a row", "nats, mean"), "distance": ("Distance from query to key", "tokens, mean")},
    )


def decays(spectra: Spectra) -> Chart:
    """The exponents of the fitted power laws, and how well they fit."""
    return by_head(
        spectra, {"alpha": ("Decay of singular values", "exponent alpha"), "r2": ("Goodness of the fit", "R squared")}
    )


def by_head(spectra: Spectra, fields: dict[str, tuple[str, str]]) -> Chart:
    """One panel per statistic (its title and unit): a dot per head, a grey stroke where random weights stand."""
    names = tuple(fields)
    rows = [row for head in some(spectra) for row in statistic_rows(head, names)]
    choices = [_of_attentions(spectra), _texts(spectra)]
    data = _chosen(_chart(rows), choices)
    compared = any(head.baseline for head in spectra.heads)
    panels = [_strip(data, field, title, unit, compared) for field, (title, unit) in fields.items()]
    return _finish(alt.hconcat(*panels, spacing=36), choices)


def densities(spectra: Spectra) -> Chart:
    """How many singular values there are of each size, where that was asked for."""
    rows = [row for head in some(spectra) for row in density_rows(head)]
    if not rows:
        raise InputError("these spectra hold no density: measure with Effort(density=True), or --density")
    places = list(dict.fromkeys(head.place for head in spectra.heads))
    choices = [_Choice("place", "attention", places), _texts(spectra)]
    data = _chosen(_chart(rows), choices).transform_flatten(["size", "count"])
    bars = data.mark_line(interpolate="step-after").encode(
        x=alt.X("size:Q", title="singular value", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e", grid=False)),
        y=alt.Y("count:Q", title="how many", scale=alt.Scale(type="symlog")),
        color=_head_colour(),
        detail="of:N",
        strokeDash=alt.condition(alt.datum.of == BASELINE, alt.value([4, 3]), alt.value([1, 0])),
        opacity=alt.condition(alt.datum.of == BASELINE, alt.value(0.4), alt.value(1)),
        tooltip=[_tip("name:N", "head"), _tip("of:N", "of"), _tip("count:Q", "how many", ".1f")],
    )
    chart = bars.properties(width=420, height=230, title="How the singular values are spread")
    return _finish(alt.hconcat(chart), choices)


# ---- parts of charts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Choice:
    """A list to choose from: its name in expressions, its label, its options, and the field that it filters."""

    name: str
    label: str
    options: Sequence[str]
    field: str | None = "same"

    def filter(self) -> str | None:
        if self.field is None or len(self.options) < 2:
            return None
        return f"datum.{self.name if self.field == 'same' else self.field} == choice_{self.name}"

    def param(self) -> alt.Parameter | None:
        if len(self.options) < 2:
            return None
        name = self.name if self.field is None else f"choice_{self.name}"
        bound = alt.binding_select(options=list(self.options), name=f"{self.label} ")
        return alt.param(name=name, value=self.options[0], bind=bound)


def _chart(rows: list[Row]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _of_attentions(spectra: Spectra) -> _Choice:
    return _Choice("attention", "attention", list(dict.fromkeys(f"{head.stack} {head.kind}" for head in spectra.heads)))


def _texts(spectra: Spectra) -> _Choice:
    return _Choice("text", "text", list(dict.fromkeys(str(head.text) for head in spectra.heads)))


def _chosen(chart: alt.Chart, choices: Sequence[_Choice]) -> alt.Chart:
    for choice in choices:
        expression = choice.filter()
        if expression is not None:
            chart = chart.transform_filter(expression)
    return chart


def _finish(chart: alt.HConcatChart, choices: Sequence[_Choice]) -> alt.HConcatChart:
    """The lists beside the chart, and one look for all of them."""
    params = [param for choice in choices if (param := choice.param()) is not None]
    named = chart.add_params(*params) if params else chart
    return (
        named.configure_view(stroke=None)
        .configure_axis(labelFontSize=11, titleFontSize=12, titleFontWeight="normal", gridOpacity=0.35, domain=False)
        .configure_title(fontSize=13, anchor="start", frame="group", fontWeight=600, offset=8, subtitleFontSize=11)
        .configure_legend(labelFontSize=11, titleFontSize=12, titleFontWeight="normal")
    )


def _domain(values: Sequence[float]) -> Row:
    """Ranks that span more than a decade are shown by their logarithm."""
    low, high = min(values), max(values)
    return {"domain": [low, high if high > low else low + 1], "type": "log" if high > 10 * low else "linear"}


def _legend(**more: Any) -> alt.Legend:
    return alt.Legend(orient="bottom", gradientLength=180, gradientThickness=10, titleLimit=240, **more)


def _cells(data: alt.Chart, rows: Sequence[Row], colour: alt.Color, title: str) -> alt.LayerChart:
    across, down = (len({row[name] for row in rows}) for name in ("number", "block"))
    size = max(10, min(26, 300 // max(across, down)))
    x = alt.X("number:O", title="head", axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True))
    y = alt.Y("block:O", title="block", axis=alt.Axis(ticks=False, labelOverlap=True))
    tooltip = [_tip("place:N", "attention"), _tip("name:N", "head"), _tip("of:N", "of"), _tip("tau:N", "tau")]
    tooltip += [_tip("bracket:N", "effective rank")]
    if title == COMPARED:
        tooltip += [_tip("times:Q", "measured / random", ".3~g")]
    cells = data.mark_rect(stroke=None).encode(x=x, y=y, color=colour, tooltip=tooltip)
    dots = (
        data.transform_filter("datum.wide")
        .mark_point(filled=True, color="white", stroke="black", strokeWidth=0.5, size=14, opacity=0.9)
        .encode(x=x, y=y, tooltip=tooltip)
    )
    return (cells + dots).properties(
        width=max(across * size, 150), height=max(down * size, 40), title=alt.TitleParams(title)
    )


def _head_colour() -> alt.Color:
    return alt.Color(
        "number:O",
        title="head",
        scale=alt.Scale(scheme=LINES),
        legend=alt.Legend(orient="bottom", columns=12, symbolType="stroke", symbolStrokeWidth=3, symbolLimit=64),
    )


def _lines(data: alt.Chart, x: alt.X, y: alt.Y, title: str, compared: bool) -> alt.LayerChart:
    """A line per head, and those of random weights behind them."""
    chosen = f"only == '{ALL_HEADS}' || only == datum.name"
    behind = (
        data.transform_filter(alt.datum.of == BASELINE)
        .mark_line(color=GREY, strokeWidth=1.2, strokeDash=[4, 3], clip=True)
        .encode(x=x, y=y, detail="name:N", tooltip=_curve_tooltip())
        .encode(opacity=alt.condition(chosen, alt.value(0.55), alt.value(0.08)))
    )
    front = (
        data.transform_filter(alt.datum.of == MEASURED)
        .mark_line(strokeWidth=1.8, clip=True)
        .encode(x=x, y=y, color=_head_colour(), tooltip=_curve_tooltip())
        .encode(opacity=alt.condition(chosen, alt.value(1), alt.value(0.12)))
    )
    described = alt.TitleParams(title, subtitle="dashed, grey: random weights") if compared else alt.TitleParams(title)
    layers = [behind, front] if compared else [front]
    return alt.LayerChart(layer=layers).properties(width=400, height=280, title=described)


def _axis(numbers: str) -> alt.Axis:
    return alt.Axis(format=numbers, tickCount=6, labelOverlap=True)


def _curve_tooltip() -> list[alt.Tooltip]:
    return [
        _tip("place:N", "attention"),
        _tip("name:N", "head"),
        _tip("of:N", "of"),
        _tip("index:Q", "place", "d"),
        _tip("value:Q", "singular value", ".4g"),
        _tip("held:Q", "share of the energy so far", ".2%"),
        _tip("alpha:Q", "decay alpha", ".3f"),
    ]


def _strip(data: alt.Chart, field: str, title: str, unit: str, compared: bool) -> alt.LayerChart:
    x = alt.X("block:O", title="block", axis=alt.Axis(labelAngle=0, ticks=False, labelOverlap=True))
    y = alt.Y(f"{field}:Q", title=unit, scale=alt.Scale(nice=5), axis=alt.Axis(tickCount=5))
    offset = alt.XOffset("number:O")
    colour = alt.Color(
        "of:N", title=None, scale=alt.Scale(domain=[MEASURED, BASELINE], range=[BLUE, GREY]), legend=_of_legend()
    )
    tooltip = [_tip("place:N", "attention"), _tip("name:N", "head"), _tip("of:N", "of"), _tip(f"{field}:Q", field)]
    if field == "heaviest":
        tooltip.append(_tip("heaviest_key:Q", "which key"))
    behind = data.transform_filter(alt.datum.of == BASELINE).mark_point(shape="stroke", size=40, strokeWidth=2)
    front = data.transform_filter(alt.datum.of == MEASURED).mark_circle(size=26, opacity=0.9)
    layers = [layer.encode(x=x, y=y, xOffset=offset, color=colour, tooltip=tooltip) for layer in (behind, front)]
    return alt.LayerChart(layer=layers[0 if compared else 1 :]).properties(
        width=420, height=200, title=alt.TitleParams(title)
    )


def _of_legend() -> alt.Legend:
    return alt.Legend(orient="bottom", direction="horizontal")


def _tip(field: str, title: str, numbers: str = ".4g") -> alt.Tooltip:
    return alt.Tooltip(field, title=title, format=numbers) if field.endswith(":Q") else alt.Tooltip(field, title=title)
