"""A model as a notebook keeps it in one variable: config, tokenizer and network, and what one does with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from pellucid.errors import InputError
from pellucid.model.config import Classify, ModelConfig, Pool, Tag, Unembed
from pellucid.model.transformer import Transformer
from pellucid.pretrained.bundled import is_bundled
from pellucid.pretrained.tokenizer import Tokenizer
from pellucid.pretrained.weights import read_json

Ids = Int[Tensor, "batch length"]
IdsLike = Int[Tensor, "*batch length"] | list[Any]


@dataclass(frozen=True)
class Origin:
    """Where a model was opened from: its folder, its family, that family's config, and whether names had no prefix.

    read: what that config said in our words. A model with another config has moved on from it.
    extra: tensors of the file that this head does not use, such as the pooler of a tagger; an export writes them back.
    """

    folder: Path | None = None
    family: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    bare: bool = False
    read: ModelConfig | None = None
    extra: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Model:
    """What `load` returns. The tokenizer may be absent: then texts are lists of ids."""

    config: ModelConfig
    network: Transformer
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()
    origin: Origin = field(default_factory=Origin)

    @property
    def name(self) -> str:
        """What the command line calls it: the bundled name, or the folder."""
        folder = self.origin.folder
        if folder is None:
            return "model"
        return folder.name if is_bundled(folder) else str(folder)

    @property
    def device(self) -> torch.device:
        return self.network.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.network.tokens.weight.dtype

    def plain(self) -> Model:
        """With a network without adapters, whose weights hold what they change; itself where there are none."""
        network = self.network.plain()
        return self if network is self.network else replace(self, network=network)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with the special tokens that the model expects."""
        return self._tokenizer.encode(text)

    def encode_target(self, text: str) -> list[int]:
        """What the decoder of an encoder-decoder reads once it has written a text: its start token first, and no end.

        Of an empty text, the start token alone.
        """
        start, ends = self.start_id(), self.end_ids()
        written = self.encode(text) if text.strip() else []
        while written and written[-1] in ends:
            written.pop()
        return written if written[:1] == [start] else [start, *written]

    def start_id(self) -> int:
        """What an encoder-decoder's own text begins with."""
        if not self.config.is_encoder_decoder:
            raise InputError("this model reads one text and takes no target: only an encoder-decoder has both")
        start = self.setting("decoder_start_token_id")
        if isinstance(start, int):
            return start
        raise InputError(
            "the model's config has no decoder_start_token_id, so its text cannot begin: add it to "
            "generation_config.json in the model's folder, or give the target as ids"
        )

    def end_ids(self) -> frozenset[int]:
        """The tokens that end a text of this model's own."""
        ends = self.setting("eos_token_id")
        found = ends if isinstance(ends, list) else [ends]
        return frozenset(end for end in found if isinstance(end, int) and 0 <= end < self.config.vocab)

    def setting(self, name: str) -> Any:
        """What the generation_config.json of its folder says, or else its family's config."""
        file = None if self.origin.folder is None else self.origin.folder / "generation_config.json"
        found = read_json(file).get(name) if file is not None and file.exists() else None
        return self.origin.config.get(name) if found is None else found

    def decode(self, ids: list[int] | Int[Tensor, " length"]) -> str:
        return self._tokenizer.decode(ids.tolist() if isinstance(ids, Tensor) else ids)

    @torch.no_grad()
    def logits(
        self,
        ids: IdsLike,
        target: Shaped[Tensor, "*batch target"] | list[Any] | None = None,
        padding: Shaped[Tensor, "batch length"] | list[Any] | None = None,
        target_padding: Shaped[Tensor, "batch target"] | list[Any] | None = None,
    ) -> Float[Tensor, "batch *axes"]:
        """Scores for ids: a batch of texts, or one text, which counts as a batch of one.

        An encoder-decoder takes (source_ids, target_ids). Other models read one text, and take (ids, padding) too.
        padding: true (or 1) for real tokens.
        """
        if padding is None and not self.config.is_encoder_decoder:
            target, padding = None, target
        texts = [self.ids(text) for text in (ids, target) if text is not None]
        masks = {
            name: torch.as_tensor(mask, device=self.device).bool()
            for name, mask in (("padding", padding), ("target_padding", target_padding))
            if mask is not None
        }
        scores: Tensor = self.network(*texts, **masks)
        return scores

    def embed(self, texts: str | list[str]) -> Float[Tensor, "batch width"]:
        """One vector per text."""
        self._need(Pool, "embed")
        ids, padding = self.batch([texts] if isinstance(texts, str) else texts)
        return self.logits(ids, padding=padding)

    def tag(self, text: str) -> list[tuple[str, str]]:
        """Each token of a text with its label."""
        self._need(Tag, "tag")
        ids = self.encode(text)
        best = self.logits([ids])[0].argmax(-1).tolist()
        return [(self._tokenizer.token(token), self._label(label)) for token, label in zip(ids, best, strict=True)]

    def classify(self, text: str) -> dict[str, float]:
        """The probability of each label for a text, the likeliest first."""
        self._need(Classify, "classify")
        shares = self.logits([self.encode(text)])[0].double().softmax(-1).tolist()
        ranked = sorted(enumerate(shares), key=lambda entry: -entry[1])
        return {self._label(label): share for label, share in ranked}

    def batch(self, texts: list[str]) -> tuple[Ids, Bool[Tensor, "batch length"]]:
        """The ids of several texts, padded on the right, and which of them are real."""
        if not texts:
            raise InputError("the list of texts is empty: give at least one")
        return self.padded([self.encode(text) for text in texts])

    def padded(self, encoded: list[list[int]]) -> tuple[Ids, Bool[Tensor, "batch length"]]:
        """Ids of different lengths, padded on the right, and which of them are real."""
        longest = max(len(ids) for ids in encoded)
        padded = [ids + [0] * (longest - len(ids)) for ids in encoded]
        real = [[True] * len(ids) + [False] * (longest - len(ids)) for ids in encoded]
        return torch.tensor(padded, device=self.device), torch.tensor(real, device=self.device)

    def ids(self, ids: IdsLike) -> Ids:
        """As a tensor on the model's device; one text alone becomes a batch of one."""
        if isinstance(ids, Tensor):
            return (ids[None] if ids.dim() == 1 else ids).to(self.device)
        texts = ids if any(isinstance(text, list) for text in ids) else [ids]
        if not all(isinstance(text, list) for text in texts):
            raise InputError(f"ids are a list of texts, each a list of ids, or one list of ids, not {ids}")
        lengths = [len(text) for text in texts]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            problem = "are empty" if not any(lengths) else f"have different lengths {lengths}"
            raise InputError(f"the texts {problem}: give at least one token each, pad them to one length, pass padding")
        return torch.tensor(texts, device=self.device)

    @property
    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError("this model came without a tokenizer: give ids instead of text")
        return self.tokenizer

    def _label(self, label: int) -> str:
        return self.labels[label] if label < len(self.labels) else f"LABEL_{label}"

    def _need(self, head: type[Pool | Tag | Classify], verb: str) -> None:
        if not isinstance(self.config.head, head):
            fitting = {Unembed: "logits", Tag: "tag", Classify: "classify", Pool: "embed"}[type(self.config.head)]
            raise InputError(f"this model has the head {self.config.head.kind!r} and cannot {verb}: use {fitting}")
