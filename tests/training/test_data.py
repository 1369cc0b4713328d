"""Files to tokens: every format, broken rows, held-out rows, checksums, and the order of batches."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from fcntl import LOCK_EX, LOCK_UN, flock
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from pellucid.errors import CheckpointError, InputError
from pellucid.training import config as c
from pellucid.training import shards
from pellucid.training.batches import Source, ahead, dealt
from pellucid.training.data import IGNORED, data_folder, encoded, open_prepared, prepare
from pellucid.training.formats import Faults, Row, rows_of
from pellucid.training.order import Order, Position
from pellucid.training.shards import Store, Writer
from pellucid.training.tokenizers import build, given
from tests.training.processes import outside, together, whole
from tests.training.runs import run_of, stories, tagging_run, translation_run

LM, PAIRS, TAGS, KINDS = c.LanguageModel(), c.Translation(), c.Tagging(), c.Classification()


def read(file: Path, format_: c.Format, task: c.Task) -> tuple[list[Row], Faults]:
    faults = Faults()
    return list(rows_of([file], format_, task, faults)), faults


def test_text_by_file_line_and_separator(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo\n---\n\n---\nthree\n")
    assert [row.text for row in read(file, c.Text(), LM)[0]] == ["one\ntwo\n---\n\n---\nthree\n"]
    assert [row.text for row in read(file, c.Text(lines=True), LM)[0]] == ["one", "two", "---", "---", "three"]
    assert [row.text for row in read(file, c.Text(separator="---"), LM)[0]] == ["one\ntwo", "three"]
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read(packed, c.Text(separator="---"), LM)[0] == read(file, c.Text(separator="---"), LM)[0]


def test_a_damaged_gzip_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b"text " * 1000)[:40])
    with pytest.raises(InputError, match=r"a\.gz cannot be read"):
        read(file, c.Text(), LM)


def test_json_lines_with_broken_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "good"}\n{"text": 5}\n\nnot json\n[1]\n{"text": "fine"}\n')
    rows, faults = read(file, c.JsonLines(), LM)
    assert [row.text for row in rows] == ["good", "fine"]
    assert (faults.rows, faults.broken) == (2, 3)
    assert [line.split(": ")[0].rpartition(":")[2] for line in faults.named] == ["2", "4", "5"]
    with pytest.raises(InputError, match=r"3 of 5 rows cannot be read, .*a\.jsonl:2: 'text' is 5, not a text"):
        faults.check(0.5)
    faults.check(0.6)


def test_pairs_by_tabs_and_by_two_files(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes("Hi.\t嗨。\tCC\nalone\n\tx\n".encode() + b"\xff\xfe\tx\n")
    rows, faults = read(file, c.Tsv(), PAIRS)
    assert rows == [Row(text="Hi.", target="嗨。")]
    assert [named.split("a.tsv:")[1] for named in faults.named] == [
        "2: 1 columns, but 2 are needed",
        "3: an empty column",
        "4: not UTF-8",
    ]
    (tmp_path / "b.en").write_text("one\n\nthree\n")
    (tmp_path / "b.de").write_text("eins\nzwei\ndrei\n")
    rows, faults = read(tmp_path / "b", c.Parallel(), PAIRS)
    assert [(row.text, row.target) for row in rows] == [("one", "eins"), ("three", "drei")]
    assert faults.broken == 1
    (tmp_path / "b.de").write_text("eins\n")
    with pytest.raises(InputError, match="fewer lines than its partner"):
        read(tmp_path / "b", c.Parallel(), PAIRS)


def test_conll_and_conllu(tmp_path: Path) -> None:
    file = tmp_path / "a.conll"
    file.write_text("-DOCSTART- O\n\nEU B-ORG\nrejects O\n\nbad\nline O\n\nlast O\n")
    rows, faults = read(file, c.Conll(), TAGS)
    assert [row.words for row in rows] == [("EU", "rejects"), ("last",)]
    assert faults.named == [f"{file}:6: 1 columns, but 2 are needed"]
    file = tmp_path / "a.conllu"
    line = "\t_\t_\t0\tdep\t_\t"
    file.write_text(
        f"# text = don't\n1-2\tdon't\t_\t_{line}_\n1\tdo\tdo\tAUX{line}SpaceAfter=No\n2\tn't\tnot\tPART{line}_\n"
    )
    rows, _ = read(file, c.ConllU(), TAGS)
    assert rows == [Row(words=("do", "n't"), labels=("AUX", "PART"), spaces=(False, True))]


def test_labels_reach_the_tokens_of_their_words(tmp_path: Path) -> None:
    file = tmp_path / "a.conllu"
    line = "\t_\t_\t0\tdep\t_\t"
    file.write_text(f"1\tdo\tdo\tAUX{line}SpaceAfter=No\n2\tn't\tnot\tPART{line}_\n3\tgo\tgo\tVERB{line}_\n\n" * 3)
    run = tagging_run(tmp_path, data={"train": ["a.conllu"], "format": {"kind": "conllu"}, "holdout": 0})
    prepared = prepare(run, tmp_path / "data")
    assert prepared.labels == ("AUX", "PART", "VERB")
    assert prepared.train.document("labels", 0).tolist() == [
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        2,
        2,
    ]  # a space belongs to what follows
    assert prepared.train.document("starts", 0).tolist() == [1, 0, 1, 0, 0, 0, 1, 0, 0]


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="not one row"):
        prepare(run_of(tmp_path, tmp_path / "empty.txt"), tmp_path / "data")
    with pytest.raises(InputError, match=r"missing\.txt is not a file"):
        prepare(run_of(tmp_path, tmp_path / "missing.txt"), tmp_path / "data")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="pip install"):
            read(tmp_path / "a.parquet", c.Parquet(), LM)
    else:
        pytest.skip("pyarrow is here")


def test_equal_sources_are_held_out_together(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("".join(f"word {k % 50}\tother {k}\n" for k in range(500)))
    run = translation_run(tmp_path, data={"train": ["a.tsv"], "holdout": 0.2, "format": {"kind": "tsv"}})
    prepared = prepare(run, tmp_path / "data")
    sides = [
        {tuple(store.document("source", place)) for place in range(len(store))}
        for store in (prepared.train, prepared.valid)
    ]
    assert not sides[0] & sides[1]
    assert len(prepared.train) + len(prepared.valid) == 500
    assert 4 <= len(sides[1]) <= 17


def test_the_end_of_one_text_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 900 + "y" * 100)
    run = run_of(tmp_path, tmp_path / "a.txt", data={"format": {"kind": "text"}, "holdout": 0.1, "holdout_by": "end"})
    prepared = prepare(run, tmp_path / "data")
    assert (prepared.train.facts["bytes"], prepared.valid.facts["bytes"]) == (900, 101)


def test_tokenised_data_is_made_once_and_checked(tmp_path: Path) -> None:
    run = run_of(tmp_path, stories(tmp_path))
    said: list[str] = []
    prepare(run, tmp_path / "data", said.append)
    prepare(run, tmp_path / "data", said.append)
    assert said == ["tokenising the data"]
    stories(tmp_path, seed=1)
    prepare(run, tmp_path / "data", said.append)
    assert len(said) == 2
    shard = tmp_path / "data/train/ids-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2] + b"\0\0")
    with pytest.raises(CheckpointError, match="checksum differs"):
        prepare(run, tmp_path / "data")


def test_runs_that_start_at_one_moment_share_a_cache(tmp_path: Path) -> None:
    file, cache = stories(tmp_path, count=3000), tmp_path / "cache"
    parts = {"data": {"cache": str(cache)}, "schedule": {"steps": 1, "warmup": 0}}
    runs = [run_of(tmp_path / f"run-{k}", file, **parts) for k in range(4)]
    (found,) = outside(together(*runs), folder=tmp_path)
    assert found["codes"] == [0, 0, 0, 0]
    (folder,) = {data_folder(run, Path(run.output.folder)) for run in runs}
    assert sorted(path.name for path in cache.iterdir()) == [f".{folder.name}.lock", folder.name]
    alone, shared = prepare(run_of(tmp_path, file), tmp_path / "data").train, open_prepared(folder).train
    size = alone.total("ids")
    assert (shared.stream("ids", 0, size) == alone.stream("ids", 0, size)).all()
    models = [(tmp_path / f"run-{k}/out/model/model.safetensors").read_bytes() for k in range(4)]
    assert len(set(models)) == 1


def test_the_processes_of_one_run_share_a_cache(tmp_path: Path) -> None:
    parts = {"data": {"cache": str(tmp_path / "cache")}, "schedule": {"steps": 1, "warmup": 0}}
    (found,) = outside(whole(run_of(tmp_path, stories(tmp_path), **parts), processes=2), folder=tmp_path)
    assert found["codes"] == [0, 0]


def test_a_run_waits_for_the_one_that_tokenises_and_clears_what_a_dead_one_left(tmp_path: Path) -> None:
    run = run_of(tmp_path, stories(tmp_path), data={"cache": str(tmp_path / "cache")})
    folder = data_folder(run, tmp_path)
    left = folder.with_name(f".{folder.name}.unfinished") / "train"
    left.mkdir(parents=True)
    said: list[str] = []
    with folder.with_name(f".{folder.name}.lock").open("a") as lock, ThreadPoolExecutor(1) as pool:
        flock(lock, LOCK_EX)
        waiting = pool.submit(prepare, run, folder, said.append)
        while not said:
            assert not waiting.done()
        assert not folder.exists()
        flock(lock, LOCK_UN)
        assert waiting.result().folder == folder
    assert said == ["waiting for another run, which is tokenising the same data", "tokenising the data"]
    assert not left.parent.exists()


def test_shards_are_one_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_BYTES", 20)
    writer = Writer(tmp_path / "x", {"ids": "uint16"})
    documents = [list(range(k, k + k % 7 + 1)) for k in range(30)]
    for document in documents:
        writer.add({"ids": document})
    writer.close()
    store = Store(tmp_path / "x")
    assert len(list((tmp_path / "x").glob("ids-*.bin"))) > 5
    assert [store.document("ids", k).tolist() for k in range(30)] == documents
    flat = list(chain.from_iterable(documents))
    assert store.stream("ids", 3, 90).tolist() == flat[3:90]


# --- the order ---


def orders() -> list[Order]:
    sizes = np.random.default_rng(0).integers(1, 30, 200)
    batch = c.Batch(tokens=120, context=30)
    return [
        Order(np.full(50, 30), "stream", batch, 1),
        Order(sizes, "documents", batch, 1),
        Order(sizes, "padded", batch, 1),
    ]


@pytest.mark.parametrize("order", orders(), ids=lambda order: order.packing)
def test_the_order_goes_on_from_any_position(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pellucid.training.order.CHAPTER", 64)
    steps = list(islice(order.from_position(Position()), 60))
    for rows, at, after in steps[::7]:
        again, here, then = next(order.from_position(at))
        assert (again, here, then) == (rows, at, after)
    following = list(islice(order.from_position(steps[19][2]), 40))
    assert [rows for rows, *_ in following] == [rows for rows, *_ in steps[20:]]


@pytest.mark.parametrize("order", orders(), ids=lambda order: order.packing)
def test_rows_fit_and_every_unit_comes_once(order: Order) -> None:
    batches = order.batches(0)
    units = [unit for rows in batches for row in rows for unit in row]
    assert len(set(units)) == len(units) > 0.9 * len(order.sizes)
    for rows in batches:
        lengths = [sum(order.sizes[unit] for unit in row) for row in rows]
        assert max(lengths) <= 30
        assert max(lengths) * len(rows) <= 120
    assert order.batches(1) != batches


def test_packing_wastes_little() -> None:
    order = orders()[1]
    rows = [row for rows in order.batches(0) for row in rows]
    filled = sum(int(order.sizes[unit]) for row in rows for unit in row) / (30 * len(rows))
    assert filled > 0.9


def test_an_evaluation_sees_every_token_once(tmp_path: Path) -> None:
    for packing in ("documents", "padded", "stream"):
        run = run_of(tmp_path, stories(tmp_path), task={"kind": "language_model", "packing": packing})
        prepared = prepare(run, tmp_path / f"data-{packing}")
        source = Source(prepared.train, run, prepared.words, training=False)
        counted = sum(source.collate(rows, 0).counted for rows in source.order().batches(0))
        lengths = prepared.train.lengths["ids"]
        assert counted == (lengths.sum() - 1 if packing == "stream" else (lengths - 1).sum())


def test_targets_are_the_next_tokens(tmp_path: Path) -> None:
    run = run_of(tmp_path, stories(tmp_path), batch={"tokens": 256, "context": 32})
    prepared = prepare(run, tmp_path / "data")
    source = Source(prepared.train, run, prepared.words, training=True)
    batch = source.collate(source.order().batches(0)[0], 0)
    ids, answers, documents = batch.ids, batch.answers, batch.documents
    inside = (documents[:, 1:] == documents[:, :-1]) & (answers[:, :-1] != IGNORED) & (documents[:, 1:] >= 0)
    assert (ids[:, 1:][inside] == answers[:, :-1][inside]).all()
    assert inside.sum() > 100


def test_a_translation_is_shifted_by_one(tmp_path: Path) -> None:
    run = translation_run(tmp_path)
    prepared = prepare(run, tmp_path / "data")
    source = Source(prepared.train, run, prepared.words, training=True)
    batch = source.collate([(3,), (4,)], 0)
    words = prepared.words
    assert batch.target[:, 0].tolist() == [words.start] * 2
    for row in range(2):
        real = batch.answers[row][batch.answers[row] != IGNORED].tolist()
        assert real[-1] == words.end
        assert batch.target[row, 1 : len(real)].tolist() == real[:-1]


def test_dealing_gives_every_process_as_many_parts() -> None:
    rows = [(k,) for k in range(7)]
    for processes in (1, 2, 3, 8):
        parts = dealt(rows, micro=30, width=10, processes=processes)
        assert len(parts) % processes == 0
        assert list(chain.from_iterable(parts)) == rows
        assert max(map(len, parts)) <= 3


def test_the_next_batches_are_made_ahead_and_errors_arrive() -> None:
    def items():
        yield from range(3)
        raise ValueError("from the thread")

    made = ahead(items())
    assert list(islice(made, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="from the thread"):
        next(made)


def test_notes_tell_what_was_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("a\tb\n" * 99 + "a" * 100 + "\tb\n" + "lonely\n")
    run = translation_run(tmp_path, data={"train": ["a.tsv"], "holdout": 0, "format": {"kind": "tsv"}, "broken": 0.02})
    notes = prepare(run, tmp_path / "data").notes
    assert "1 of 101 rows are broken" in notes[0]
    assert "a.tsv:101" in notes[0]
    assert "1 of 100 documents are left out" in notes[1]
    assert json.loads((tmp_path / "data/manifest.json").read_text())["notes"] == list(notes)


def test_marks_that_a_given_tokenizer_puts_around_a_text_have_no_label(tmp_path: Path) -> None:
    masked = c.MaskedLanguageModel()
    words = build(c.Characters(), masked, ["ab c"], tmp_path)
    kept = given(words.pipeline, c.Given(), TAGS)
    row = Row(words=("ab", "c"), labels=("X", "Y"), spaces=(True, False))
    (found,) = encoded([row], TAGS, kept, {"X": 0, "Y": 1})
    assert (found["ids"][0], found["ids"][-1]) == (words.start, words.end)
    assert found["labels"] == [IGNORED, 0, 0, 1, 1, IGNORED]
    assert found["starts"] == [0, 1, 0, 0, 1, 0]
    (kind,) = encoded([Row(text="ab", label="X")], KINDS, kept, {"X": 0})
    assert (kind["ids"][0], kind["ids"][-1], kind["labels"]) == (words.start, words.end, [0])
