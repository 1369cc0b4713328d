"""The spectra of all heads of a model on a text, measured as the forward pass meets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.operator import DenseOperator, one_head
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.baseline import derived_seed, random_twin
from pellucid.spectra.operator import Backend, open_operator
from pellucid.spectra.reading import Text, read
from pellucid.spectra.results import Head, Measured, Spectra
from pellucid.spectra.spectrum import Effort, Method, head_spectrum, spectrum_of_matrix
from pellucid.spectra.statistics import statistics, statistics_of_matrix
from pellucid.spectra.watch import Place, is_small, places, watch

Progress = Callable[[int, int, str], None]
FORMED_LIMIT = 4096  # tokens: other mechanisms than softmax have no operator, and their matrix is formed


@dataclass(frozen=True)
class Share:
    """Which of the heads and texts this process measures: every `of`-th, beginning with `index`."""

    index: int = 0
    of: int = 1


@dataclass(frozen=True)
class Selection:
    blocks: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def has(self, place: Place, head: int) -> bool:
        return (self.blocks is None or place.block in self.blocks) and (self.heads is None or head in self.heads)


def spectrum(
    model: Model,
    *texts: Text,
    context: int | None = None,
    effort: Effort = Effort(),
    method: Method = "auto",
    backend: Backend = "auto",
    baseline: bool = True,
    only: Selection = Selection(),
    seed: int = 0,
    share: Share = Share(),
    progress: Progress = lambda done, total, label: None,
) -> Spectra:
    """Every head's spectrum and statistics on each text, and the same of random weights of the same shape.

    texts: words, ids, or pairs (source, target) for an encoder-decoder; a target of words gets its start token.
    context: so many tokens of each text.
    """
    if not texts:
        raise InputError("no text came: give at least one")
    ids = [text_ids(model, text, context) for text in texts]
    selected = [(place, h) for place in places(model.network) for h in range(model.config.heads) if only.has(place, h)]
    if not selected:
        raise InputError(f"no head is left of {only}: this model has {_extent(model.config)}")
    work = _Work(effort, method, backend, seed, selected, share, progress, len(ids) * (2 if baseline else 1))
    measured: list[Head] = []
    twins: list[Head] = []

    def result() -> Spectra:
        pairs = zip_longest(measured, twins)
        heads = (head if twin is None else replace(head, baseline=twin.measured) for head, twin in pairs)
        return Spectra(model.name, max(text[-1].shape[1] for text in ids), effort.tau, tuple(heads))

    try:
        work.run(model.network, ids, measured, "")
        if baseline:
            random = random_twin(model.network, derived_seed(seed, "random weights"))
            work.run(random, ids, twins, ", random weights")
    except KeyboardInterrupt:
        raise Stopped(result()) from None
    return result()


class Stopped(KeyboardInterrupt):
    """Ctrl-C while measuring; `spectra` holds the heads that were measured until then."""

    def __init__(self, spectra: Spectra) -> None:
        super().__init__(f"stopped after {len(spectra.heads)} heads")
        self.spectra = spectra


@dataclass
class _Work:
    effort: Effort
    method: Method
    backend: Backend
    seed: int
    selected: list[tuple[Place, int]]
    share: Share
    progress: Progress
    runs: int
    done: int = 0
    note: str = ""

    def run(self, network: Transformer, ids: list[tuple[Tensor, ...]], found: list[Head], note: str) -> None:
        """Add the heads of a network on every text to those that were found; note: what the progress says of it."""
        self.note = note
        formed = not isinstance(network.config.attention, c.Softmax | c.Linformer)
        for index, texts in enumerate(ids):
            (self._run_formed if formed else self._run_streamed)(network, texts, index, found)

    def _run_streamed(self, network: Transformer, texts: tuple[Tensor, ...], index: int, found: list[Head]) -> None:
        def seen(place: Place, query: Query, key: Key, scale: float, view: View) -> None:
            small = self.backend == "auto" and self.method != "free" and is_small(view)
            if small:
                query, key, view = query.cpu(), key.cpu(), view.to(torch.device("cpu"))
            for head in self._own(place, index):
                q, k, own = one_head(query, key, view, 0, head)
                if small:
                    measured = self._of_matrix(DenseOperator(q, k, scale=scale, view=own).weights[0, 0])
                else:
                    operator = open_operator(q, k, scale=scale, view=own, backend=self.backend)
                    spectrum = head_spectrum(operator, self.effort, method=self.method, seed=self._seed(place, head))
                    measured = Measured(spectrum, statistics(operator))
                self._add(found, place, head, index, measured, own)

        watch(network, texts, seen, last=self.selected[-1][0])

    def _run_formed(self, network: Transformer, texts: tuple[Tensor, ...], index: int, found: list[Head]) -> None:
        """Mechanisms that are not a softmax: the reference kernel forms their weights."""
        longest = max(text.shape[1] for text in texts)
        if self.method == "free" or longest > FORMED_LIMIT:
            raise InputError(
                f"{network.config.attention.kind} attention has no matrix-free operator, and {longest} tokens with "
                f"method {self.method!r} were asked for: use method 'dense' and {FORMED_LIMIT} tokens at most"
            )
        formed = network.with_kernel("reference")

        def seen(place: Place, weights: Tensor) -> None:
            view = View(weights.shape[-2], weights.shape[-1], weights.device)
            weights = weights.cpu() if is_small(view) else weights
            for head in self._own(place, index):
                self._add(found, place, head, index, self._of_matrix(weights[0, head]), view)

        hooks = [
            attention.weights.register_forward_hook(lambda module, inputs, value, place=place: seen(place, value))
            for place, attention in places(formed).items()
        ]
        try:
            with torch.no_grad():
                formed(*texts)
        finally:
            for hook in hooks:
                hook.remove()

    def _of_matrix(self, matrix: Float[Tensor, "query key"]) -> Measured:
        self.effort.check(*matrix.shape)
        return Measured(spectrum_of_matrix(matrix, self.effort), statistics_of_matrix(matrix))

    def _own(self, place: Place, text: int) -> list[int]:
        units = [unit for unit, (where, _) in enumerate(self.selected) if where == place]
        mine = [unit for unit in units if (text * len(self.selected) + unit) % self.share.of == self.share.index]
        return [self.selected[unit][1] for unit in mine]

    def _add(self, found: list[Head], place: Place, head: int, text: int, measured: Measured, view: View) -> None:
        found.append(Head(place.stack, place.block, head, place.kind, text, view.queries, view.keys, measured))
        self.done += 1
        total = -(-self.runs * len(self.selected) // self.share.of)
        self.progress(self.done, total, f"{place.stack} block {place.block} {place.kind} head {head}{self.note}")

    def _seed(self, place: Place, head: int) -> int:
        """A draw of its own for every head, the same in whichever process it is measured."""
        return derived_seed(self.seed, place.stack, place.block, place.kind, head)


def text_ids(model: Model, text: Text, context: int | None) -> tuple[Tensor, ...]:
    """The first `context` ids of a text, or of both of a pair."""
    return tuple(_cut(ids, context) for ids in read(model, text))


def _cut(ids: Tensor, context: int | None) -> Tensor:
    length = ids.shape[1]
    if context is not None and context < 1:
        raise InputError(f"a context of {context} tokens was asked for: give 1 or more")
    if context is not None and context > length:
        raise InputError(
            f"the text has {length} tokens, but a context of {context} was asked for: give a longer text, or ask for "
            f"{length} at most"
        )
    return ids[:, :context]


def _extent(config: c.ModelConfig) -> str:
    return f"{max(config.encoder_blocks, config.decoder_blocks)} blocks of {config.heads} heads, counted from 0"
