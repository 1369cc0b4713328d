"""The Triton kernels, through Triton's interpreter: the same source that a GPU runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.operator_cases import CASES

ROOT = Path(__file__).parents[2]
# Inputs are rounded before both sides see them; products of bfloat16 round the weights and the right-hand side again.
LIMITS = {
    "float32": {"energy": 1e-6, "apply": 1e-5, "apply_transposed": 1e-5},
    "bfloat16": {"energy": 1e-6, "apply": 5e-3, "apply_transposed": 5e-3},
}
# Of single rows, in float32: a score of a few units is off by 1e-6.
ROWS = {"lse": 5e-6, "entropy": 1e-5, "distance": 1e-5, "diagonal": 1e-5, "blind": 0.0, "of blind": 0.0}


@pytest.mark.parametrize("kind", LIMITS)
def test_every_case_equals_the_dense_twin(kind):
    command = [sys.executable, "-m", "tests.kernels.interpreted", kind]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert set(found) == set(CASES)
    wrong = [
        f"{name}: {what} is off by {errors[what]:.2e}, more than {limit:.0e}"
        for name, errors in found.items()
        for what, limit in (LIMITS[kind] | ROWS).items()
        if not errors[what] <= limit
    ]
    assert not wrong, "\n".join(wrong)
