"""The page of a trace: one valid, closed file that shows every step, believes no token and keeps to its size."""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from pellucid.errors import InputError
from pellucid.lens.notebook import trace_fragment
from pellucid.lens.trace import Trace
from pellucid.lens.view import Slice, readable
from pellucid.report.arithmetic import arithmetic
from pellucid.report.heat import MASKED, colours, draw
from pellucid.report.trace_page import trace_page

from .traces import NASTY, attention_maps, made_up, tiny

VOID = {"meta", "img", "link", "br", "hr", "input"}


class Checked(HTMLParser):
    """Reads a page and fails on a tag that is closed out of order, or never."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]
        self.ids += [value or "" for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] not in ("script", "style"):
            self.text += data


def data_of(page: str) -> dict[str, dict[str, dict[str, object]]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.fixture(scope="module")
def small() -> Trace:
    return tiny()


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-bert", "tiny-t5", "tiny-bloom", "tiny-original"])
def test_the_page_is_valid_and_shows_every_step_with_its_error(name: str) -> None:
    found = tiny(name)
    page = Checked(trace_page(found))
    for step in found.steps:
        assert step.site in page.ids
        assert f"{step.site}verified, error {step.error:.1e}" in page.text
    assert page.tags.count("math") == len(found.steps)
    assert f"error {found.error:.1e}" in page.text


def test_it_needs_no_network(small: Trace) -> None:
    page = trace_page(small)
    outside = set(re.findall(r"https?://[^\s\"'<]*", page))
    assert outside == {"http://www.w3.org/1998/Math/MathML"}
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in Checked(page).links)
    assert "default-src 'none'" in page


def test_no_token_is_read_as_markup(small: Trace) -> None:
    page = trace_page(small, title="<b>title</b>")
    checked = Checked(page)
    assert checked.tags.count("script") == 2
    assert "b" not in checked.tags
    assert "i" not in checked.tags
    assert escape(readable(NASTY[0])) in page
    assert "\x07" not in page
    assert "\u202e" not in page
    assert "line\\nend\\x07" in checked.text
    assert data_of(page)["tokens"] == [readable(token) for token in NASTY]


def test_a_lone_surrogate_can_be_written(small: Trace) -> None:
    odd = replace(small, tokens=("\ud800",) * 6, model="m\ud800", notes=("\ud800",))
    assert trace_page(odd).encode()


def test_the_same_trace_gives_the_same_page(small: Trace) -> None:
    assert trace_page(small) == trace_page(small)


def test_masked_cells_are_marked_in_scores_and_in_weights(small: Trace) -> None:
    page = trace_page(small)
    for part in ("scores", "weights"):
        section = page.split(f'id="decoder.0.attention.{part}"')[1].split("</section>")[0]
        assert section.count('class="masked"') == 4 * 15


def test_a_wrong_step_is_red() -> None:
    value = torch.ones(1, 2, 3)
    step = made_up("final.norm", ("batch", "token", "width"), value, value + 1)
    page = trace_page(Trace("m", ("a", "b"), (step,), ()))
    assert '<span class="badge bad">NOT verified, error 5.0e-01</span>' in page


def test_the_threshold_is_that_of_the_type() -> None:
    value = torch.ones(1, 2, 3, dtype=torch.float64)
    step = made_up("final.norm", ("batch", "token", "width"), value, value + 1e-9)
    assert "NOT verified" in trace_page(Trace("m", ("a", "b"), (step,), ()))
    step = made_up("final.norm", ("batch", "token", "width"), value.float(), value + 1e-9)
    assert "NOT verified" not in trace_page(Trace("m", ("a", "b"), (step,), ()))


def test_cells_open_where_their_inputs_are_known(small: Trace) -> None:
    data = data_of(trace_page(small))
    kinds = {site: step["kind"] for site, step in data["steps"].items()}
    assert kinds["decoder.0.attention.scores"] == "dot"
    assert kinds["decoder.0.attention.weights"] == "softmax"
    assert kinds["decoder.0.attention.heads"] == "mix"
    assert kinds["decoder.0.attention.input"] == "norm"
    assert kinds["decoder.0.residual.mid"] == "sum"
    assert kinds["decoder.0.feed_forward.active"] == "apply"
    assert kinds["decoder.0.attention.query"] == "linear"
    assert kinds["embedding.tokens"] is None
    for step in data["steps"].values():
        assert all(site in data["values"] for site in step["sites"])


def test_the_embedded_values_are_those_of_the_trace(small: Trace) -> None:
    kept = data_of(trace_page(small))["values"]["decoder.1.residual.out"]
    numbers = np.frombuffer(b64decode(str(kept["data"])), dtype=np.float32).reshape(kept["shape"])
    assert np.array_equal(numbers, small["decoder.1.residual.out"].value[0].numpy())


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-original"])
def test_a_norm_is_what_its_constants_say(name: str) -> None:
    found = tiny(name, dtype=torch.float64)
    steps = [step for step in found.steps if (made := arithmetic(step)) and made.kind == "norm"]
    assert steps
    for step in steps:
        made = arithmetic(step)
        assert made is not None
        constants = made.constants
        x = sum(step.recorded[site] for site in step.inputs)
        x = x - x.mean(-1, keepdim=True) * constants["centred"]
        normed = x / (x.square().mean(-1, keepdim=True) + constants["epsilon"]).sqrt()
        again = normed * torch.tensor(constants["gain"]) + torch.tensor(constants["shift"])
        torch.testing.assert_close(again.double(), step.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "bias"), [("tiny-gpt2", False), ("tiny-llama", False), ("tiny-bloom", True)])
def test_a_score_is_what_its_constants_say(name: str, bias: bool) -> None:
    step = tiny(name)["decoder.0.attention.scores"]
    made = arithmetic(step)
    assert made is not None
    assert made.constants["bias"] is bias
    query, key = (step.recorded[site][0, 0] for site in step.inputs)
    assert made.constants["scale"] == pytest.approx(query.shape[-1] ** -0.5)
    if not bias:
        assert float(step.value[0, 0, 2, 1]) == pytest.approx(float(query[2] @ key[1]) * made.constants["scale"], 1e-4)


@pytest.mark.parametrize("part", ["query", "value", "output"])
def test_a_map_is_what_its_matrix_says(part: str) -> None:
    step = tiny(dtype=torch.float64)[f"decoder.0.attention.{part}"]
    made = arithmetic(step)
    assert made is not None
    matrix, shift = (
        torch.from_numpy(np.frombuffer(b64decode(kept["data"])).reshape(kept["shape"]).copy())
        for kept in (made.constants["matrix"], made.constants["shift"])
    )
    x, y = (
        one.transpose(1, 2).flatten(2) if one.dim() == 4 else one for one in (step.recorded[made.sites[1]], step.value)
    )
    torch.testing.assert_close(x @ matrix + shift, y)


def test_turned_queries_are_no_affine_map() -> None:
    assert arithmetic(tiny("tiny-llama")["decoder.0.attention.query"]) is None


def test_a_selection_is_shown_without_names_that_it_may_not_have(small: Trace) -> None:
    step = small["decoder.0.attention.weights"]
    narrowed = replace(step, value=step.value[:, 1:3, 2:4])
    page = trace_page(replace(small, steps=(narrowed,)))
    assert "selected head 1" in page
    assert "only some heads or tokens were kept" in page


def test_it_says_what_was_left_out_and_how_to_get_it() -> None:
    page = Checked(trace_page(tiny(length=40), budget_mb=0.25)).text
    assert "Not in this page" in page
    assert "The arithmetic behind the cells of" in page
    assert 'TEXT --explain "SITE[...]"' in page


@pytest.mark.parametrize("budget", [0.2, 0.3, 0.5, 1.0])
def test_every_budget_is_obeyed(budget: float) -> None:
    page = trace_page(tiny(length=40), budget_mb=budget)
    assert len(page.encode()) <= budget * 1e6


def test_a_budget_that_nothing_fits_is_refused(small: Trace) -> None:
    with pytest.raises(InputError, match=r"34 steps need 0\.\d+ MB without any heat map: raise budget_mb"):
        trace_page(small, budget_mb=0.01)


def test_144_maps_of_512_tokens_fit_into_25_megabytes() -> None:
    """Smooth maps keep every pixel."""
    place = torch.arange(512.0)
    scores = -(place[:, None] - place).abs() / torch.arange(1.0, 13.0)[:, None, None] / 8
    page = trace_page(attention_maps(scores.softmax(-1)[None], 12))
    assert len(page.encode()) <= 25e6
    assert page.count("data:image/png") == 144
    assert "Full resolution" not in page


def test_144_maps_of_noise_are_pooled_until_they_fit() -> None:
    noise = torch.rand(1, 12, 512, 512, generator=torch.Generator().manual_seed(0))
    page = trace_page(attention_maps(noise, 12))
    assert len(page.encode()) <= 25e6
    assert page.count("data:image/png") == 144
    assert "Full resolution of 144 maps (weights): a pixel is the mean of 2 x 2 cells." in page


@pytest.mark.parametrize("palette", ["one", "two"])
def test_each_colour_stands_for_one_level(palette: str) -> None:
    assert len(set(colours(palette))) == 256


def test_a_map_is_read_back_within_half_a_level() -> None:
    values = np.random.default_rng(0).normal(size=(9, 7)).astype(np.float32)
    hidden = np.zeros((9, 7), dtype=bool)
    hidden[0, 1:] = True
    drawn = draw(Slice("", values, hidden), 64)
    levels = np.array(Image.open(io.BytesIO(b64decode(drawn.png))))
    assert np.array_equal(levels == MASKED, hidden)
    again = drawn.low + (levels / 254) ** drawn.root * (drawn.high - drawn.low)
    assert np.abs(again - values)[~hidden].max() <= (drawn.high - drawn.low) / 254 / 2 * 1.01
    assert (drawn.least, drawn.most) == (values[~hidden].min(), values[~hidden].max())


def test_a_pixel_is_the_mean_of_its_visible_cells() -> None:
    values = np.array([[1.0, -np.inf, -np.inf], [2.0, 6.0, -np.inf], [4.0, 4.0, 8.0]])
    drawn = draw(Slice("", values, values == -np.inf), 2)
    levels = np.array(Image.open(io.BytesIO(b64decode(drawn.png))))
    assert (drawn.rows_each, drawn.columns_each, drawn.low, drawn.high) == (2, 2, 3, 8)
    assert levels.tolist() == [[0, MASKED], [round(254 * (1 / 5) ** (1 / 3)), 254]]


def test_what_is_no_number_is_told() -> None:
    value = torch.zeros(1, 20, 20)
    value[0, 3, 3] = torch.nan
    page = trace_page(Trace("m", ("t",) * 20, (made_up("final.norm", ("batch", "token", "width"), value),), ()))
    assert "1 grey pixels are infinite or not numbers" in page
    assert "NOT verified, error inf" in page


def test_the_fragment_is_light_valid_and_closed(small: Trace) -> None:
    fragment = trace_fragment(small)
    checked = Checked(fragment)
    assert "script" not in checked.tags
    assert "img" not in checked.tags
    assert len(fragment) < 200_000
    for step in small.steps:
        assert step.site in checked.text
        assert f"{step.error:.1e}" in checked.text
    assert "masked" in checked.text
