"""On a GPU: the Triton operator against the dense twin in float64, its spectra against the dense ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.operator_cases import CASES, SCALE, dense_twin, head_batch, product_errors
from tests.spectra.heads import TAUS, exact_values
from torch import Tensor

from pellucid.errors import KernelError
from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import AttentionOperator
from pellucid.kernels.view import View
from pellucid.spectra.operator import open_operator
from pellucid.spectra.rank import effective_rank
from pellucid.spectra.spectrum import Effort, free_spectrum

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: run `make test-gpu` on a machine with one"),
]

CUDA = torch.device("cuda")
# Of a product, and of the singular values.
LIMITS = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (5e-3, 2e-3)}
every_type = pytest.mark.parametrize("dtype", LIMITS)


def on_gpu(query: Tensor, key: Tensor, view: View) -> tuple[Tensor, Tensor, View]:
    mask = view.mask
    prefix = mask.prefix.cuda() if isinstance(mask.prefix, Tensor) else mask.prefix
    mask = replace(mask, prefix=prefix, padding=None if mask.padding is None else mask.padding.cuda())
    bias = None if view.bias is None else view.bias.cuda()
    return query.cuda(), key.cuda(), replace(view, device=CUDA, mask=mask, bias=bias)


# Each set of switches is a compilation of seconds: all of them run in the interpreter, and these here.
SWITCHES = ["none", "causal, two tiles", "prefix per text, biased", "blind rows", "wide"]


@every_type
@pytest.mark.parametrize("name", SWITCHES)
def test_equals_the_dense_twin(name, dtype):
    mask, size, groups, biased, _, columns = CASES[name]
    query, key, view = on_gpu(*head_batch(mask, size, groups=groups, biased=biased, width=16, dtype=dtype))
    operator, twin = open_operator(query, key, scale=SCALE, view=view), dense_twin(query, key, view)
    assert type(operator).__name__ == "TritonOperator"
    errors = product_errors(operator, twin, columns)
    assert errors["energy"] <= 1e-6
    assert max(errors.values()) <= LIMITS[dtype][0]
    seen = twin.lse() > -torch.inf
    for ours, exact in (
        (operator.lse(), twin.lse()),
        (operator.row_entropy(), twin.row_entropy()),
        (operator.row_distance(), twin.row_distance()),
        (operator.diagonal(-1), twin.diagonal(-1)),
    ):
        torch.testing.assert_close(ours[seen].double(), exact[seen], rtol=1e-5, atol=1e-5)
    assert (operator.lse()[~seen] == -torch.inf).all()


def long_head(kind: str, dtype: torch.dtype) -> AttentionOperator:
    length, draw = 4096 if kind != "cross" else 3000, torch.Generator().manual_seed(0)
    keys = 4096
    query, key = (torch.randn(1, 1, n, 64, generator=draw).to(dtype) for n in (length, keys))
    alibi = -0.01 * (torch.arange(length + keys - 1) - (length - 1)).abs()[None].float()
    view = {
        "full": View(length, keys, CUDA),
        "causal": View(length, keys, CUDA, Mask.causal()),
        "window, biased": View(length, keys, CUDA, Mask(prefix=0, window=300), alibi),
        "cross": View(length, keys, CUDA),
    }[kind]
    return open_operator(*on_gpu(query, key, view)[:2], scale=0.15, view=on_gpu(query, key, view)[2])


@every_type
@pytest.mark.parametrize("kind", ["full", "causal", "window, biased", "cross"])
def test_long_heads(kind, dtype):
    operator = long_head(kind, dtype)
    twin = dense_twin(operator.query, operator.key, operator.view, operator.scale)
    errors = product_errors(operator, twin, columns=64)
    assert errors["energy"] <= 1e-6
    assert max(errors.values()) <= LIMITS[dtype][0]
    exact = exact_values(operator).cpu()
    found = free_spectrum(operator, Effort(tau=TAUS, budget=1024))
    top = torch.tensor(found.values[:64], dtype=torch.float64)
    assert ((top - exact[:64]).abs() <= LIMITS[dtype][1] * exact[:64]).all()
    for tau in TAUS:
        low, high = found.effective[tau]
        assert low <= effective_rank(exact.square(), tau) <= high


def test_an_all_blind_text_is_zeros():
    mask = Mask(padding=torch.zeros(2, 50, dtype=torch.bool))
    query, key, view = on_gpu(*head_batch("none", (50, 50, 0), dtype=torch.bfloat16))
    operator = open_operator(
        query, key, scale=SCALE, view=replace(view, mask=replace(mask, padding=mask.padding.cuda()))
    )
    assert (operator.energy() == 0).all()
    assert (operator.apply(torch.ones(2, 4, 50, 3, device="cuda")) == 0).all()
    assert (operator.column_mass() == 0).all()


def test_refuses_float64_and_mixed_types():
    query, key, view = on_gpu(*head_batch("none", (50, 50, 0), dtype=torch.float64))
    assert type(open_operator(query, key, scale=SCALE, view=view)).__name__ == "TiledOperator"
    for pair in ((query, key), (query.float(), key.bfloat16())):
        with pytest.raises(KernelError, match="of one type"):
            open_operator(*pair, scale=SCALE, view=view, backend="triton")
