"""Files damaged at random: a checkpoint opens, or a `PellucidError` says why not. Nothing else may come out.

Every case is drawn from its number, so a failure is repeated by the number in its message.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.errors import PellucidError
from pellucid.pretrained import save
from tests.pretrained.checkpoints import BLOOM, GPT2, WEIGHTS, write

INDEX = "model.safetensors.index.json"
SECONDS = 10.0  # for one case, which takes milliseconds: the machine may be busy

Damage = Callable[[bytes, random.Random, int, int], bytes]


def flip(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    """Some bits of a few bytes."""
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        damaged[draw.randrange(low, high)] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def truncate(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    return content[: draw.randrange(low, high)]


def insert(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    at = draw.randrange(low, high)
    return content[:at] + draw.randbytes(draw.choice((1, 2, 7, 64))) + content[at:]


def zero(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    at, length = draw.randrange(low, high), draw.choice((1, 4, 16, 256))
    return content[:at] + bytes(len(content[at : at + length])) + content[at + length :]


def remove(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    at = draw.randrange(low, high)
    return content[:at] + content[at + draw.choice((1, 2, 16)) :]


def change_digit(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    """Another digit, or many: what text can suffer and still be read."""
    places = [at for at in range(low, high) if content[at : at + 1].isdigit()]
    at = draw.choice(places)
    return (
        content[:at]
        + str(10 ** draw.choice((0, 1, 2, 9, 12, 18, 20, 30)) + draw.randrange(10)).encode()
        + content[at + 1 :]
    )


def change_value(content: bytes, draw: random.Random, low: int, high: int) -> bytes:
    """Another JSON value under a key of the file."""
    values = json.loads(content)
    part = values
    while True:
        key = draw.choice(list(part) if isinstance(part, dict) else range(len(part)))
        if isinstance(part[key], dict | list) and part[key] and draw.random() < 0.7:
            part = part[key]
            continue
        part[key] = draw.choice(VALUES)
        return json.dumps(values).encode()


VALUES = [None, True, 0, -1, 1, 2, 3, 7, 10**9, 10**12, 2**63, 2**64, 10**40, 0.5, -1e300, 1e999, float("nan"), "", "x"]
VALUES += [
    "../config.json",
    "gpt2",
    "bloom",
    "gelu",
    "\ud800",
    "\0",
    [],
    {},
    [[]],
    {"": {}},
    [None],
    [1, "x"],
    {"0": 1},
]
ON_BYTES: list[Damage] = [flip, truncate, insert, zero, remove]
ON_TEXT: list[Damage] = [*ON_BYTES, change_digit, change_value, change_value]
# Where to damage, how, and how many cases for each checkpoint. The header of the weights is drawn by itself: it is a
# small part of the file and the one that has a grammar.
PLACES = {
    "header": (WEIGHTS, [*ON_BYTES, change_digit], 420),
    "data": (WEIGHTS, ON_BYTES, 120),
    "config": ("config.json", ON_TEXT, 420),
    "index": (INDEX, ON_TEXT, 240),
    "tokenizer": ("tokenizer.json", ON_TEXT, 240),
    "ours": ("pellucid.json", ON_TEXT, 240),
}


@pytest.fixture(scope="module", params=["gpt2", "bloom"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in one file, and beside it the same in shards and in our own layout."""
    folder = write(
        tmp_path_factory.mktemp("whole") / "one", {"gpt2": GPT2, "bloom": BLOOM}[request.param], request.param
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(save, "SHARD_BYTES", 6000)
        save.export(pellucid.load(folder), folder.parent / "index")
        save.save(pellucid.load(folder), folder.parent / "ours")
    return folder


def test_there_are_enough_cases() -> None:
    assert 2 * sum(count for _, _, count in PLACES.values()) >= 2000


@pytest.mark.parametrize("place", PLACES)
@torch.no_grad()
def test_a_damaged_checkpoint_opens_or_is_refused(whole: Path, tmp_path: Path, place: str) -> None:
    name, damages, count = PLACES[place]
    source = whole.parent / place if place in ("index", "ours") else whole
    folder = Path(shutil.copytree(source, tmp_path / "damaged"))
    content = (folder / name).read_bytes()
    low, high = bounds(place, content)
    refused = 0
    for case in range(count):
        draw = random.Random(f"{place} {case}")
        damage = draw.choice(damages)
        (folder / name).write_bytes(damage(content, draw, low, high))
        began = time.monotonic()
        try:
            pellucid.load(folder)
        except PellucidError:
            refused += 1
        except BaseException as error:
            pytest.fail(f"{name}, {damage.__name__}, case {case}: {type(error).__name__}: {error}")
        assert time.monotonic() - began < SECONDS, f"{name}, {damage.__name__}, case {case} took too long"
    assert refused > count * (0.1 if place == "data" else 0.5)


def bounds(place: str, content: bytes) -> tuple[int, int]:
    """The part of the file to damage."""
    header = 8 + int.from_bytes(content[:8], "little")
    return {"header": (0, header), "data": (header, len(content))}.get(place, (0, len(content)))


def test_a_flipped_bit_changes_one_number(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "damaged"))
    content = (folder / WEIGHTS).read_bytes()
    wanted = pellucid.load(whole).network.state_dict()
    low, high = bounds("data", content)
    for case in range(50):
        damaged = bytearray(content)
        damaged[random.Random(case).randrange(low, high)] ^= 1
        (folder / WEIGHTS).write_bytes(damaged)
        found = pellucid.load(folder).network.state_dict()
        assert sum(int((found[name] != wanted[name]).sum()) for name in wanted) == 1
