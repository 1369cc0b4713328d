"""Files to rows: text, JSON lines, TSV, line-aligned pairs, CoNLL, CoNLL-U and Parquet, gzip or not."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pellucid.errors import InputError
from pellucid.training import config as c


@dataclass(frozen=True)
class Row:
    """What one document brings: which fields are filled depends on the task.

    spaces: whether a space follows each word.
    """

    text: str = ""
    target: str = ""
    label: str = ""
    words: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    spaces: tuple[bool, ...] = ()


@dataclass
class Faults:
    """Rows that could not be read: how many, and the first of them by file and line."""

    rows: int = 0
    broken: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, file: Path, line: int, why: str) -> None:
        self.broken += 1
        if len(self.named) < 10:
            self.named.append(f"{file}:{line}: {why}")

    def check(self, share: float) -> None:
        total = self.rows + self.broken
        if total and self.broken > share * total:
            raise InputError(
                f"{self.broken} of {total} rows cannot be read, and data.broken allows a share of {share:g}. "
                f"The first: {'; '.join(self.named[:3])}. Mend the file, or raise data.broken"
            )


def rows_of(files: list[Path], format_: c.Format, task: c.Task, faults: Faults) -> Iterator[Row]:
    """Every row that can be read; the others are counted and named."""
    for file in files:
        for row in _read(file, format_, task, faults):
            faults.rows += 1
            yield row
    if faults.rows == 0:
        named = f" The first: {faults.named[0]}" if faults.named else ""
        raise InputError(f"there is not one row in {', '.join(map(str, files))}: is data.format right?{named}")


def _read(file: Path, format_: c.Format, task: c.Task, faults: Faults) -> Iterator[Row]:
    match format_:
        case c.Text():
            return _texts(file, format_, faults)
        case c.JsonLines():
            return _objects(file, format_, task, faults)
        case c.Parquet():
            return _columns(file, format_, task, faults)
        case c.Tsv():
            return _tabs(file, format_, task, faults)
        case c.Parallel():
            return _pairs(file, format_, faults)
        case c.Conll() | c.ConllU():
            return _sentences(file, format_, faults)


@contextmanager
def open_text(file: Path) -> Iterator[io.TextIOBase]:
    """A text file or a gzip of one. Bytes that are not UTF-8 are kept apart, so that their line is told."""
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        with (
            opened(file, "rb") as raw,
            io.TextIOWrapper(raw, encoding="utf-8", errors="surrogateescape", newline="\n") as lines,
        ):
            yield lines
    except (OSError, EOFError) as error:  # gzip raises OSError and EOFError for a damaged file
        raise InputError(f"{file} cannot be read: {error}") from None


def _lines(file: Path, faults: Faults, *, keep_broken: bool = False) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; one that is not UTF-8 is broken."""
    with open_text(file) as lines:
        for number, line in enumerate(lines, 1):
            if any("\udc80" <= letter <= "\udcff" for letter in line) if not line.isascii() else False:
                faults.add(file, number, "not UTF-8")
                if keep_broken:
                    yield number, ""
                continue
            yield number, line.rstrip("\n").rstrip("\r")


def _texts(file: Path, format_: c.Text, faults: Faults) -> Iterator[Row]:
    if format_.lines:
        yield from (Row(text=line) for _, line in _lines(file, faults) if line.strip())
        return
    if format_.separator is None:
        text = "\n".join(line for _, line in _lines(file, faults))
        if text.strip():
            yield Row(text=text + "\n")
        return
    part: list[str] = []
    for _, line in _lines(file, faults):
        if line.strip() != format_.separator:
            part.append(line)
        elif text := "\n".join(part).strip():
            part = []
            yield Row(text=text)
        else:
            part = []
    if text := "\n".join(part).strip():
        yield Row(text=text)


def _objects(file: Path, format_: c.JsonLines, task: c.Task, faults: Faults) -> Iterator[Row]:
    for number, line in _lines(file, faults):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            faults.add(file, number, f"not JSON ({error.msg})")
            continue
        row = _from_fields(found, format_, task) if isinstance(found, dict) else "not an object"
        if isinstance(row, str):
            faults.add(file, number, row)
        else:
            yield row


def _columns(file: Path, format_: c.Parquet, task: c.Task, faults: Faults) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError("Parquet files need pyarrow: pip install 'pellucid[train]' (or pip install pyarrow)") from None
    try:
        table = parquet.ParquetFile(file)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for found in batch.to_pylist():
                number += 1
                row = _from_fields(found, format_, task)
                if isinstance(row, str):
                    faults.add(file, number, row)
                else:
                    yield row
    except (OSError, ArrowException) as error:
        raise InputError(f"{file} cannot be read as Parquet: {error}") from None


def _from_fields(found: dict[str, Any], keys: c.Fields, task: c.Task) -> Row | str:
    """The row, or why there is none."""
    match task:
        case c.LanguageModel() | c.MaskedLanguageModel():
            wanted = {"text": keys.text}
        case c.Translation():
            wanted = {"text": keys.source, "target": keys.target}
        case c.Classification():
            wanted = {"text": keys.text, "label": keys.label}
        case c.Tagging():
            return _tagged(found.get(keys.words), found.get(keys.labels), keys)
    values: dict[str, str] = {}
    for name, key in wanted.items():
        value = found.get(key)
        if isinstance(value, int) and name == "label":
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            return f"{key!r} is {value!r}, not a text"
        values[name] = value
    return Row(**values)  # type: ignore[arg-type]  # all three are texts


def _tagged(words: Any, labels: Any, keys: c.Fields) -> Row | str:
    for key, value in ((keys.words, words), (keys.labels, labels)):
        if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
            return f"{key!r} is {value!r}, not a list of words"
    if len(words) != len(labels):
        return f"{len(words)} words and {len(labels)} labels"
    return Row(words=tuple(words), labels=tuple(labels), spaces=(True,) * len(words))


def _tabs(file: Path, format_: c.Tsv, task: c.Task, faults: Faults) -> Iterator[Row]:
    for number, line in _lines(file, faults):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) <= max(format_.source, format_.target):
            faults.add(file, number, f"{len(cells)} columns, but {max(format_.source, format_.target) + 1} are needed")
            continue
        text, other = cells[format_.source].strip(), cells[format_.target].strip()
        if not text or not other:
            faults.add(file, number, "an empty column")
        elif isinstance(task, c.Translation):
            yield Row(text=text, target=other)
        else:
            yield Row(text=text, label=other)


def _pairs(file: Path, format_: c.Parallel, faults: Faults) -> Iterator[Row]:
    first, second = (file.with_name(file.name + ending) for ending in (format_.source, format_.target))
    both: Iterable[Any] = zip_longest(
        _lines(first, faults, keep_broken=True), _lines(second, faults, keep_broken=True), fillvalue=None
    )
    for one, other in both:
        if one is None or other is None:
            shorter = first if one is None else second
            raise InputError(f"{shorter} has fewer lines than its partner: do {first} and {second} belong together?")
        if not one[1].strip() or not other[1].strip():
            faults.add(first, one[0], "an empty line")
        else:
            yield Row(text=one[1].strip(), target=other[1].strip())


_UD = {"upos": 3, "xpos": 4, "deprel": 7}


def _sentences(file: Path, format_: c.Conll | c.ConllU, faults: Faults) -> Iterator[Row]:
    """A sentence with one broken line is left out whole: its labels would be wrong."""
    words: list[tuple[str, str, bool]] = []
    broken = False
    for number, line in chain(_lines(file, faults, keep_broken=True), [(0, "")]):
        if not line.strip():
            if words and not broken:
                yield Row(words=_at(words, 0), labels=_at(words, 1), spaces=_at(words, 2))
            words, broken = [], False
        elif not line.startswith("#") and not line.startswith("-DOCSTART-"):
            cell = _cell(line, format_)
            if isinstance(cell, str):
                faults.add(file, number, cell)
                broken = True
            elif cell is not None:
                words.append(cell)


def _at(words: list[tuple[str, str, bool]], place: int) -> tuple[Any, ...]:
    return tuple(word[place] for word in words)


def _cell(line: str, format_: c.Conll | c.ConllU) -> tuple[str, str, bool] | str | None:
    """Word, label and whether a space follows; None for a line that is no word; or what is wrong."""
    if isinstance(format_, c.ConllU):
        cells = line.split("\t")
        if len(cells) != 10:
            return f"{len(cells)} columns, but CoNLL-U has 10"
        if not cells[0].isdigit():  # a range such as 3-4, or an empty node such as 8.1
            return None
        found = cells[1], cells[_UD[format_.label]], "SpaceAfter=No" not in cells[9].split("|")
    else:
        cells = line.split("\t") if "\t" in line else line.split()
        furthest = max(_needed(format_.word), _needed(format_.label), 2)  # a word and its label
        if len(cells) < furthest:
            return f"{len(cells)} columns, but {furthest} are needed"
        found = cells[format_.word], cells[format_.label], True
    return found if found[0].strip() and found[1].strip() else "an empty word or label"


def _needed(column: int) -> int:
    return column + 1 if column >= 0 else -column
