"""Well-known shapes by name, and tiny ones of each family for tests and for looking at."""

from __future__ import annotations

from difflib import get_close_matches

from pellucid.errors import ConfigError
from pellucid.model.config import (
    ALiBi,
    Biases,
    Gated,
    LayerNorm,
    Learned,
    Llama3Scaling,
    ModelConfig,
    Plain,
    Pool,
    RMSNorm,
    Rotary,
    Sinusoidal,
    Softmax,
    T5Buckets,
    Unembed,
)


def preset(name: str) -> ModelConfig:
    """The config of that name."""
    if name not in PRESETS:
        near = [known for known in PRESETS if name and known.startswith(name)] or get_close_matches(name, PRESETS, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(PRESETS)}"
        raise ConfigError(f"no preset is called {name!r}; {hint}")
    return PRESETS[name]


def original(blocks: int, width: int, heads: int, vocab: int = 37_000, dropout: float = 0.1) -> ModelConfig:
    """Vaswani et al. 2017: encoder-decoder, sinusoidal, post-norm, ReLU, one table for both texts and the output."""
    return ModelConfig(
        vocab=vocab,
        width=width,
        heads=heads,
        encoder_blocks=blocks,
        decoder_blocks=blocks,
        feed_forward=Plain(hidden=4 * width, activation="relu"),
        position=Sinusoidal(),
        placement="post",
        biases=Biases(query=False, key=False, value=False, output=False),
        scale_embedding=True,
        dropout=dropout,
    )


def gpt2(blocks: int, width: int, heads: int, vocab: int = 50_257, context: int = 1024) -> ModelConfig:
    """Radford et al. 2019: decoder, learned positions, pre-norm, GELU (tanh)."""
    return ModelConfig(
        vocab=vocab,
        width=width,
        heads=heads,
        decoder_blocks=blocks,
        context=context,
        feed_forward=Plain(hidden=4 * width, activation="gelu_tanh"),
        position=Learned(),
    )


def llama(
    blocks: int,
    width: int,
    heads: int,
    key_value_heads: int,
    hidden: int,
    vocab: int = 32_000,
    context: int = 4096,
    rotary: Rotary = Rotary(precision="float32"),
    epsilon: float = 1e-5,
    tied: bool = False,
) -> ModelConfig:
    """Touvron et al. 2023: decoder, rotary, pre-norm with RMSNorm, gated SiLU, grouped keys and values, no biases."""
    return ModelConfig(
        vocab=vocab,
        width=width,
        heads=heads,
        key_value_heads=key_value_heads,
        decoder_blocks=blocks,
        context=context,
        feed_forward=Gated(hidden=hidden, activation="silu"),
        position=rotary,
        norm=RMSNorm(epsilon=epsilon),
        biases=Biases.none(),
        head=Unembed(tied=tied),
    )


def bert(blocks: int, width: int, heads: int, vocab: int = 30_522, context: int = 512) -> ModelConfig:
    """Devlin et al. 2019: encoder, learned positions and segments, post-norm, GELU, pooled first token."""
    return ModelConfig(
        vocab=vocab,
        width=width,
        heads=heads,
        encoder_blocks=blocks,
        context=context,
        feed_forward=Plain(hidden=4 * width, activation="gelu"),
        position=Learned(),
        norm=LayerNorm(epsilon=1e-12),
        placement="post",
        embedding_norm=True,
        segments=2,
        head=Pool(pooling="first", project=True),
    )


def t5(blocks: int, width: int, heads: int, hidden: int, vocab: int = 32_128) -> ModelConfig:
    """Raffel et al. 2020: encoder-decoder, bucketed distances, pre-norm with RMSNorm, ReLU, unscaled scores."""
    return ModelConfig(
        vocab=vocab,
        width=width,
        heads=heads,
        head_width=64 if width >= 512 else None,
        encoder_blocks=blocks,
        decoder_blocks=blocks,
        feed_forward=Plain(hidden=hidden, activation="relu"),
        attention=Softmax(scale=1.0),
        position=T5Buckets(),
        norm=RMSNorm(epsilon=1e-6),
        biases=Biases.none(),
        head=Unembed(scale=width**-0.5),
    )


def bloom(blocks: int, width: int, heads: int, vocab: int = 250_880) -> ModelConfig:
    """Le Scao et al. 2022: decoder, ALiBi, pre-norm, GELU (tanh), a norm on the embedding."""
    return ModelConfig(
        vocab=vocab,
        width=width,
        heads=heads,
        decoder_blocks=blocks,
        feed_forward=Plain(hidden=4 * width, activation="gelu_tanh"),
        position=ALiBi(),
        embedding_norm=True,
    )


_LLAMA_3 = Rotary(base=500_000.0, precision="float32")
_LLAMA_32 = Rotary(base=500_000.0, precision="float32", scaling=Llama3Scaling(factor=32.0, original_context=8192))

PRESETS: dict[str, ModelConfig] = {
    "original-base": original(6, 512, 8),
    "original-big": original(6, 1024, 16, dropout=0.3),
    "gpt2-small": gpt2(12, 768, 12),
    "gpt2-medium": gpt2(24, 1024, 16),
    "gpt2-large": gpt2(36, 1280, 20),
    "gpt2-xl": gpt2(48, 1600, 25),
    "llama-2-7b": llama(32, 4096, 32, 32, 11_008),
    "llama-2-13b": llama(40, 5120, 40, 40, 13_824),
    "llama-3-8b": llama(32, 4096, 32, 8, 14_336, 128_256, 8192, _LLAMA_3),
    "llama-3.2-1b": llama(16, 2048, 32, 8, 8192, 128_256, 131_072, _LLAMA_32, tied=True),
    "llama-3.2-3b": llama(28, 3072, 24, 8, 8192, 128_256, 131_072, _LLAMA_32, tied=True),
    "bert-base": bert(12, 768, 12),
    "bert-large": bert(24, 1024, 16),
    "t5-small": t5(6, 512, 8, 2048),
    "t5-base": t5(12, 768, 12, 3072),
    "t5-large": t5(24, 1024, 16, 4096),
    "bloom-560m": bloom(24, 1024, 16),
    "bloom-1b7": bloom(24, 2048, 16),
    "bloom-7b1": bloom(30, 4096, 32),
    "tiny-original": original(2, 32, 4, vocab=96, dropout=0.0),
    "tiny-gpt2": gpt2(2, 32, 4, vocab=96, context=64),
    "tiny-llama": llama(2, 32, 4, 2, 64, vocab=96, context=64),
    "tiny-bert": bert(2, 32, 4, vocab=96, context=64),
    "tiny-t5": t5(2, 32, 4, 64, vocab=96),
    "tiny-bloom": bloom(2, 48, 6, vocab=96),
}
