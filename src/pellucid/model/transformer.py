"""The Transformer: ids in, scores out. An encoder, a decoder, or both."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.kernels.mask import Bound, Documents, Mask
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model import inputs
from pellucid.model.attention import Memory, Tokens
from pellucid.model.cache import Cache, places_in_documents, places_of, prefix_slots
from pellucid.model.embedding import Embedding
from pellucid.model.heads import build_head
from pellucid.model.init import initialize
from pellucid.model.layers import Table
from pellucid.model.mechanisms import KernelName, Sight
from pellucid.model.plain import plain, plain_parameters
from pellucid.model.positions import Places
from pellucid.model.sites import Site
from pellucid.model.stack import Final, Stack

Ids = Int[Tensor, "batch token"]
Padding = Bool[Tensor, "batch token"] | None
Scores = Float[Tensor, "batch *axes"]


class Transformer(nn.Module):
    """All parts of a `ModelConfig`, initialised.

    kernel: "fused" runs PyTorch's fused kernels; "reference" forms scores and weights, so that they can be seen;
      "flex" (GPU, softmax) never writes a position bias or a mask out; "grouped" is for compiled steps of a cache.
    adapters: what `pellucid.lora` notes about those that it added.
    """

    adapters: object | None = None

    def __init__(self, config: c.ModelConfig, *, kernel: KernelName = "fused", seed: int | None = None) -> None:
        super().__init__()
        self.config, self.kernel = config, kernel
        both = config.is_encoder_decoder
        self.tokens = Table(config.vocab, config.width)
        if config.source_vocab is not None:
            self.source_tokens = Table(config.source_vocab, config.width)
        self.embedding = Embedding(config)
        self.encoder, self.decoder = None, None
        if config.encoder_blocks:
            self.encoder = Stack(config, config.encoder_blocks, causal=False, cross=False, feeds=both, kernel=kernel)
        if config.decoder_blocks:
            self.decoder = Stack(
                config, config.decoder_blocks, causal=config.causal, cross=both, feeds=False, kernel=kernel
            )
        self.final = Final(config)
        self.head = build_head(config)
        self.logits, self.probabilities = Site(), Site()
        initialize(self, config, seed)

    def forward(
        self,
        ids: Ids,
        target: Int[Tensor, "batch target"] | None = None,
        *,
        padding: Padding = None,
        target_padding: Bool[Tensor, "batch target"] | None = None,
        segments: Ids | None = None,
        prefix: Bound = None,
        cache: Cache | None = None,
    ) -> Scores:
        """The head's scores. An encoder-decoder takes the source as `ids` and the text so far as `target`.

        padding: True for real tokens; padding stands before a text or after it.
        prefix: so many leading tokens of a decoder see each other (a prefix language model).
        """
        if self.decoder is None:
            self._refuse(target=target, target_padding=target_padding, prefix=prefix, cache=cache)
            return self._answer(self.encode(ids, padding=padding, segments=segments), padding)
        if self.encoder is None:
            self._refuse(target=target, target_padding=target_padding)
            return self.decode(ids, padding=padding, segments=segments, prefix=prefix, cache=cache)
        if target is None:
            raise InputError("an encoder-decoder needs both texts: call it with (source_ids, target_ids)")
        # Checked before the source is read: a look at the target's values would wait for the device's work on it.
        inputs.check_ids(target, self.config.vocab, "target")
        memory = self.encode(ids, padding=padding, segments=segments)
        return self._decode(target, memory, padding, target_padding, None, prefix, cache)

    def states(
        self,
        ids: Ids,
        target: Int[Tensor, "batch target"] | None = None,
        *,
        padding: Padding = None,
        target_padding: Bool[Tensor, "batch target"] | None = None,
        documents: Documents = None,
    ) -> Tokens:
        """What the head reads: training applies it a few rows at a time.

        documents: a number per slot of a decoder without encoder; slots with the same number are a text of their own.
        """
        if self.decoder is None:
            self._refuse(target=target, target_padding=target_padding, documents=documents)
            return self.encode(ids, padding=padding)
        if self.encoder is None:
            self._refuse(target=target, target_padding=target_padding)
            return self._decoded(ids, None, None, padding, None, None, None, documents)[0]
        self._refuse(documents=documents)
        assert target is not None
        memory = self.encode(ids, padding=padding)
        return self._decoded(target, memory, padding, target_padding, None, None, None)[0]

    def encode(self, ids: Ids, *, padding: Padding = None, segments: Ids | None = None) -> Memory:
        """The encoder's states, after its final norm."""
        if self.encoder is None:
            raise InputError("this model has no encoder: call it, or use decode")
        outer = self.encoder if self.config.is_encoder_decoder else self
        table = self.tokens if self.config.source_vocab is None else self.source_tokens
        inputs.check_ids(ids, table.num_embeddings)
        inputs.check_padding(padding, ids)
        inputs.check_one_run(padding)
        places = places_of(padding, ids.shape[1], 0, ids.device)
        x = self._embed(self.encoder, outer.embedding, table(ids), places, segments, 0)
        return outer.final(self.encoder(x, Mask(padding=padding), places))

    def decode(
        self,
        ids: Ids,
        memory: Memory | None = None,
        *,
        source_padding: Bool[Tensor, "batch source"] | None = None,
        padding: Padding = None,
        segments: Ids | None = None,
        prefix: Bound = None,
        cache: Cache | None = None,
        last: bool = False,
    ) -> Scores:
        """The head's scores for the next `ids`, after those in the cache, if there is one.

        The first call of an encoder-decoder with a cache brings the memory; the later ones need not.
        last: only the scores of the last token, which is all that the next one is chosen by.
        """
        if self.decoder is None:
            raise InputError("this model has no decoder: call it, or use encode")
        inputs.check_ids(ids, self.config.vocab)
        return self._decode(ids, memory, source_padding, padding, segments, prefix, cache, last)

    def step(self, ids: Int[Tensor, "batch 1"], cache: Cache) -> Float[Tensor, "batch vocab"]:
        """The scores after one more token per text: `decode` with fixed shapes, for a loop or a captured graph.

        The cache's clock is started (`start_steps`) after the first call to `decode`; it says where to write, and is
        advanced here. Nothing is checked: the caller keeps within the capacity and the context.
        """
        assert self.decoder is not None
        assert cache.clock is not None
        vectors = self.tokens(ids)
        x = self.embedding(vectors, self.decoder.positions.vectors(cache.clock.places, vectors.dtype), None)
        sight = None
        if cache.memory is not None:
            texts, source, _ = cache.memory.shape
            view = View(x.shape[0] // texts, source, x.device, Mask(padding=cache.source_padding))
            sight = Sight(view, places_of(cache.source_padding, source, 0, x.device))
        x = self.final(self.decoder.step(x, sight, cache))
        cache.clock.advance()
        scores: Tensor = self.logits(self.head(x, self.tokens.weight, None))
        return scores[:, 0]

    def _decode(
        self,
        ids: Ids,
        memory: Memory | None,
        source_padding: Bool[Tensor, "batch source"] | None,
        padding: Padding,
        segments: Ids | None,
        prefix: Bound,
        cache: Cache | None,
        last: bool = False,
    ) -> Scores:
        x, padding = self._decoded(ids, memory, source_padding, padding, segments, prefix, cache)
        if last:
            return self._answer(x[:, -1:], None if padding is None else padding[:, -1:])
        return self._answer(x, padding)

    def _decoded(
        self,
        ids: Ids,
        memory: Memory | None,
        source_padding: Bool[Tensor, "batch source"] | None,
        padding: Padding,
        segments: Ids | None,
        prefix: Bound,
        cache: Cache | None,
        documents: Documents = None,
    ) -> tuple[Tokens, Padding]:
        """The states after the last norm, and the padding of these tokens."""
        assert self.decoder is not None
        inputs.check_padding(padding, ids)
        batch, tokens = ids.shape
        offset = 0
        if cache is not None:
            cache.check(batch, tokens)
            cache.note_padding(padding, tokens)
            padding, offset = cache.seen_padding(tokens), cache.length
        inputs.check_one_run(padding)
        inputs.check_prefix(prefix, padding, offset, tokens, cached=cache is not None)
        prefix = prefix_slots(prefix, padding)
        places = places_of(padding, tokens, offset, ids.device) if documents is None else places_in_documents(documents)
        x = self._embed(self.decoder, self.embedding, self.tokens(ids), places, segments, offset)
        shown = (0 if prefix is None else prefix) if self.config.causal else None
        mask = Mask(prefix=shown, padding=padding, documents=documents)
        memory, sight = self._memory(x, memory, source_padding, cache)
        x = self.final(self.decoder(x, mask, places, memory, sight, cache))
        if cache is not None:
            cache.advance(tokens)
        return x, None if padding is None else padding[:, offset:]

    def predict(self, *arguments: Tensor, **options: Any) -> Scores:
        """The probabilities that the scores stand for; the arguments are those of `forward`."""
        return self.probabilities(self(*arguments, **options).softmax(-1))

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for `batch` texts of up to `capacity` tokens, where the weights are."""
        weight = self.tokens.weight
        return Cache.allocate(self.config, batch, capacity, device=weight.device, dtype=weight.dtype)

    def with_kernel(self, kernel: KernelName) -> Transformer:
        """The same parameters on another kernel, and no adapters; itself where it runs on that one and has none."""
        own = self.plain()
        return own if kernel == self.kernel else own.twin(kernel)

    def twin(self, kernel: KernelName | None = None) -> Transformer:
        """Other modules with the same parameters. What adapters change is added to the weights: it has none."""
        with torch.device("meta"):
            twin = Transformer(self.config, kernel=kernel or self.kernel)
        shared = plain_parameters(self)
        for name, each in twin.named_parameters():
            each.requires_grad_(shared[name].requires_grad)  # loading makes what is shared train as it does here
        twin.load_state_dict(shared, assign=True)
        return twin.train(self.training)

    def plain(self) -> Transformer:
        """Without adapters: itself, or a twin that holds what they change in its weights and follows them."""
        return plain(self)

    def _embed(
        self, stack: Stack, embedding: Embedding, vectors: Tokens, places: Places, segments: Ids | None, offset: int
    ) -> Tokens:
        if isinstance(self.config.position, c.Learned) or isinstance(self.config.attention, c.Linformer):
            inputs.check_length(places, offset + vectors.shape[1], self.config.context)
        if self.config.segments:
            inputs.check_segments(segments, vectors, self.config.segments)
        else:
            self._refuse(segments=segments)
        return embedding(vectors, stack.positions.vectors(places, vectors.dtype), segments)

    def _memory(
        self, x: Tokens, memory: Memory | None, padding: Bool[Tensor, "batch source"] | None, cache: Cache | None
    ) -> tuple[Memory | None, Sight | None]:
        """What cross-attention sees: the memory of this call, or of the cache's first call."""
        if self.encoder is None:
            self._refuse(memory=memory)
            return None, None
        if cache is not None:
            memory, padding = cache.remember(memory, padding)
        if memory is None:
            raise InputError("the first call to decode needs a memory: pass encode(source_ids), or call the network")
        if memory.shape[0] != x.shape[0]:
            raise InputError(f"the memory holds {memory.shape[0]} texts, but {x.shape[0]} came: they go in pairs")
        view = View(x.shape[1], memory.shape[1], x.device, Mask(padding=padding))
        return memory, Sight(view, places_of(padding, memory.shape[1], 0, x.device))

    def _answer(self, x: Tokens, padding: Padding) -> Scores:
        return self.logits(self.head(x, self.tokens.weight, padding))

    def _refuse(self, **values: object) -> None:
        for name, value in values.items():
            if value is not None:
                shape = "an encoder" if self.decoder is None else "a decoder" if self.encoder is None else "this model"
                raise InputError(f"{shape} of this config takes no {name}: leave it out")
