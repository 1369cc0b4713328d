"""Spectra of a whole model: what the watcher sees, that nothing of N x N is made, and that it is measured rightly."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pellucid.errors import InputError
from pellucid.kernels import fused
from pellucid.lens.trace import record
from pellucid.model import config as c
from pellucid.model.presets import PRESETS, preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.baseline import derived_seed
from pellucid.spectra.measure import Selection, Share, spectrum
from pellucid.spectra.spectrum import Effort, spectrum_of_matrix
from pellucid.spectra.statistics import statistics_of_matrix
from pellucid.spectra.watch import places, watch

TINY = [name for name in PRESETS if name.startswith("tiny-")]
ALL = Effort(tau=(0.5, 0.9, 0.99), budget=64)


def config_of(name: str) -> c.ModelConfig:
    """A preset, or one of the shapes that no preset has."""
    changes = {
        "windowed": ("tiny-llama", {"window": (7, None)}),
        "linformer": ("tiny-bert", {"attention": c.Linformer(rank=5)}),
        "relu": ("tiny-gpt2", {"attention": c.NormalizedRelu()}),
        "linear": ("tiny-gpt2", {"attention": c.Linear()}),
    }
    base, change = changes.get(name, (name, {}))
    return preset(base).model_copy(update=change)


def model_of(name: str) -> Model:
    config = config_of(name)
    return Model(config, Transformer(config, seed=1).eval())


def text_of(model: Model, length: int = 30, seed: int = 3):
    """Ids; a pair of unequal lengths for an encoder-decoder."""
    draw = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(96, (n,), generator=draw).tolist() for n in (length, length - 8))
    return (source, target) if model.config.is_encoder_decoder else source


def tensors(model: Model, text) -> tuple[Tensor, ...]:
    return tuple(model.ids(part) for part in (text if isinstance(text, tuple) else (text,)))


def site(place) -> str:
    return f"{place.stack}.{place.block}.{'attention' if place.kind == 'self' else 'cross'}"


def formed_weights(model: Model, text) -> dict:
    """What the reference kernel forms, by place."""
    network = model.network.with_kernel("reference")
    names = {place: f"{site(place)}.weights" for place in places(network)}
    with torch.no_grad(), record(network, set(names.values())) as values:
        network(*tensors(model, text))
    return {place: values[name][0] for place, name in names.items()}


@pytest.mark.parametrize("name", [*TINY, "windowed"])
def test_the_watcher_sees_the_queries_and_keys_of_every_site(name):
    model = model_of(name)
    text, seen = text_of(model), {}

    def watcher(place, query, key, scale, view):
        assert scale == model.config.scale
        seen[place] = (query, key, view)

    watch(model.network, tensors(model, text), watcher)
    names = {f"{site(place)}.{what}" for place in seen for what in ("query", "key")}
    with torch.no_grad(), record(model.network, names) as values:
        model.network(*tensors(model, text))
    assert list(seen) == list(places(model.network))
    for place, (query, key, view) in seen.items():
        # The forward pass under watch takes other kernels where there is a mask or a bias: float32 through two blocks.
        torch.testing.assert_close(query, values[f"{site(place)}.query"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(key, values[f"{site(place)}.key"], rtol=1e-4, atol=1e-5)
        assert (view.queries, view.keys) == (query.shape[2], key.shape[2])


@pytest.mark.parametrize("name", [*TINY, "windowed", "linformer", "relu", "linear"])
def test_every_head_is_that_of_the_weights_which_the_reference_forms(name):
    model = model_of(name)
    text = text_of(model)
    weights = formed_weights(model, text)
    found = spectrum(model, text, effort=ALL, method="dense", baseline=False)
    order = [(place.stack, place.block, place.kind, head) for place in weights for head in range(model.config.heads)]
    assert [(head.stack, head.block, head.kind, head.head) for head in found.heads] == order
    for head, matrix in zip(found.heads, chain.from_iterable(weights.values()), strict=True):
        exact = spectrum_of_matrix(matrix, ALL)
        assert (head.tokens, head.keys) == tuple(matrix.shape)
        assert head.measured.spectrum.energy == pytest.approx(exact.energy, rel=1e-5)
        # Single values of a float32 matrix, as shares of the largest.
        assert head.measured.spectrum.values == pytest.approx(exact.values, abs=2e-5 * exact.values[0])
        expected = statistics_of_matrix(matrix).to_json()
        ours = head.measured.statistics.to_json()
        assert ours.pop("heaviest_key") == expected.pop("heaviest_key")
        assert ours == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", [*TINY, "windowed", "linformer"])
def test_free_agrees_with_dense(name):
    model = model_of(name)
    dense, free = (
        spectrum(model, text_of(model), effort=ALL, method=method, baseline=False) for method in ("dense", "free")
    )
    for exact, found in zip(dense.heads, free.heads, strict=True):
        assert found.measured.spectrum.method == "free"
        assert found.measured.spectrum.energy == pytest.approx(exact.measured.spectrum.energy, rel=1e-6)
        for tau, (low, high) in found.measured.spectrum.effective.items():
            rank = exact.measured.spectrum.effective[tau][0]
            assert low <= rank <= high <= low + 1
        assert found.measured.statistics.to_json() == pytest.approx(exact.measured.statistics.to_json(), 1e-4, 1e-6)


@pytest.mark.parametrize("name", [*TINY, "windowed", "linformer"])
def test_small_heads_are_measured_from_their_matrix_as_large_ones_from_products(name, monkeypatch):
    model = model_of(name)
    small = spectrum(model, text_of(model), effort=ALL, baseline=False)
    monkeypatch.setattr("pellucid.spectra.watch.SMALL", 4)
    large = spectrum(model, text_of(model), effort=ALL, baseline=False)
    for found, wanted in zip(small.heads, large.heads, strict=True):
        ours, theirs = found.measured, wanted.measured
        assert ours.spectrum.values == pytest.approx(theirs.spectrum.values, abs=2e-5 * theirs.spectrum.values[0])
        assert ours.spectrum.effective == theirs.spectrum.effective
        assert ours.statistics.to_json() == pytest.approx(theirs.statistics.to_json(), 1e-4, 1e-6)


def test_an_encoder_decoder_has_three_kinds_of_attention():
    found = spectrum(model_of("tiny-t5"), text_of(model_of("tiny-t5")), baseline=False)
    shapes = {(head.stack, head.kind): (head.tokens, head.keys) for head in found.heads}
    assert shapes == {("encoder", "self"): (30, 30), ("decoder", "self"): (22, 22), ("decoder", "cross"): (22, 30)}
    assert len(found.heads) == 3 * 2 * 4


def test_a_window_and_linformer_shape_the_matrix():
    model = model_of("windowed")
    first, second = (spectrum(model, text_of(model), baseline=False, only=Selection([block], [0])) for block in (0, 1))
    assert first.heads[0].measured.statistics.distance < 7 < second.heads[0].measured.statistics.distance
    model = model_of("linformer")
    assert {(head.tokens, head.keys) for head in spectrum(model, text_of(model), baseline=False).heads} == {(30, 5)}


def test_the_baseline_is_the_same_measurement_of_random_weights():
    model = model_of("tiny-gpt2")
    text = text_of(model)
    found = spectrum(model, text, seed=5)
    random = Model(model.config, Transformer(model.config, seed=derived_seed(5, "random weights")).eval())
    assert [head.baseline for head in found.heads] == [
        head.measured for head in spectrum(random, text, seed=5, baseline=False).heads
    ]
    assert all(head.baseline is None for head in spectrum(model, text, baseline=False).heads)


@pytest.mark.parametrize("of", [2, 3])
def test_shares_together_are_everything(of):
    model = model_of("tiny-llama")
    texts, options = [text_of(model), text_of(model, 20, seed=4)], {"method": "free", "seed": 2}
    whole = spectrum(model, *texts, **options)
    parts = [spectrum(model, *texts, share=Share(index, of), **options) for index in range(of)]

    def name(head):
        return head.text, head.stack, head.block, head.kind, head.head

    together = sorted(chain.from_iterable(part.heads for part in parts), key=name)
    assert together == sorted(whole.heads, key=name)
    assert max(len(part.heads) for part in parts) - min(len(part.heads) for part in parts) <= 1


def test_progress_reaches_its_end():
    calls: list[tuple[int, int, str]] = []
    model = model_of("tiny-gpt2")
    spectrum(model, text_of(model), progress=lambda *call: calls.append(call))
    assert [done for done, _, _ in calls] == list(range(1, 17))
    assert {total for _, total, _ in calls} == {16}


@pytest.mark.parametrize("name", ["tiny-bloom", "linear"])
def test_an_exception_leaves_the_network_as_it_was(name):
    model = model_of(name)
    text = text_of(model)
    before = model.network(*tensors(model, text))
    kernels = [getattr(attention.mechanism, "kernel", None) for attention in places(model.network).values()]

    def fail(*call):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        spectrum(model, text, progress=fail)
    after = [getattr(attention.mechanism, "kernel", None) for attention in places(model.network).values()]
    assert after == kernels
    assert fused.sdpa in kernels or name == "linear"
    assert torch.equal(model.network(*tensors(model, text)), before)


class Largest(TorchDispatchMode):
    """How many elements the largest tensor has that anything makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor) and leaf.untyped_storage()]
        self.elements = max([self.elements, *sizes])
        return made


@pytest.mark.parametrize("name", ["tiny-bloom", "tiny-t5", "windowed"])
def test_no_matrix_is_made_while_it_streams(name, monkeypatch):
    """ALiBi, T5's buckets, a window: what the fused kernel would write out as a mask or a bias."""
    monkeypatch.setattr("pellucid.kernels.operator_tiled.STRIP", {"cpu": 2**18})
    model = model_of(name)
    length = 2500 if name != "windowed" else 2000
    config = model.config.model_copy(update={"context": None if model.config.context is None else 4096})
    model = Model(config, Transformer(config, seed=1).eval())
    with Largest() as largest:
        spectrum(
            model,
            text_of(model, length),
            effort=Effort(budget=16, top=4, block=8, certify=False),
            method="free",
            baseline=False,
            only=Selection(blocks=[1], heads=[0]),
        )
    assert 2**17 < largest.elements < length**2 / 4


# --- bad input ---


def test_a_context_cuts_the_text_and_must_be_there():
    model = model_of("tiny-gpt2")
    found = spectrum(model, text_of(model), context=12, baseline=False)
    assert found.tokens == 12
    assert {head.tokens for head in found.heads} == {12}
    with pytest.raises(InputError, match="has 30 tokens, but a context of 31"):
        spectrum(model, text_of(model), context=31)
    with pytest.raises(InputError, match="context of 0 tokens"):
        spectrum(model, text_of(model), context=0)
    with pytest.raises(InputError, match="no text came"):
        spectrum(model)


def test_texts_must_fit_the_model():
    decoder, both = model_of("tiny-gpt2"), model_of("tiny-t5")
    with pytest.raises(InputError, match="one text, not a pair"):
        spectrum(decoder, ([1, 2], [3, 4]))
    with pytest.raises(InputError, match="pairs"):
        spectrum(both, [1, 2, 3])


def test_heads_and_values_must_be_there():
    model = model_of("tiny-gpt2")
    with pytest.raises(InputError, match="2 blocks of 4 heads"):
        spectrum(model, text_of(model), only=Selection(blocks=[2]))
    with pytest.raises(InputError, match="top 31"):
        spectrum(model, text_of(model), effort=Effort(top=31))
    with pytest.raises(InputError, match="top 31"):
        spectrum(model_of("relu"), text_of(model), effort=Effort(top=31))


def test_what_is_no_softmax_has_no_operator(monkeypatch):
    model = model_of("relu")
    with pytest.raises(InputError, match=r"normalized_relu attention has no matrix-free operator.*'free'"):
        spectrum(model, text_of(model), method="free")
    monkeypatch.setattr("pellucid.spectra.measure.FORMED_LIMIT", 29)
    with pytest.raises(InputError, match="29 tokens at most"):
        spectrum(model, text_of(model))
