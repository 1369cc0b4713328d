"""Run as a program: the Triton kernels of one type, through Triton's interpreter, against the dense twin.

Triton decides when it is imported whether it interprets, so this is a process of its own: TRITON_INTERPRET=1 set inside
a test would reach too late, or too far. Prints the errors of each case as JSON.
"""

from __future__ import annotations

import json
import sys

import torch

from pellucid.kernels import operator_triton
from pellucid.kernels.operator_triton import TritonOperator
from tests.kernels.operator_cases import CASES, SCALE, dense_twin, head_batch, product_errors


def errors(name: str, dtype: torch.dtype) -> dict[str, float]:
    mask, size, groups, biased, width, columns = CASES[name]
    query, key, view = head_batch(mask, size, groups=groups, biased=biased, width=width, dtype=dtype)
    operator, twin = TritonOperator(query, key, scale=SCALE, view=view), dense_twin(query, key, view)
    found = product_errors(operator, twin, columns)
    seen = twin.lse() > -torch.inf
    assert torch.equal(operator.lse() > -torch.inf, seen)
    rows = {"lse": (operator.lse(), twin.lse()), "entropy": (operator.row_entropy(), twin.row_entropy())}
    rows["distance"] = (operator.row_distance() / size[1], twin.row_distance() / size[1])
    rows["diagonal"] = (operator.diagonal(), twin.diagonal())
    found |= {what: float((ours.double() - exact)[seen].abs().max()) for what, (ours, exact) in rows.items()}
    blind = (~seen)[..., None]
    y = torch.ones(*query.shape[:3], 2) * blind
    found["blind"] = float((operator.apply(torch.ones(*query.shape[:2], size[1], 2)) * blind).abs().max())
    found["of blind"] = float(operator.apply_transposed(y).abs().max())
    return found


if __name__ == "__main__":
    assert operator_triton.INTERPRETED, "set TRITON_INTERPRET=1"
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[sys.argv[1]]
    print(json.dumps({name: errors(name, kind) for name in CASES}))
