"""torch.compile takes every model whole (fullgraph) and changes nothing. Run without the shape checker, by itself.

Dynamo traces all presets. The large ones are traced on the meta device with their full width and two blocks of each
stack: the other blocks are the same code, at 0.1 to 0.2 seconds each. What Inductor makes takes half a minute a model
while its cache is cold, so one model is compared with its eager self in every run, and all of them by `make test-slow`;
in every run the others go through AOT autograd, which traces the backward pass too but runs PyTorch's own kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.model import config as c
from pellucid.model.presets import PRESETS
from pellucid.model.transformer import Transformer
from tests.model.small import MECHANISMS

LARGE = [name for name in PRESETS if not name.startswith("tiny-")]
TINY = [name for name in PRESETS if name.startswith("tiny-")]

# In torch 2.13 AOT autograd lays the graph out with other strides for the gradient of ELU than PyTorch's kernel gives
# it, and trips over a view then; Inductor does not.
BACKENDS = {"tiny-gpt2": "inductor", "linear_elu": "eager"}

# Sums of up to a few hundred products in float32 (eps 1.2e-7), in another order.
CLOSE = {"rtol": 2e-4, "atol": 2e-5}


# Inductor's own imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def shallow(config: c.ModelConfig, blocks: int) -> c.ModelConfig:
    depths = {name: min(getattr(config, name), blocks) for name in ("encoder_blocks", "decoder_blocks")}
    return config.model_copy(update=depths)


def texts(config: c.ModelConfig, device: str = "cpu", length: int = 6) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Two texts, the first padded on the left; for an encoder-decoder, a longer source as well."""
    lengths = (length + 1, length) if config.is_encoder_decoder else (length,)
    draw = torch.Generator().manual_seed(0)
    ids = tuple(torch.randint(config.vocab, (2, size), generator=draw).to(device) for size in lengths)
    keep = [(torch.arange(size) >= torch.tensor([[2], [0]])).to(device) for size in lengths]
    return ids, dict(zip(("padding", "target_padding"), keep, strict=False))


def compiled(network: Transformer, backend: str) -> Any:
    return torch.compile(network, backend=backend, fullgraph=True)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", LARGE)
def test_dynamo_traces_every_large_preset_without_a_break(name: str, padded: bool):
    config, device = shallow(PRESETS[name], 2), "meta"
    if isinstance(config.position, c.ALiBi):
        # Dynamo cannot make the slopes on the meta device; narrow, the model fits on a CPU.
        narrow = {"width": 2 * config.heads, "feed_forward": c.Plain(hidden=8, activation="gelu_tanh"), "vocab": 64}
        config, device = config.model_copy(update=narrow), "cpu"
    with torch.device(device):
        network = Transformer(config).eval()
    ids, padding = texts(config, device)
    scores = compiled(network, "eager")(*ids, **(padding if padded else {}))
    assert scores.shape == network(*ids).shape


def test_dynamo_traces_a_whole_large_preset():
    with torch.device("meta"):
        network = Transformer(PRESETS["gpt2-small"]).eval()
    ids, _ = texts(network.config, "meta")
    assert compiled(network, "eager")(*ids).shape == (2, 6, 50_257)


@pytest.mark.parametrize("name", [*TINY, *MECHANISMS])
def test_values_and_gradients_are_the_same_compiled(name: str):
    assert_same(small(name), BACKENDS.get(name, "aot_eager"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TINY, *MECHANISMS])
def test_values_and_gradients_are_the_same_through_inductor(name: str):
    assert_same(small(name), "inductor")


def small(name: str) -> Transformer:
    """A tiny preset with one block, or a block with a mechanism."""
    if name in PRESETS:
        return Transformer(shallow(PRESETS[name], 1), seed=0)
    attention = MECHANISMS[name]
    stack = "encoder_blocks" if isinstance(attention, c.Linformer) else "decoder_blocks"
    position = c.Learned() if isinstance(attention, c.Linformer) else c.Rotary()
    config = c.ModelConfig(
        vocab=17,
        width=16,
        heads=4,
        key_value_heads=2,
        context=8,
        feed_forward=c.Gated(hidden=24),
        attention=attention,
        position=position,
        **{stack: 1},
    )
    return Transformer(config, seed=0)


def assert_same(network: Transformer, backend: str) -> None:
    ids, padding = texts(network.config)
    eager, eager_grads = results(network, network, ids, padding)
    fast, fast_grads = results(compiled(network, backend), network, ids, padding)
    torch.testing.assert_close(fast, eager, **CLOSE)
    torch.testing.assert_close(fast_grads, eager_grads, **CLOSE)


def results(
    call: Any, network: Transformer, ids: tuple[Tensor, ...], padding: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    network.zero_grad()
    scores = call(*ids, **padding)
    scores.square().mean().backward()
    grads = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    assert grads
    return scores.detach(), grads


@pytest.mark.parametrize("name", ["tiny-original", "tiny-gpt2", "tiny-llama", "tiny-t5", "tiny-bloom"])
@pytest.mark.parametrize("attention", [None, c.NormalizedRelu(), c.Linear(chunk=4)], ids=["own", "relu", "linear"])
@torch.no_grad()
def test_a_cached_step_is_traced_whole_and_is_the_same(name: str, attention: c.Attention | None):
    config = PRESETS[name]
    if attention is not None:
        if isinstance(attention, c.Linear) and isinstance(config.position, c.ScoreBias):
            config = config.model_copy(update={"position": c.Rotary()})
        config = config.model_copy(update={"attention": attention})
    network = Transformer(config, seed=0).eval()
    (*source, ids), padding = texts(config)
    memory = network.encode(*source, padding=padding["padding"]) if source else None
    sides = {"source_padding": padding["padding"]} if source else {}
    keep = list(padding.values())[-1]
    step = torch.compile(network.decode, backend="eager", fullgraph=True)

    def read(decode: Any) -> Tensor:
        cache = network.new_cache(2, ids.shape[1])
        answers = [decode(ids[:, :3], memory, padding=keep[:, :3], cache=cache, **sides)]
        answers += [decode(ids[:, at : at + 1], cache=cache) for at in range(3, ids.shape[1])]
        return torch.cat(answers, 1)

    torch.testing.assert_close(read(step), read(network.decode), **CLOSE)


@torch.no_grad()
def test_a_prefix_is_traced_whole_and_is_the_same():
    network = Transformer(PRESETS["tiny-bloom"], seed=0).eval()
    ids, padding = texts(network.config)
    step = compiled(network, "eager")
    for options in ({"prefix": 3}, {"prefix": 3, **padding}, {"prefix": torch.tensor([1, 3]), **padding}):
        torch.testing.assert_close(step(*ids, **options), network(*ids, **options), **CLOSE)
