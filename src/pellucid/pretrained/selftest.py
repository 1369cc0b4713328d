"""Proof, on a user's own model, that what must not change its numbers does not change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.model.config import Pool
from pellucid.model.heads import pool
from pellucid.model.mechanisms import KernelName
from pellucid.pretrained.facade import Model

# The largest error allowed, relative to the largest score: a few thousand roundings in a row, deep models included.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class Check:
    """One property: its largest relative error, or why it does not apply."""

    name: str
    error: float | None
    tolerance: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.error is None or self.error <= self.tolerance


@dataclass(frozen=True)
class SelfTest:
    """The checks of one model."""

    model: str
    dtype: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        checks = [asdict(check) | {"holds": check.holds} for check in self.checks]
        return {"model": self.model, "dtype": self.dtype, "holds": self.holds, "checks": checks}


@dataclass(frozen=True)
class Texts:
    """Random ids: three texts and, for an encoder-decoder, three targets."""

    ids: Tensor
    target: Tensor | None

    @staticmethod
    def draw(model: Model, length: int, seed: int) -> Texts:
        generator = torch.Generator().manual_seed(seed)
        config = model.config

        def some(vocab: int, tokens: int) -> Tensor:
            return torch.randint(0, vocab, (3, tokens), generator=generator).to(model.device)

        ids = some(config.source_vocab or config.vocab, length)
        return Texts(ids, some(config.vocab, max(length - 3, 1)) if config.is_encoder_decoder else None)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (self.ids,) if self.target is None else (self.ids, self.target)

    @property
    def read(self) -> Tensor:
        """The text that the last stack reads."""
        return self.ids if self.target is None else self.target


@torch.no_grad()
def selftest(model: Model, *, length: int = 24, seed: int = 0) -> SelfTest:
    """Cache, batch, padding, future, kernel and reference, each compared on random texts."""
    texts = Texts.draw(model, min(length, model.config.context or length), seed)
    whole = model.network(*texts.arguments)
    checks = tuple(_check(name, find, model, texts, whole) for name, find in CHECKS.items())
    return SelfTest(model.name, str(model.dtype).removeprefix("torch."), checks)


def _check(name: str, find: Callable[..., float | str], model: Model, texts: Texts, whole: Tensor) -> Check:
    found = find(model, texts, whole)
    note = found if isinstance(found, str) else ""
    return Check(name, None if isinstance(found, str) else found, TOLERANCE[model.dtype], note)


def caching(model: Model, texts: Texts, whole: Tensor) -> float | str:
    if not _is_causal(model) or whole.dim() != 3:
        return "does not apply: only causal decoders cache, and scores of a whole text are not made token by token"
    network, text = model.network, texts.read
    cache = network.new_cache(*text.shape)
    memory = None if texts.target is None else network.encode(texts.ids)
    parts = [network.decode(text[:, :3], memory, cache=cache)]
    parts += [network.decode(text[:, place : place + 1], cache=cache) for place in range(3, text.shape[1])]
    return _error(torch.cat(parts, 1), whole)


def batching(model: Model, texts: Texts, whole: Tensor) -> float | str:
    single = [model.network(*(text[i : i + 1] for text in texts.arguments)) for i in range(len(texts.ids))]
    return _error(torch.cat(single), whole)


def padding(model: Model, texts: Texts, whole: Tensor) -> float | str:
    """On both sides of the text that is read, with arbitrary ids in the padding."""
    errors = []
    for before, after in ((4, 0), (0, 4)):
        padded, real = _padded(texts.ids, before, after)
        if texts.target is not None:
            found = model.network(padded, texts.target, padding=real)
        else:
            found = model.network(padded, padding=real)
            found = found[:, before : before + texts.ids.shape[1]] if found.dim() == 3 else found
        errors.append(_error(found, whole))
    return max(errors)


def future(model: Model, texts: Texts, whole: Tensor) -> float | str:
    if not _is_causal(model) or whole.dim() != 3:
        return "does not apply: only causal decoders hide the future"
    text = texts.read
    half = text.shape[1] // 2
    changed = text.clone()
    changed[:, half:] = (changed[:, half:] + 1) % model.config.vocab
    found = model.network(*texts.arguments[:-1], changed)
    return _error(found[:, :half], whole[:, :half])


def kernel(model: Model, texts: Texts, whole: Tensor) -> float | str:
    other: KernelName = "fused" if model.network.kernel == "reference" else "reference"
    return _error(model.network.with_kernel(other)(*texts.arguments), whole)


def reference(model: Model, texts: Texts, whole: Tensor) -> float | str:
    try:
        import transformers
    except ImportError:
        return "not run: pip install 'pellucid[peers]' to compare with transformers"
    names = model.origin.config.get("architectures")
    if model.origin.folder is None or not names or not (model.origin.folder / "config.json").exists():
        return "does not apply: the model did not come from a folder that transformers reads"
    peer = getattr(transformers, names[0]).from_pretrained(
        model.origin.folder, dtype=model.dtype, attn_implementation="eager"
    )
    peer = peer.to(model.device).eval()
    if texts.target is not None:
        return _error(peer(input_ids=texts.ids, decoder_input_ids=texts.target).logits, whole)
    return _error(_peer_scores(model, peer, texts.ids), whole)


def _peer_scores(model: Model, peer: Any, ids: Tensor) -> Tensor:
    """The peer's own scores; of a bare model, what our head makes of its states."""
    output = peer(input_ids=ids, attention_mask=torch.ones_like(ids))
    if hasattr(output, "logits"):
        return output.logits
    head = model.config.head
    if isinstance(head, Pool) and not head.project:
        vector = pool(output.last_hidden_state, head.pooling, None)
        return torch.nn.functional.normalize(vector, dim=-1) if head.normalize else vector
    if isinstance(head, Pool):
        return output.pooler_output
    return model.network.head(output.last_hidden_state, model.network.tokens.weight, None)


CHECKS: dict[str, Callable[[Model, Texts, Tensor], float | str]] = {
    "caching changes nothing": caching,
    "batching changes nothing": batching,
    "padding changes nothing": padding,
    "the future does not leak": future,
    "the fused kernel equals the reference kernel": kernel,
    "scores equal transformers'": reference,
}


def _is_causal(model: Model) -> bool:
    return model.config.decoder_blocks > 0 and model.config.causal


def _padded(ids: Tensor, before: int, after: int) -> tuple[Tensor, Tensor]:
    junk = ids[:, :1]
    padded = torch.cat((junk.expand(-1, before), ids, junk.expand(-1, after)), 1)
    real = torch.zeros_like(padded, dtype=torch.bool)
    real[:, before : before + ids.shape[1]] = True
    return padded, real


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())
