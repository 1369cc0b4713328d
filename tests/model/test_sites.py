"""The sites: the names of DESIGN's vocabulary, in the order in which a call passes them, with the axes they promise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pellucid import axes
from pellucid.errors import InputError
from pellucid.model import config as c
from pellucid.model.presets import PRESETS
from pellucid.model.sites import axes_of, sites
from pellucid.model.transformer import Transformer

TINY = [name for name in PRESETS if name.startswith("tiny-")]
KERNELS = ["fused", "reference"]


def build(name: str, kernel: str) -> Transformer:
    return Transformer(PRESETS[name], kernel=kernel, seed=0).eval()


def texts(config: c.ModelConfig) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    lengths = (7, 5) if config.is_encoder_decoder else (5,)
    keep = [torch.arange(length) >= torch.tensor([[2], [0]]) for length in lengths]
    ids = tuple(torch.randint(config.vocab, (2, length), generator=draw) for length in lengths)
    return ids, dict(zip(("padding", "target_padding"), keep, strict=False))


def visited(network: Transformer) -> tuple[list[tuple[str, Tensor]], Tensor]:
    """Every site that a call passes, in order, with its value; and the probabilities."""
    seen: list[tuple[str, Tensor]] = []
    hooks = [
        site.register_forward_hook(lambda *call, name=name: seen.append((name, call[2].detach().clone())))
        for name, site in sites(network).items()
    ]
    ids, padding = texts(network.config)
    with torch.no_grad():
        answer = network.predict(*ids, **padding)
    for hook in hooks:
        hook.remove()
    return seen, answer


def vocabulary(config: c.ModelConfig, kernel: str) -> list[str]:
    """DESIGN's names, for a model of this config on this kernel."""

    def embedding(owner: str) -> list[str]:
        words = ["tokens"]
        words += ["positions"] if isinstance(config.position, c.Sinusoidal | c.Learned) else []
        words += ["segments"] if config.segments else []
        return [f"{owner}embedding.{word}" for word in [*words, "sum", *(["norm"] if config.embedding_norm else [])]]

    matrices = ["scores", "weights"] if kernel == "reference" else []
    attention = ["input", "query", "key", "value", *matrices, "heads", "output"]

    def block(name: str, *, cross: bool) -> list[str]:
        words = [f"attention.{word}" for word in attention] + ["residual.mid"]
        words += [f"cross.{word}" for word in attention] + ["residual.cross"] if cross else []
        words += [f"feed_forward.{word}" for word in ("input", "hidden", "active", "output")]
        return [f"{name}.{word}" for word in [*words, "residual.out"]]

    def stack(name: str, depth: int, *, cross: bool) -> list[str]:
        return [site for index in range(depth) for site in block(f"{name}.{index}", cross=cross)]

    both = config.is_encoder_decoder
    encoder = stack("encoder", config.encoder_blocks, cross=False)
    decoder = stack("decoder", config.decoder_blocks, cross=both)
    if both:
        encoder = [*embedding("encoder."), *encoder, "encoder.final.norm"]
    ordered = [*encoder, *embedding(""), *decoder] if both else [*embedding(""), *encoder, *decoder]
    return [*ordered, "final.norm", "logits", "probabilities"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TINY)
def test_a_call_passes_every_site_of_the_vocabulary_in_order(name: str, kernel: str):
    network = build(name, kernel)
    expected = vocabulary(network.config, kernel)
    seen = [site for site, _ in visited(network)[0]]
    assert sorted(seen) == sorted(expected)
    assert sorted(sites(network)) == sorted(expected)
    # Cross-attention makes its keys and values before its queries; in all else the order is the vocabulary's.
    assert [site for site in seen if ".cross." not in site] == [site for site in expected if ".cross." not in site]
    assert [site.split(".")[:3] for site in seen] == [site.split(".")[:3] for site in expected]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TINY)
def test_the_axes_of_a_site_are_those_of_its_value(name: str, kernel: str):
    network = build(name, kernel)
    config = network.config
    for site, value in visited(network)[0]:
        if site in ("logits", "probabilities") and isinstance(config.head, c.Pool):
            continue  # a vector per text: the names are promised for the unembedding
        own = 7 if site.startswith("encoder.") and config.is_encoder_decoder else 5
        sizes = {
            axes.BATCH: 2,
            axes.TOKEN: own,
            axes.QUERY: own,
            axes.KEY: 7 if ".cross." in site else own,
            axes.HEADS: config.heads,
            axes.KEY_VALUE_HEADS: config.groups,
            axes.HEAD_WIDTH: config.key_width,
            axes.VALUE_WIDTH: config.values_width,
            axes.WIDTH: config.width,
            axes.HIDDEN: config.feed_forward.hidden,
            axes.VOCAB: config.vocab,
        }
        wanted = [sizes[axis] for axis in axes_of(site)]
        assert list(value.shape) == wanted, site


def test_an_unknown_site_is_refused_with_its_name():
    with pytest.raises(
        InputError, match=r"no site is called 'decoder.0.attention.kwery'; sites end in .*attention.query"
    ):
        axes_of("decoder.0.attention.kwery")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", TINY)
def test_looking_changes_no_bit(name: str, kernel: str):
    network = build(name, kernel)
    ids, padding = texts(network.config)
    with torch.no_grad():
        unseen = network.predict(*ids, **padding)
    assert torch.equal(visited(network)[1], unseen)


@pytest.mark.parametrize("name", TINY)
def test_a_hook_may_change_what_comes_after(name: str):
    network = build(name, "fused")
    ids, padding = texts(network.config)
    site = sites(network)["final.norm"]
    with torch.no_grad():
        before = network(*ids, **padding)
        hook = site.register_forward_hook(lambda _module, _inputs, value: torch.randn_like(value))
        after = network(*ids, **padding)
        hook.remove()
    assert not torch.equal(before, after)


@pytest.mark.parametrize("name", TINY)
def test_rows_of_weights_sum_to_one_and_hidden_scores_are_minus_infinity(name: str):
    network = build(name, "reference")
    values = dict(visited(network)[0])
    kinds = [site.removesuffix(".weights") for site in values if site.endswith(".weights")]
    assert len(kinds) == network.config.encoder_blocks + network.config.decoder_blocks * (
        2 if network.config.is_encoder_decoder else 1
    )
    for kind in kinds:
        scores, weights = values[f"{kind}.scores"], values[f"{kind}.weights"]
        hidden = expected_hidden(network.config, kind).expand_as(scores)
        assert torch.equal(scores == -torch.inf, hidden), kind
        assert (weights[hidden] == 0).all()
        rows = (~hidden.all(-1)).to(weights.dtype)
        torch.testing.assert_close(weights.sum(-1), rows, rtol=0, atol=1e-6)


def expected_hidden(config: c.ModelConfig, kind: str) -> Tensor:
    """Written out anew: the padding of the keys, and the future in a decoder's own attention."""
    _, padding = texts(config)
    own = list(padding.values())[-1]
    keys = padding["padding"] if kind.startswith("encoder.") or ".cross" in kind else own
    hidden = ~keys[:, None, None, :].expand(-1, 1, keys.shape[1] if ".cross" not in kind else own.shape[1], -1)
    if kind.startswith("decoder.") and ".cross" not in kind:
        hidden = hidden | torch.ones(5, 5, dtype=torch.bool).triu(1)
    return hidden


def test_linear_attention_shows_weights_but_has_no_scores():
    config = PRESETS["tiny-gpt2"].model_copy(update={"attention": c.Linear()})
    values = dict(visited(Transformer(config, kernel="reference", seed=0).eval())[0])
    weights = values["decoder.0.attention.weights"]
    assert "decoder.0.attention.scores" not in values
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(4, 5))
    assert (weights[0, :, :, :2] == 0).all()
