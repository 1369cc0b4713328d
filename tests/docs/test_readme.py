"""The README's code runs, and its map is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
RUNNABLE = [block for block in BLOCKS if not block.startswith("# doctest: needs")]


@pytest.mark.parametrize("code", RUNNABLE, ids=lambda code: code.splitlines()[0])
def test_every_block_of_python_runs(code: str) -> None:
    names: dict[str, object] = {}
    if "preset" in code and "import torch" not in code:
        exec("import torch\nfrom pellucid import ModelConfig, Transformer, preset", names)
    if "Gated" in code and "import ALiBi" not in code:
        exec("from pellucid import ModelConfig\nfrom pellucid.model.config import ALiBi, Gated", names)
    exec(code, names)


def test_the_blocks_were_found() -> None:
    assert len(RUNNABLE) >= 4


def test_every_file_of_the_map_exists_and_every_source_file_is_on_it() -> None:
    on_map: set[Path] = set()
    for row in re.findall(r"^\| `src/pellucid/.*$", README, re.MULTILINE):
        paths = re.findall(r"`([\w./]+)`", row)
        folder = ROOT / paths[0] if paths[0].endswith("/") else ROOT
        on_map |= {folder / path if folder != ROOT else ROOT / path for path in paths if path.endswith(".py")}
    missing = [path for path in on_map if not path.exists()]
    assert not missing
    source = {
        path
        for part in (
            "kernels",
            "model",
            "pretrained",
            "lens",
            "spectra",
            "generation",
            "lora",
            "training",
            "web",
            "figures",
            "report",
        )
        for path in (ROOT / "src/pellucid" / part).glob("*.py")
        if path.name != "__init__.py"
    }
    assert not source - on_map


@pytest.mark.parametrize("command", ["check", "test"])
def test_the_two_commands_are_targets_and_what_ci_runs(command: str) -> None:
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert f"make {command}" in README
    assert f"make {command}\n" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/trace.md",
        "docs/checkpoints.md",
        "docs/spectra.md",
        "docs/generate.md",
        "docs/lora.md",
        "docs/train.md",
        "docs/models.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), target
