"""Streamed text is never taken back."""

from __future__ import annotations

import pytest

from pellucid.generation.text import Writing, written_text

from .models import END, byte_tokenizer, model, writer

TEXTS = ["plain words", "añ語🙂 — Ω", "🙂" * 5, " spaces  at  ends "]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_whole_characters_and_join_to_the_text(text: str):
    opened = writer()
    writing = Writing(opened, tuple(opened.encode("before ")), frozenset([END]))
    pieces = [writing.push(token, -1.0) for token in opened.encode(text)]
    assert "�" not in "".join(pieces)
    assert "".join(pieces) == text
    assert writing.finish() == ""
    assert writing.ended == "length"


def test_a_character_that_is_never_finished_is_shown_at_the_end():
    opened = writer()
    writing = Writing(opened, (5,), frozenset())
    shown = [writing.push(token, 0.0) for token in opened.encode("a🙂")[:-1]]
    assert "".join(shown) == "a"
    assert writing.finish() == "�"


def test_what_may_become_a_stop_text_is_held_back():
    opened = writer()
    writing = Writing(opened, (5,), frozenset(), ("###", "stop"))
    shown = [writing.push(token, 0.0) for token in opened.encode("a#b##c###d")[:9]]
    assert shown == ["a", "", "#b", "", "", "##c", "", "", ""]
    assert (writing.ended, writing.text) == ("text", "a#b##c")


def test_what_was_held_back_in_vain_is_shown_at_the_end():
    opened = writer()
    writing = Writing(opened, (5,), frozenset([END]), ("###",))
    assert [writing.push(token, 0.0) for token in opened.encode("a##")] == ["a", "", ""]
    assert writing.push(END, 0.0) == "##"
    assert writing.ended == "token"


def test_without_a_tokenizer_there_are_only_ids():
    writing = Writing(model("tiny-gpt2"), (5,), frozenset([END]))
    assert writing.push(7, -0.5) == ""
    assert writing.push(END, -0.5) == ""
    assert (writing.ids, writing.ended) == ([7, END], "token")


def test_the_text_after_a_prompt_keeps_its_space():
    opened = writer()
    assert written_text(opened, opened.encode("one"), opened.encode(" two")) == " two"
    assert byte_tokenizer().size == 258
