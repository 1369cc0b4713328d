"""The package from outside: light to import, clear about its names, the same as a command and as a module."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import pellucid

HEAVY = ("torch", "numpy", "pydantic", "safetensors", "tokenizers", "transformers")
# typer and rich come with about 300; torch alone would bring a thousand more.
MODULES = 450

# Runs a command in this interpreter, then says on stderr what was imported for it.
COMMAND = """
import json, sys
from pellucid.cli.main import main
sys.argv = ["pellucid", *sys.argv[1:]]
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a fresh process, where nothing has been imported yet and warnings are errors."""
    return subprocess.run([sys.executable, "-W", "error", *arguments], capture_output=True, text=True, check=False)


def test_importing_the_package_imports_nothing_heavy():
    done = python("-c", "import json, sys, pellucid; print(json.dumps(sorted(sys.modules)))")
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    assert "pellucid" in modules
    assert not set(HEAVY) & set(modules)


def test_a_config_needs_no_torch():
    done = python("-c", "import sys, pellucid; pellucid.preset('tiny-gpt2'); print('torch' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_asking_for_help_or_the_version_imports_nothing_heavy(option: str):
    done = python("-c", COMMAND, option)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stderr)
    assert not set(HEAVY) & set(modules)
    assert len(modules) < MODULES
    assert "pellucid" in done.stdout.lower()


@pytest.mark.parametrize("name", pellucid.__all__)
def test_every_public_name_resolves(name: str):
    assert getattr(pellucid, name) is not None


def test_dir_lists_the_public_names():
    assert dir(pellucid) == sorted(pellucid.__all__)


def test_every_lazy_name_is_public():
    assert {*pellucid._HOMES, "__version__"} == set(pellucid.__all__)


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(AttributeError, match=r"module 'pellucid' has no attribute 'Transfomer'; it has .*Transformer"):
        _ = pellucid.Transfomer


def test_the_module_is_the_command():
    done = python("-m", "pellucid", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"pellucid {pellucid.__version__}\n", "")


def test_models_as_json_is_json_and_nothing_else():
    done = python("-m", "pellucid", "models", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    # 50257 x 768 tokens, 1024 x 768 positions, 12 blocks of 7,087,872 and a norm of 1,536: GPT-2 has 124,439,808.
    assert rows["gpt2-small"]["parameters"] == 50_257 * 768 + 1024 * 768 + 12 * 7_087_872 + 1_536 == 124_439_808


def test_an_unknown_command_is_refused_with_exit_code_2():
    done = python("-m", "pellucid", "modles")
    assert (done.returncode, done.stdout) == (2, "")
    assert "modles" in done.stderr
