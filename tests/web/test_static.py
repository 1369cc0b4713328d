"""The page's files: the same strings in both languages, nothing from outside, a file for each view."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pellucid.web
from pellucid.web.views import VIEWS
from pellucid.web.views.attention import CHANGES

STATIC = Path(pellucid.web.__file__).parent / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))
LINE = re.compile(r'^  "([^"]+)": "((?:[^"\\]|\\.)*)",$', re.M)


def strings(language: str) -> dict[str, str]:
    text = (STATIC / f"strings.{language}.js").read_text(encoding="utf-8")
    found = LINE.findall(text)
    assert len(found) == len(dict(found)) == text.count('": "')
    return dict(found)


def test_both_languages_have_the_same_strings_with_the_same_gaps() -> None:
    english, chinese = strings("en"), strings("zh")
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", chinese[key])), key
        assert chinese[key].strip()


def test_chinese_is_chinese() -> None:
    plain = [key for key, text in strings("zh").items() if not re.search(r"[\u4e00-\u9fff]", text)]
    assert plain == []


def test_every_string_that_a_script_asks_for_is_there() -> None:
    known = strings("en")
    for script in SCRIPTS:
        for key in re.findall(r'\bt\("([\w.]+)"', script.read_text(encoding="utf-8")):
            assert key in known, f"{script.name}: {key}"
    for view in VIEWS:
        assert f"view.{view}" in known
    for change in CHANGES:
        assert f"attention.change.{change}" in known


def test_no_string_is_left_over() -> None:
    text = "\n".join(script.read_text(encoding="utf-8") for script in SCRIPTS if not script.name.startswith("strings"))
    starts = set(re.findall(r"[\"`]([a-z0-9_]+(?:\.[a-z0-9_]+)*)\.?(?:\$\{|[\"`])", text))
    for key in strings("en"):
        parents = {key.rsplit(".", count)[0] for count in range(key.count(".") + 1)}
        assert parents & starts, key


@pytest.mark.parametrize(
    "file", sorted(path for path in STATIC.rglob("*") if path.is_file()), ids=lambda path: path.name
)
def test_nothing_comes_from_outside(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "://" not in text
    assert "innerHTML" not in text
    assert "eval(" not in text
    assert len(text.splitlines()) < 400 or file.name.startswith("strings.")  # a table grows with the page


def test_a_view_is_a_file() -> None:
    for view in VIEWS:
        assert "export async function show(" in (STATIC / "views" / f"{view}.js").read_text(encoding="utf-8")
