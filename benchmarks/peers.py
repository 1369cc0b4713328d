"""The same shapes built by us and by others, so that one run can time them side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pellucid.model.config import ModelConfig, Tag
from pellucid.model.presets import bert, gpt2, llama, original
from pellucid.model.transformer import Transformer


@dataclass(frozen=True)
class Shape:
    """A size that all contestants share."""

    blocks: int
    width: int
    heads: int
    batch: int
    length: int
    vocab: int = 1024


@dataclass(frozen=True)
class Contestant:
    """A model and how to call it on ids of shape [batch, length]; the result is a tensor."""

    name: str
    build: Callable[[], nn.Module]
    call: Callable[[nn.Module, Tensor], Tensor]


def families(shape: Shape) -> dict[str, list[Contestant]]:
    """Each family once by us, then by its peers."""
    return {
        "encoder": _encoder(shape),
        "gpt2": _gpt2(shape),
        "llama": _llama(shape),
        "encoder-decoder": _encoder_decoder(shape),
    }


def _ours(config: ModelConfig) -> Contestant:
    both = config.is_encoder_decoder
    return Contestant(
        "pellucid", lambda: Transformer(config), lambda network, ids: network(ids, ids) if both else network(ids)
    )


def _encoder(s: Shape) -> list[Contestant]:
    from transformers import BertConfig, BertForTokenClassification
    from x_transformers import Encoder, TransformerWrapper

    config = bert(s.blocks, s.width, s.heads, vocab=s.vocab, context=s.length)
    same_bert = BertConfig(
        vocab_size=s.vocab,
        hidden_size=s.width,
        num_hidden_layers=s.blocks,
        num_attention_heads=s.heads,
        intermediate_size=4 * s.width,
        max_position_embeddings=s.length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=s.width,
        attn_implementation="sdpa",
    )
    return [
        _ours(config.model_copy(update={"head": Tag(labels=s.width)})),
        Contestant("torch.nn", lambda: TorchEncoder(s), lambda network, ids: network(ids)),
        Contestant(
            "x-transformers",
            lambda: TransformerWrapper(
                num_tokens=s.vocab,
                max_seq_len=s.length,
                logits_dim=s.width,
                attn_layers=Encoder(
                    dim=s.width,
                    depth=s.blocks,
                    heads=s.heads,
                    attn_dim_head=s.width // s.heads,
                    attn_flash=True,
                    pre_norm=False,
                ),
            ),
            lambda network, ids: network(ids),
        ),
        Contestant(
            "transformers", lambda: BertForTokenClassification(same_bert), lambda network, ids: network(ids).logits
        ),
    ]


def _gpt2(s: Shape) -> list[Contestant]:
    from transformers import GPT2Config, GPT2LMHeadModel
    from x_transformers import Decoder, TransformerWrapper

    same_gpt2 = GPT2Config(
        vocab_size=s.vocab,
        n_embd=s.width,
        n_layer=s.blocks,
        n_head=s.heads,
        n_positions=s.length,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return [
        _ours(gpt2(s.blocks, s.width, s.heads, vocab=s.vocab, context=s.length)),
        Contestant("torch.nn", lambda: TorchEncoder(s, causal=True), lambda network, ids: network(ids)),
        Contestant(
            "x-transformers",
            lambda: TransformerWrapper(
                num_tokens=s.vocab,
                max_seq_len=s.length,
                tie_embedding=True,
                attn_layers=Decoder(
                    dim=s.width, depth=s.blocks, heads=s.heads, attn_dim_head=s.width // s.heads, attn_flash=True
                ),
            ),
            lambda network, ids: network(ids),
        ),
        Contestant("transformers", lambda: GPT2LMHeadModel(same_gpt2), lambda network, ids: network(ids).logits),
    ]


def _llama(s: Shape) -> list[Contestant]:
    from transformers import LlamaConfig, LlamaForCausalLM
    from x_transformers import Decoder, TransformerWrapper

    hidden, groups = 4 * s.width, max(s.heads // 4, 1)
    same_llama = LlamaConfig(
        vocab_size=s.vocab,
        hidden_size=s.width,
        num_hidden_layers=s.blocks,
        num_attention_heads=s.heads,
        num_key_value_heads=groups,
        intermediate_size=hidden,
        max_position_embeddings=s.length,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return [
        _ours(llama(s.blocks, s.width, s.heads, groups, hidden, vocab=s.vocab, context=s.length)),
        Contestant(
            "x-transformers",
            lambda: TransformerWrapper(
                num_tokens=s.vocab,
                max_seq_len=s.length,
                use_abs_pos_emb=False,
                attn_layers=Decoder(
                    dim=s.width,
                    depth=s.blocks,
                    heads=s.heads,
                    attn_dim_head=s.width // s.heads,
                    attn_kv_heads=groups,
                    attn_flash=True,
                    use_rmsnorm=True,
                    rotary_pos_emb=True,
                    rotary_emb_dim=s.width // s.heads,
                    ff_glu=True,
                    ff_swish=True,
                    ff_no_bias=True,
                ),
            ),
            lambda network, ids: network(ids),
        ),
        Contestant("transformers", lambda: LlamaForCausalLM(same_llama), lambda network, ids: network(ids).logits),
    ]


def _encoder_decoder(s: Shape) -> list[Contestant]:
    from transformers import MarianConfig, MarianMTModel

    same_marian = MarianConfig(
        vocab_size=s.vocab,
        d_model=s.width,
        encoder_layers=s.blocks,
        decoder_layers=s.blocks,
        encoder_attention_heads=s.heads,
        decoder_attention_heads=s.heads,
        encoder_ffn_dim=4 * s.width,
        decoder_ffn_dim=4 * s.width,
        max_position_embeddings=s.length,
        activation_function="relu",
        dropout=0.0,
        pad_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
        scale_embedding=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return [
        _ours(original(s.blocks, s.width, s.heads, vocab=s.vocab, dropout=0.0)),
        Contestant("torch.nn", lambda: TorchEncoderDecoder(s), lambda network, ids: network(ids)),
        Contestant(
            "transformers",
            lambda: MarianMTModel(same_marian),
            lambda network, ids: network(input_ids=ids, decoder_input_ids=ids).logits,
        ),
    ]


class TorchEncoder(nn.Module):
    """nn.TransformerEncoder between an embedding and a linear map."""

    def __init__(self, s: Shape, *, causal: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            s.width, s.heads, 4 * s.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=causal
        )
        self.causal = causal
        self.tokens, self.places = nn.Embedding(s.vocab, s.width), nn.Embedding(s.length, s.width)
        self.stack = nn.TransformerEncoder(layer, s.blocks, enable_nested_tensor=False)
        self.out = nn.Linear(s.width, s.vocab if causal else s.width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device, x.dtype)
        return self.out(self.stack(x, mask=mask, is_causal=True) if self.causal else self.stack(x))


class TorchEncoderDecoder(nn.Module):
    """nn.Transformer between an embedding and a linear map."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(s.vocab, s.width), nn.Embedding(s.length, s.width)
        self.stacks = nn.Transformer(
            s.width, s.heads, s.blocks, s.blocks, 4 * s.width, dropout=0.0, activation="relu", batch_first=True
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], ids.device, x.dtype)
        return self.stacks(x, x, tgt_mask=mask, tgt_is_causal=True) @ self.tokens.weight.T


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def token_ids(shape: Shape, device: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, shape.vocab, (shape.batch, shape.length), generator=generator).to(device)
