"""What an encoder-decoder has written begins with its start token where it is given as text; ids stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.lens.edit import logit_lens
from pellucid.lens.generation import trace_generation
from pellucid.lens.whatif import Temperature, what_if
from pellucid.pretrained.facade import Model
from pellucid.spectra.depth import rank_through_depth
from pellucid.spectra.kv_report import kv_report
from pellucid.spectra.measure import Selection
from pellucid.web.asking import Asked, read
from pellucid.web.shelf import Book
from pellucid.web.work import Lane
from tests.cli.running import run
from tests.web.serving import random_model, with_words

NAME, SOURCE, TARGET = "translate-en-zh", "I love you.", "我爱你。"
FIRST = ("decoder.0.cross.weights", "logits")


@pytest.fixture(scope="module")
def model() -> Model:
    return pellucid.load(NAME)


@pytest.fixture(scope="module")
def ids(model: Model) -> list[int]:
    """Of a byte-level tokenizer: the start token and the text, with the end that it puts there left out."""
    found = model.encode_target(TARGET)
    assert (found[0], model.decode(found[1:])) == (model.start_id(), TARGET)
    return found


@pytest.fixture(scope="module")
def words(model: Model, ids: list[int]) -> tuple[str, ...]:
    assert model.tokenizer is not None
    return tuple(model.tokenizer.token(token) for token in ids)


def test_the_end_of_a_text_is_left_out_and_its_start_put_once(model: Model, ids: list[int]) -> None:
    assert model.encode_target("") == model.encode_target(" ") == [model.start_id()] == ids[:1]
    assert model.encode(SOURCE)[-1] in model.end_ids()
    assert model.encode_target(SOURCE) == [model.start_id(), *model.encode(SOURCE)[:-1]]


def test_a_trace_reads_it(model: Model, ids: list[int], words: tuple[str, ...]) -> None:
    found = pellucid.trace(model, SOURCE, TARGET, sites=FIRST)
    assert found.tokens == words
    same = pellucid.trace(model, SOURCE, [ids], sites=FIRST)
    assert all(torch.equal(found[site].value, same[site].value) for site in FIRST)
    assert pellucid.trace(model, SOURCE, ids[1:], sites=FIRST).tokens == words[1:]
    assert pellucid.trace(model, SOURCE, "", sites=FIRST).tokens == words[:1]
    assert pellucid.generate(model, SOURCE)[0].ids[1] == found["logits"].value[0, 0].argmax()


def test_several_texts_have_a_target_each(model: Model) -> None:
    both = pellucid.trace(model, [SOURCE, "Hello, my friend."], ["", TARGET], sites=["logits"])["logits"].value
    alone = pellucid.trace(model, SOURCE, "", sites=["logits"])["logits"].value
    torch.testing.assert_close(both[0, :1], alone[0])


def test_the_rest_of_the_lens_reads_it(model: Model, words: tuple[str, ...]) -> None:
    assert logit_lens(model, SOURCE, TARGET).tokens == words
    assert what_if(model, SOURCE, Temperature(2.0), TARGET).original.tokens == words
    assert trace_generation(model, SOURCE, 2, "", sites=["logits"])[0].tokens == words[:1]


def test_spectra_read_it(model: Model, ids: list[int], words: tuple[str, ...]) -> None:
    def measured(target: str | list[int]) -> object:
        only = Selection(blocks=[0], heads=[0])
        return pellucid.spectrum(model, (SOURCE, target), baseline=False, only=only).to_json()

    assert measured(TARGET) == measured(ids) != measured(ids[1:])
    assert kv_report(model, (SOURCE, TARGET), baseline=False).tokens == len(words)
    depth = rank_through_depth(model, SOURCE, TARGET, heads=False, baseline_seed=None)
    assert depth == rank_through_depth(model, SOURCE, ids, heads=False, baseline_seed=None)
    with pytest.raises(InputError, match="2 came: call once for each"):
        rank_through_depth(model, SOURCE, torch.tensor([ids, ids]))


def test_the_commands_read_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    traced = ("trace", NAME, SOURCE, "--site", "logits", "--no-values", "--json")
    assert json.loads(run(*traced, "--target", TARGET).stdout)["tokens"] == list(words)
    assert json.loads(run(*traced).stdout)["tokens"] == list(words[:1])
    texts = {"source": SOURCE, "target": TARGET}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [each for name in texts for each in (f"--{name}".replace("source", "text"), tmp_path / name)]
    for command in (["spectrum", NAME, "--block", "0", "--head", "0"], ["kv-report", NAME]):
        found = run(*command, *files, "--no-baseline", "--json")
        assert json.loads(found.stdout)["tokens"] == len(words), found.stderr


def test_the_explorer_reads_it(model: Model, ids: list[int]) -> None:
    book = Book(NAME, lambda: model, Lane(1, 60.0))
    assert read(book, Asked(model=NAME, text=SOURCE, target=TARGET), 64)[1] == tuple(ids)
    assert read(book, Asked(model=NAME, text=SOURCE), 64)[1] == tuple(ids[:1])


def test_a_model_without_a_start_or_without_a_second_text_says_so() -> None:
    pair = with_words(random_model(encoder_blocks=1, decoder_blocks=1))
    with pytest.raises(InputError, match=r"no decoder_start_token_id.*give the target as ids"):
        pellucid.trace(pair, "the cat", "the dog")
    with pytest.raises(InputError, match="takes no target"):
        pellucid.trace(with_words(random_model()), "the cat", "the dog")
    with pytest.raises(InputError, match="leave the target out"):
        pellucid.spectrum(with_words(random_model()), ("the cat", "the dog"))
