"""From the files of a run to tokenised shards: once, whole or not at all, with every broken row named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import tokenizers

from pellucid.errors import InputError
from pellucid.training import config as c
from pellucid.training.formats import Faults, Row, rows_of
from pellucid.training.shards import MANIFEST, Store, Writer, digest_of
from pellucid.training.tokenizers import FILE, Words, build, given

IGNORED = -100
_BATCH = 512
Columns = dict[str, list[int]]
Notice = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """What the data takes from a model that is fine-tuned: its tokenizer with the marks in it, and its labels."""

    pipeline: tokenizers.Tokenizer
    marks: c.Given
    labels: tuple[str, ...]

    @property
    def key(self) -> str:
        return blake2b(self.pipeline.to_str().encode() + json.dumps(self.labels).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Prepared:
    """What a run learns from and is validated on. notes: what a person should know about the data."""

    train: Store
    valid: Store | None
    words: Words
    labels: tuple[str, ...]
    notes: tuple[str, ...]
    folder: Path


def prepare(run: c.RunConfig, folder: Path, say: Notice = lambda note: None, base: Base | None = None) -> Prepared:
    """The tokenised data of a run: what the folder holds, if it is of this run, or made anew."""
    files = {part: _files(getattr(run.data, part), run) for part in ("train", "valid")}
    key = _key(run, files, base)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if run.data.cache is None else _one_at_a_time(folder, say):
        if not _is_of(folder, key):
            say("tokenising the data")
            staging = folder.with_name(f".{folder.name}.unfinished")
            shutil.rmtree(staging, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            _make(run, files, staging, key, base)
            staging.rename(folder)
    return open_prepared(folder)


@contextmanager
def _one_at_a_time(folder: Path, say: Notice) -> Iterator[None]:
    """Runs that share a cache wait for the one that makes the data. The lock of a process that dies goes with it."""
    from fcntl import LOCK_EX, LOCK_NB, flock

    with folder.with_name(f".{folder.name}.lock").open("a") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            say("waiting for another run, which is tokenising the same data")
            flock(lock, LOCK_EX)
        except OSError as error:
            raise InputError(
                f"data.cache {folder.parent} cannot be locked ({error.strerror}), so runs could not share it: choose a "
                "folder on another disk, or leave data.cache out"
            ) from None
        yield


def open_prepared(folder: Path) -> Prepared:
    facts = json.loads((folder / MANIFEST).read_text())
    valid = Store(folder / "valid") if (folder / "valid").exists() else None
    notes, labels = tuple(facts["notes"]), tuple(facts["labels"])
    words = Words(tokenizers.Tokenizer.from_file(str(folder / FILE)), **facts["marks"])
    return Prepared(Store(folder / "train"), valid, words, labels, notes, folder)


def data_folder(run: c.RunConfig, folder: Path, base: Base | None = None) -> Path:
    """Where the tokenised data of a run goes: its own folder, or the place by the key in the cache."""
    if run.data.cache is None:
        return folder / "data"
    files = {part: _files(getattr(run.data, part), run) for part in ("train", "valid")}
    return Path(run.data.cache) / _key(run, files, base)


def _is_of(folder: Path, key: str) -> bool:
    try:
        return bool(json.loads((folder / MANIFEST).read_text())["key"] == key)
    except (OSError, json.JSONDecodeError, KeyError):
        return False


def _make(run: c.RunConfig, files: dict[str, list[Path]], staging: Path, key: str, base: Base | None) -> None:
    staging.mkdir(parents=True)
    faults = Faults()
    held = Held(run.data, sum(1 for _ in read_files(run, files["train"], faults)))
    faults.check(run.data.broken)
    train = _Again(lambda: held.train(read_files(run, files["train"], Faults())))
    if base is None:
        words = build(run.tokenizer, run.task, (text for row in train for text in _texts(row)), Path(run.data.root))
    else:
        words = given(base.pipeline, base.marks, run.task)
    words.save(staging / FILE)
    labels = _labels(train, run.task, () if base is None else base.labels)
    notes = _note("train", faults)
    notes += write_store(train, run, words, labels, staging / "train")
    if files["valid"]:
        more = Faults()
        notes += write_store(read_files(run, files["valid"], more), run, words, labels, staging / "valid")
        more.check(run.data.broken)
        notes += _note("valid", more)
    elif run.data.holdout:
        notes += write_store(
            held.valid(read_files(run, files["train"], Faults())), run, words, labels, staging / "valid"
        )
    marks = {"start": words.start, "end": words.end, "mask": words.mask}
    facts = {"key": key, "labels": labels, "notes": notes, "marks": marks}
    (staging / MANIFEST).write_text(json.dumps(facts, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


class _Again:
    """An iterable that can be read more than once."""

    def __init__(self, start: Callable[[], Iterator[Row]]) -> None:
        self.start = start

    def __iter__(self) -> Iterator[Row]:
        return self.start()


@dataclass(frozen=True)
class Held:
    """Which rows of the training files are held out for validation. A single text is cut near its end."""

    data: c.Data
    rows: int

    def train(self, rows: Iterable[Row]) -> Iterator[Row]:
        return self._part(rows, held=False)

    def valid(self, rows: Iterable[Row]) -> Iterator[Row]:
        return self._part(rows, held=True)

    def _part(self, rows: Iterable[Row], *, held: bool) -> Iterator[Row]:
        share = 0.0 if self.data.valid else self.data.holdout
        for place, row in enumerate(rows):
            if share and self.data.holdout_by == "end" and self.rows == 1:
                cut = int(len(row.text) * (1 - share))
                yield replace(row, text=row.text[cut:] if held else row.text[:cut])
            elif self._is_held(place, row, share) == held:
                yield row

    def _is_held(self, place: int, row: Row, share: float) -> bool:
        if self.data.holdout_by == "end":
            return place >= self.rows * (1 - share)
        first = (row.text or " ".join(row.words)).strip().lower()
        draw = int.from_bytes(blake2b(first.encode("utf-8", "replace"), digest_size=7).digest(), "big")
        return draw < share * 2**56


def read_files(run: c.RunConfig, files: list[Path], faults: Faults) -> Iterator[Row]:
    for row in rows_of(files, run.data.format, run.task, faults):
        yield _lowered(row) if run.data.lowercase else row


def validation_rows(run: c.RunConfig) -> Iterator[Row]:
    """The rows that a run is validated on, as its files have them."""
    if run.data.valid:
        return read_files(run, _files(run.data.valid, run), Faults())
    files = _files(run.data.train, run)
    held = Held(run.data, sum(1 for _ in read_files(run, files, Faults())))
    return held.valid(read_files(run, files, Faults()))


def _lowered(row: Row) -> Row:
    words = tuple(word.lower() for word in row.words)
    return replace(row, text=row.text.lower(), target=row.target.lower(), words=words)


def sentence(row: Row) -> tuple[str, list[int]]:
    """The words of a tagged sentence as a text, and where each begins."""
    text, begins = "", []
    for word, space in zip(row.words, row.spaces, strict=True):
        begins.append(len(text))
        text += word + (" " if space else "")
    return text, begins


def _texts(row: Row) -> list[str]:
    return [sentence(row)[0]] if row.words else [text for text in (row.text, row.target) if text]


def _labels(rows: Iterable[Row], task: c.Task, known: tuple[str, ...]) -> list[str]:
    """Those of the data; of a model that is fine-tuned its own, where it has them all."""
    found: set[str] = set()
    if isinstance(task, c.Tagging):
        found = {label for row in rows for label in row.labels}
    elif isinstance(task, c.Classification):
        found = {row.label for row in rows}
    return list(known) if found and found <= set(known) else sorted(found)


# --- rows to columns of ids ---


def write_store(rows: Iterable[Row], run: c.RunConfig, words: Words, labels: list[str], folder: Path) -> list[str]:
    ids = "uint16" if words.size <= 2**16 else "uint32"
    dtypes = {"source": ids, "ids": ids, "labels": "int32", "starts": "uint8"}
    writer: Writer | None = None
    seen = kept = characters = 0
    known = {label: place for place, label in enumerate(labels)}
    source = iter(rows)
    while batch := list(islice(source, _BATCH)):
        for row, columns in zip(batch, encoded(batch, run.task, words, known), strict=True):
            seen += 1
            writer = writer or Writer(folder, {column: dtypes[column] for column in columns})
            if not columns["ids"] or _too_long(columns, run):
                continue
            kept += 1
            characters += sum(len(text.encode("utf-8", "replace")) for text in _texts(row)[-1:])
            writer.add(columns)
    if writer is None or kept == 0:
        raise InputError(f"no document is left for {folder.name}: all {seen} are empty or longer than batch.context")
    writer.close(bytes=characters, documents=kept)
    left = seen - kept
    return (
        [f"{folder.name}: {left} of {seen} documents are left out: empty, or longer than batch.context"] if left else []
    )


def _too_long(columns: Columns, run: c.RunConfig) -> bool:
    """A pair is no pair any more when it is cut; other texts are cut into parts."""
    limit = run.batch.context
    return isinstance(run.task, c.Translation) and max(len(columns["source"]), len(columns["ids"]) - 1) > limit


def fits(row: Row, run: c.RunConfig, words: Words) -> bool:
    """Whether a row is short enough to be learned from."""
    return not _too_long(encoded([row], run.task, words, {})[0], run)


def encoded(rows: list[Row], task: c.Task, words: Words, labels: dict[str, int]) -> list[Columns]:
    """The columns of ids of each row."""
    match task:
        case c.LanguageModel() | c.MaskedLanguageModel():
            before = [words.start] if words.start is not None and _has_start(task) else []
            after = [words.end] if words.end is not None else []
            return [{"ids": [*before, *text.ids, *after]} for text in words.encode([row.text for row in rows])]
        case c.Translation():
            pairs = zip(words.encode([r.text for r in rows]), words.encode([r.target for r in rows]), strict=True)
            return [_pair(one.ids, other.ids, words) for one, other in pairs]
        case c.Classification():
            texts = words.encode([row.text for row in rows], marked=True)
            return [
                {"ids": list(text.ids), "labels": [labels.get(row.label, IGNORED)]}
                for row, text in zip(rows, texts, strict=True)
            ]
        case c.Tagging():
            return [_tags(row, words, labels) for row in rows]


def _has_start(task: c.Task) -> bool:
    return not (isinstance(task, c.LanguageModel) and task.packing == "stream")


def _pair(source: list[int], target: list[int], words: Words) -> Columns:
    assert words.start is not None
    assert words.end is not None
    return {"source": [*source, words.end], "ids": [words.start, *target, words.end]}


def _tags(row: Row, words: Words, labels: dict[str, int]) -> Columns:
    """Each token gets the label of the word in which it begins, a mark none. starts: how many words begin within."""
    text, begins = sentence(row)
    found = words.encode([text], marked=True)[0]
    ends = [begin + len(word) for begin, word in zip(begins, row.words, strict=True)]
    tags, starts, word = [], [], 0
    counted = 0
    for (first, last), is_mark in zip(found.offsets, found.special_tokens_mask, strict=True):
        while word + 1 < len(begins) and ends[word] <= first:
            word += 1
        reached = sum(begin < last for begin in begins[counted:])
        starts.append(min(reached, 255))
        counted += reached
        tags.append(IGNORED if is_mark else labels.get(row.labels[word], IGNORED))
    return {"ids": list(found.ids), "labels": tags, "starts": starts}


def _files(names: tuple[str, ...], run: c.RunConfig) -> list[Path]:
    files = [Path(run.data.root) / name for name in names]
    for file in files:
        for part in _parts(file, run.data.format):
            if not part.is_file():
                raise InputError(f"{part} is not a file: data.train and data.valid are looked for in {run.data.root}")
    return files


def _parts(file: Path, format_: c.Format) -> list[Path]:
    if isinstance(format_, c.Parallel):
        return [file.with_name(file.name + ending) for ending in (format_.source, format_.target)]
    return [file]


def _key(run: c.RunConfig, files: dict[str, list[Path]], base: Base | None) -> str:
    """Changes with everything that the tokenised data depends on."""
    digests = [
        [digest_of(part) for part in _parts(file, run.data.format)] for group in files.values() for file in group
    ]
    settings: list[Any] = [
        run.data.model_dump(exclude={"root", "cache"}),
        run.tokenizer.model_dump(),
        run.task.model_dump(),
        *([] if base is None else [base.key]),
    ]
    return blake2b(json.dumps([digests, settings, run.batch.context, 1]).encode(), digest_size=16).hexdigest()


def _note(part: str, faults: Faults) -> list[str]:
    if not faults.broken:
        return []
    return [f"{part}: {faults.broken} of {faults.rows + faults.broken} rows are broken: {'; '.join(faults.named)}"]
