"""Tokenised documents on disk: flat columns of numbers, mapped into memory, with a checksum each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from pellucid.errors import CheckpointError

SHARD_BYTES = 2**30
MANIFEST, LENGTHS = "manifest.json", "lengths.npy"
Numbers = NDArray[Any]


def digest_of(file: Path) -> str:
    found = blake2b(digest_size=16)
    with file.open("rb") as data:
        while block := data.read(2**22):
            found.update(block)
    return found.hexdigest()


class Writer:
    """Appends documents to shards; `close` writes what `Store` reads them by."""

    def __init__(self, folder: Path, dtypes: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder, self.dtypes = folder, dict(dtypes)
        self.lengths: dict[str, list[int]] = {column: [] for column in dtypes}
        self.shards: list[int] = []
        self.files: dict[str, BinaryIO] = {}
        self.room = 0

    def add(self, columns: Mapping[str, Sequence[int]]) -> None:
        if self.room <= 0:
            self._next()
        for column, numbers in columns.items():
            written = np.asarray(numbers, dtype=self.dtypes[column])
            self.files[column].write(written.tobytes())
            self.lengths[column].append(len(written))
            self.room -= written.nbytes
        self.shards[-1] += 1

    def close(self, **facts: Any) -> None:
        self._end()
        table = np.array([self.lengths[column] for column in self.dtypes], dtype=np.int64)
        np.save(self.folder / LENGTHS, table)
        files = sorted(file for file in self.folder.iterdir() if file.name != MANIFEST)
        manifest = {
            "columns": self.dtypes,
            "shards": self.shards,
            "checksums": {file.name: digest_of(file) for file in files},
            "facts": facts,
        }
        (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")

    def _next(self) -> None:
        self._end()
        index = len(self.shards)
        self.files = {column: (self.folder / shard_name(column, index)).open("wb") for column in self.dtypes}
        self.shards.append(0)
        self.room = SHARD_BYTES

    def _end(self) -> None:
        for file in self.files.values():
            file.close()


def shard_name(column: str, index: int) -> str:
    return f"{column}-{index:05d}.bin"


class Store:
    """The documents of a folder. `lengths` gives, for each column, how many numbers every document has."""

    def __init__(self, folder: Path) -> None:
        manifest = _manifest(folder)
        self.facts: dict[str, Any] = manifest["facts"]
        table: Numbers = np.load(folder / LENGTHS)
        self.lengths = {column: table[place] for place, column in enumerate(manifest["columns"])}
        self.offsets = {column: _offsets(lengths) for column, lengths in self.lengths.items()}
        self._firsts = np.cumsum([0, *manifest["shards"]])
        self._maps = {
            column: [_mapped(folder / shard_name(column, k), dtype) for k in range(len(manifest["shards"]))]
            for column, dtype in manifest["columns"].items()
        }

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def document(self, column: str, place: int, start: int = 0, stop: int | None = None) -> Numbers:
        """The numbers start:stop of one document."""
        first = int(self.offsets[column][place])
        length = int(self.lengths[column][place])
        return self.stream(column, first + start, first + (length if stop is None else min(stop, length)))

    def stream(self, column: str, start: int, stop: int) -> Numbers:
        """The numbers start:stop of all documents end to end."""
        bounds = self.offsets[column][self._firsts]
        parts = []
        while start < stop:
            shard = int(np.searchsorted(bounds, start, "right")) - 1
            end = min(stop, int(bounds[shard + 1]))
            parts.append(self._maps[column][shard][start - bounds[shard] : end - bounds[shard]])
            start = end
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, np.int64)])

    def total(self, column: str) -> int:
        return int(self.offsets[column][-1])


def _offsets(lengths: Numbers) -> Numbers:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _mapped(file: Path, dtype: str) -> Numbers:
    return np.memmap(file, dtype=dtype, mode="r") if file.stat().st_size else np.zeros(0, dtype)


def _manifest(folder: Path) -> dict[str, Any]:
    """Checked: a file that was cut short or changed is found before it is learned from."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
        for name, wanted in manifest["checksums"].items():
            if digest_of(folder / name) != wanted:
                raise CheckpointError(
                    f"{folder / name} is not what was written: its checksum differs. Remove {folder.parent} to make "
                    "the tokenised data again"
                )
    except (OSError, json.JSONDecodeError, KeyError) as error:
        raise CheckpointError(
            f"{folder} holds no readable tokenised data ({error!r}): remove {folder.parent} to make it again"
        ) from None
    return manifest
