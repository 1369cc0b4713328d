"""What is built and handed on: all files of the page and of the bundled models, and no corpora."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
SHIPPED = ("pellucid/web/static", "pellucid/pretrained/bundled", "pellucid/report")
BUILD = "from hatchling import build; import sys; print(getattr(build, sys.argv[1])(sys.argv[2]))"
DATA = (".txt", ".gz", ".jsonl", ".csv", ".tsv", ".parquet", ".bin", ".pt")
LARGEST = 64 * 2**20


def built(kind: str, folder: Path) -> Path:
    """By the package's own build tool, in a process of its own, from the files of this tree."""
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return folder / run.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Its files, each with its size."""
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        return {entry.filename: entry.file_size for entry in archive.infolist()}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    with tarfile.open(built("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {member.name.split("/", 1)[1]: member.size for member in archive.getmembers() if member.isfile()}


def files_of(folder: str) -> dict[str, int]:
    found = (path for path in (SOURCE / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE).as_posix(): path.stat().st_size for path in found}


@pytest.mark.parametrize("folder", SHIPPED)
def test_the_wheel_holds_every_file(wheel: dict[str, int], folder: str) -> None:
    wanted = files_of(folder)
    assert wanted
    assert {name: wheel.get(name) for name in wanted} == wanted


def test_the_wheel_holds_the_package_and_nothing_else(wheel: dict[str, int]) -> None:
    foreign = [name for name in wheel if not name.startswith("pellucid/") and ".dist-info/" not in name]
    assert foreign == []
    assert "pellucid/py.typed" in wheel
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)


def test_no_corpus_is_handed_on(wheel: dict[str, int], sdist: dict[str, int]) -> None:
    bundled = "pellucid/pretrained/bundled/"
    for name, size in [*wheel.items(), *sdist.items()]:
        own = ".dist-info/" in name or bundled in name
        assert own or not name.endswith(DATA), name
        assert size < LARGEST, name
    assert {name.split("/")[0] for name in sdist if "/" in name} <= {"src", "tests", "licenses"}
