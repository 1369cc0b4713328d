"""On a GPU: the fused kernels against the reference in float64, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pellucid.kernels import fused, reference
from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: run `make test-gpu` on a machine with one"),
]

LENGTH, HEADS, BATCH = 256, 4, 2


def padding(side: str) -> Tensor:
    keep = torch.ones(BATCH, LENGTH, dtype=torch.bool, device="cuda")
    keep[0, slice(0, 100) if side == "left" else slice(-100, None)] = False
    return keep


MASKS = {
    "none": lambda: Mask(),
    "causal": lambda: Mask.causal(),
    "window": lambda: Mask(window=40),
    "causal window": lambda: Mask(prefix=0, window=40),
    "prefix": lambda: Mask(prefix=50),
    "prefix per text": lambda: Mask(prefix=torch.tensor([10, 90], device="cuda")),
    "padding left": lambda: Mask(padding=padding("left")),
    "causal, padding left": lambda: Mask(prefix=0, padding=padding("left")),
    "causal, padding right": lambda: Mask(prefix=0, padding=padding("right")),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("kernel", [fused.flex, fused.sdpa])
def test_fused_kernels_equal_the_reference(mask: str, biased: bool, groups: int, kernel: object) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64)

    query, key, value = draw(BATCH, HEADS, LENGTH, 32), draw(BATCH, groups, LENGTH, 32), draw(BATCH, groups, LENGTH, 32)
    bias = draw(HEADS, 2 * LENGTH - 1) if biased else None
    upstream = draw(BATCH, HEADS, LENGTH, 32)
    found, wanted = (
        run(attend, dtype, (query, key, value), bias, MASKS[mask](), upstream)
        for attend, dtype in ((kernel, torch.float32), (reference.softmax, torch.float64))
    )
    for ours, exact in zip(found, wanted, strict=True):
        # float32 products and sums over 256 keys; gradients of the bias add up 2 x 4 x 256 rows.
        assert (ours.double() - exact).norm() <= 2e-5 * exact.norm() + 1e-7


def run(
    attend: object, dtype: torch.dtype, tensors: tuple[Tensor, ...], bias: Tensor | None, mask: Mask, upstream: Tensor
) -> list[Tensor]:
    leaves = [x.to(dtype).requires_grad_() for x in (*tensors, *([] if bias is None else [bias]))]
    view = View(LENGTH, LENGTH, torch.device("cuda"), mask, leaves[3] if bias is not None else None)
    heads = attend(*leaves[:3], scale=0.2, view=view)
    heads.backward(upstream.to(dtype))
    return [heads.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("kernel", [fused.flex, fused.sdpa])
def test_a_blind_query_gives_zeros_and_finite_gradients(kernel: object) -> None:
    query, key, value = (torch.randn(BATCH, HEADS, LENGTH, 32, device="cuda", requires_grad=True) for _ in range(3))
    view = View(LENGTH, LENGTH, torch.device("cuda"), Mask(prefix=0, padding=padding("left")))
    heads = kernel(query, key, value, scale=0.2, view=view)
    heads.square().sum().backward()
    assert (heads[0, :, :100] == 0).all()
    assert all(x.grad.isfinite().all() for x in (query, key, value))


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-bloom", "tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("kernel", ["flex", "fused"])
def test_networks_on_a_gpu_equal_the_reference_on_a_cpu(name: str, kernel: str) -> None:
    config = preset(name).model_copy(update={"head_width": 16, "value_width": 16})
    exact = Transformer(config, kernel="reference", seed=1).double().eval()
    fast = Transformer(config, kernel=kernel, seed=1).cuda().eval()
    ids = torch.randint(0, config.vocab, (2, 48), generator=torch.Generator().manual_seed(0))
    texts = (ids, ids.flip(1)) if config.is_encoder_decoder else (ids,)
    with torch.no_grad():
        wanted, found = exact(*texts), fast(*(text.cuda() for text in texts)).cpu().double()
    assert (found - wanted).norm() <= 2e-5 * wanted.norm()


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-llama"])
def test_compiled_networks_equal_eager_ones(name: str) -> None:
    config = preset(name).model_copy(update={"head_width": 16, "value_width": 16})
    network = Transformer(config, seed=1).cuda().eval()
    ids = torch.randint(0, config.vocab, (2, 48), device="cuda")
    texts = (ids, ids) if config.is_encoder_decoder else (ids,)
    compiled = torch.compile(network, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*texts), network(*texts), rtol=1e-4, atol=1e-5)
