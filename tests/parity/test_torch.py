"""Our parts with PyTorch's own weights, in float64: they are the same functions, in values and in gradients."""

from itertools import product

import pytest
import torch
from torch import nn

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model.attention import Attention
from pellucid.model.block import Block
from pellucid.model.mechanisms import Sight
from pellucid.model.transformer import Transformer

CPU = torch.device("cpu")
BATCH, SOURCE, TARGET, WIDTH, HEADS, HIDDEN, BLOCKS = 2, 6, 5, 12, 3, 20, 2

# True where a token is real, as we say it; PyTorch marks what is padding.
SOURCE_REAL = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
TARGET_REAL = torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
FUTURE = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)

every_kernel = pytest.mark.parametrize("kernel", ["fused", "reference"])
every_layer = pytest.mark.parametrize(("norm_first", "activation"), list(product([True, False], ["relu", "gelu"])))


def config(norm_first=True, activation="relu", **changes):
    shape = {"encoder_blocks": BLOCKS, "decoder_blocks": BLOCKS, "final_norm": True, "position": c.NoPositions()}
    return c.ModelConfig(
        vocab=2,
        width=WIDTH,
        heads=HEADS,
        feed_forward=c.Plain(hidden=HIDDEN, activation=activation),
        placement="pre" if norm_first else "post",
        **{**shape, **changes},
    )


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def shuffle(module):
    """Random weights everywhere: PyTorch starts biases at zero and norms at one, which would hide mistakes."""
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=seed) * 0.4 + (0.7 if parameter.dim() == 1 else 0))
    return module


def copy(theirs, ours):
    """Give one of our parts the weights of PyTorch's part of the same kind."""
    match theirs:
        case nn.MultiheadAttention():
            weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
            for part, weight, bias in zip((ours.to_query, ours.to_key, ours.to_value), weights, biases, strict=True):
                part.load_state_dict({"weight": weight, "bias": bias})
            ours.to_output.load_state_dict(theirs.out_proj.state_dict())
        case nn.TransformerEncoderLayer() | nn.TransformerDecoderLayer():
            copy(theirs.self_attn, ours.attention)
            norms = [theirs.norm1, theirs.norm2]
            names = ["attention", "feed_forward"]
            if isinstance(theirs, nn.TransformerDecoderLayer):
                copy(theirs.multihead_attn, ours.cross)
                norms, names = [*norms, theirs.norm3], ["attention", "cross", "feed_forward"]
            side = "before" if theirs.norm_first else "after"
            for norm, name in zip(norms, names, strict=True):
                getattr(ours, f"{side}_{name}").load_state_dict(norm.state_dict())
            ours.feed_forward.up.load_state_dict(theirs.linear1.state_dict())
            ours.feed_forward.down.load_state_dict(theirs.linear2.state_dict())
        case nn.TransformerEncoder() | nn.TransformerDecoder():
            for layer, block in zip(theirs.layers, ours.blocks, strict=True):
                copy(layer, block)
        case nn.Transformer():
            copy(theirs.encoder, ours.encoder)
            copy(theirs.decoder, ours.decoder)
            ours.encoder.final.normalize.load_state_dict(theirs.encoder.norm.state_dict())
            ours.final.normalize.load_state_dict(theirs.decoder.norm.state_dict())
    return ours


def places(length):
    return torch.arange(length)[None]


def sight(queries, keys, mask=None):
    return Sight(View(queries, keys, CPU, mask or Mask()), places(keys))


def assert_same(ours, theirs, *inputs):
    """Values and gradients; a few hundred operations of size one, so 1e-12 is some thousand roundings."""
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    cotangent = draw(*theirs.shape, seed=99)
    mine, their = (torch.autograd.grad(out, inputs, cotangent) for out in (ours, theirs))
    for a, b in zip(mine, their, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.fixture
def source():
    return draw(BATCH, SOURCE, WIDTH, seed=1).requires_grad_()


@pytest.fixture
def target():
    return draw(BATCH, TARGET, WIDTH, seed=2).requires_grad_()


# --- attention ---


@pytest.fixture
def attention():
    return shuffle(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64))


SELF = {
    "everything": (Mask(), {}),
    "causal": (Mask.causal(), {"attn_mask": FUTURE}),
    "padding": (Mask(padding=TARGET_REAL), {"key_padding_mask": ~TARGET_REAL}),
    "both": (Mask(prefix=0, padding=TARGET_REAL), {"attn_mask": FUTURE, "key_padding_mask": ~TARGET_REAL}),
}


@every_kernel
@pytest.mark.parametrize("mask", SELF)
def test_self_attention(attention, target, kernel, mask):
    ours = copy(attention, Attention(config(), kernel=kernel).double())
    our_mask, their_masks = SELF[mask]
    theirs, _ = attention(target, target, target, need_weights=False, **their_masks)
    assert_same(ours(target, sight(TARGET, TARGET, our_mask), None), theirs, target)


@every_kernel
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention(attention, source, target, kernel, padded):
    ours = copy(attention, Attention(config(), kernel=kernel).double())
    padding = ~SOURCE_REAL if padded else None
    theirs, _ = attention(target, source, source, key_padding_mask=padding, need_weights=False)
    seen = sight(TARGET, SOURCE, Mask(padding=SOURCE_REAL if padded else None))
    assert_same(ours.across(target, source, seen, None), theirs, target, source)


def test_weights(attention, target):
    ours = copy(attention, Attention(config(), kernel="reference").double())
    seen = []
    ours.weights.register_forward_hook(lambda site, inputs, value: seen.append(value))
    ours(target, sight(TARGET, TARGET, Mask.causal()), None)
    _, theirs = attention(target, target, target, attn_mask=FUTURE, average_attn_weights=False)
    assert_same(seen[0], theirs, target)


def test_cross_attention_with_keys_and_values_of_other_widths(target):
    """PyTorch reads keys and values from two texts; ours from one, whose numbers can hold both side by side."""
    key_width, value_width = 5, WIDTH - 5
    theirs = nn.MultiheadAttention(
        WIDTH, HEADS, batch_first=True, kdim=key_width, vdim=value_width, dtype=torch.float64
    )
    shuffle(theirs)
    ours = Attention(config(), kernel="fused").double()
    with torch.no_grad():
        ours.to_query.weight.copy_(theirs.q_proj_weight)
        ours.to_key.weight.zero_()[:, :key_width] = theirs.k_proj_weight
        ours.to_value.weight.zero_()[:, key_width:] = theirs.v_proj_weight
        for part, bias in zip((ours.to_query, ours.to_key, ours.to_value), theirs.in_proj_bias.chunk(3), strict=True):
            part.bias.copy_(bias)
    ours.to_output.load_state_dict(theirs.out_proj.state_dict())
    key, value = draw(BATCH, SOURCE, key_width, seed=3), draw(BATCH, SOURCE, value_width, seed=4)
    expected, _ = theirs(target, key, value, need_weights=False)
    memory = torch.cat((key, value), -1)
    assert_same(ours.across(target, memory, sight(TARGET, SOURCE), None), expected, target)


# --- layers ---


@every_kernel
@every_layer
def test_encoder_layer(source, kernel, norm_first, activation):
    theirs = shuffle(
        nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, batch_first=True, dtype=torch.float64
        )
    )
    ours = copy(theirs, Block(config(norm_first, activation), cross=False, kernel=kernel).double())
    expected = theirs(source, src_key_padding_mask=~SOURCE_REAL)
    assert_same(ours(source, sight(SOURCE, SOURCE, Mask(padding=SOURCE_REAL))), expected, source)


@every_kernel
@every_layer
def test_decoder_layer(source, target, kernel, norm_first, activation):
    theirs = shuffle(
        nn.TransformerDecoderLayer(
            WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, batch_first=True, dtype=torch.float64
        )
    )
    ours = copy(theirs, Block(config(norm_first, activation), cross=True, kernel=kernel).double())
    expected = theirs(target, source, FUTURE, tgt_key_padding_mask=~TARGET_REAL, memory_key_padding_mask=~SOURCE_REAL)
    own = sight(TARGET, TARGET, Mask(prefix=0, padding=TARGET_REAL))
    across = sight(TARGET, SOURCE, Mask(padding=SOURCE_REAL))
    assert_same(ours(target, own, source, across), expected, target, source)


# --- whole stacks ---


def run(network, source, target):
    """Our encoder and decoder on vectors instead of ids."""
    memory = network.encoder.final(network.encoder(source, Mask(padding=SOURCE_REAL), places(SOURCE)))
    across = sight(TARGET, SOURCE, Mask(padding=SOURCE_REAL))
    mask = Mask(prefix=0, padding=TARGET_REAL)
    return network.final(network.decoder(target, mask, places(TARGET), memory, across))


@every_kernel
@every_layer
def test_encoder_and_decoder(source, target, kernel, norm_first, activation):
    parts = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": HIDDEN, "dropout": 0.0, "activation": activation}
    layer = {**parts, "norm_first": norm_first, "batch_first": True, "dtype": torch.float64}
    # Nested tensors are for speed, and warn where they cannot be used.
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer), BLOCKS, nn.LayerNorm(WIDTH, dtype=torch.float64), False
    )
    theirs = shuffle(
        nn.Transformer(**layer, num_decoder_layers=BLOCKS, custom_encoder=encoder),
    )
    ours = copy(theirs, Transformer(config(norm_first, activation), kernel=kernel).double())
    expected = theirs(
        source,
        target,
        tgt_mask=FUTURE,
        src_key_padding_mask=~SOURCE_REAL,
        memory_key_padding_mask=~SOURCE_REAL,
        tgt_key_padding_mask=~TARGET_REAL,
    )
    assert_same(run(ours, source, target), expected, source, target)


@every_kernel
@every_layer
def test_encoder_alone(source, kernel, norm_first, activation):
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, activation, norm_first=norm_first, batch_first=True, dtype=torch.float64
    )
    norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
    theirs = shuffle(nn.TransformerEncoder(layer, BLOCKS, norm, enable_nested_tensor=False))
    ours = Transformer(config(norm_first, activation, decoder_blocks=0), kernel=kernel).double()
    copy(theirs, ours.encoder)
    ours.final.normalize.load_state_dict(norm.state_dict())
    expected = theirs(source, src_key_padding_mask=~SOURCE_REAL)
    assert_same(ours.final(ours.encoder(source, Mask(padding=SOURCE_REAL), places(SOURCE))), expected, source)
