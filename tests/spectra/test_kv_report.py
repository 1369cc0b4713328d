"""The report on a cache against tensors that are formed in full, without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.reference import share
from pellucid.model import config as c
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.kv_changes import Alteration, Int8, LowRank, WindowAndSinks
from pellucid.spectra.kv_report import kv_report
from pellucid.spectra.kv_results import KvReport
from tests.generation.models import model

NAMES = ("tiny-gpt2", "tiny-llama", "tiny-bloom", "window", "two windows", "relu", "tiny-t5", "both window")
TOKENS, SOURCE, CACHED = 22, 9, 11
RANK, WINDOW, SINKS = 2, 3, 2


def ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(2, 30, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def text_for(opened: Model) -> Any:
    return (ids(SOURCE, 1), ids(TOKENS)) if opened.config.is_encoder_decoder else ids(TOKENS)


def report(opened: Model, **asked: Any) -> KvReport:
    return kv_report(opened, text_for(opened), **{"ranks": [RANK], "window": WINDOW, "sinks": SINKS} | asked)


# --- changes of the scores ---


@dataclass(frozen=True)
class Formed:
    """Attention of a whole text as one matrix: the rows after the cached tokens see these altered, or not at all."""

    alter: Callable[[Tensor], Tensor]
    hidden: set[int]
    window: int | None
    softmax: bool

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, view: Any) -> Tensor:
        heads, rows = query.shape[1], torch.arange(query.shape[2])[:, None]
        causal = view.mask.is_causal
        first = 0 if not causal or self.window is None else max(CACHED - self.window, 0)
        held = slice(first, CACHED if causal else None)
        outputs = []
        for altered in (False, True):
            k, v = key.clone(), value.clone()
            if altered:
                k[:, :, held], v[:, :, held] = self.alter(key[:, :, held]), self.alter(value[:, :, held])
            scores = query @ share(k, heads).mT * scale
            scores = scores if view.dense_bias is None else scores + view.dense_bias
            allowed = torch.ones_like(scores, dtype=torch.bool) if view.allowed is None else view.allowed.clone()
            if altered and causal:
                allowed = allowed.expand_as(scores).clone()
                allowed[..., sorted(self.hidden)] = False
            scores = scores.masked_fill(~allowed, -torch.inf)
            weights = scores.softmax(-1) if self.softmax else scores.relu() / scores.relu().sum(-1, keepdim=True)
            outputs.append(weights.nan_to_num(0.0) @ share(v, heads))
        return torch.where(rows >= CACHED, outputs[1], outputs[0])


def by_hand(opened: Model, alter: Callable[[Tensor], Tensor], hidden: set[int]) -> Tensor:
    """The scores of the second half, from one pass over everything. Decoders alone look at altered tensors."""
    twin = opened.network.twin("reference")
    softmax = isinstance(opened.config.attention, c.Softmax)
    for index, block in enumerate(twin.decoder.blocks):
        for attention in (block.attention, block.cross):
            if attention is not None:
                attention.mechanism.kernel = Formed(alter, hidden, opened.config.window_of(index), softmax)
    texts = text_for(opened) if opened.config.is_encoder_decoder else (text_for(opened),)
    with torch.no_grad():
        return twin(*(torch.tensor([each]) for each in texts))[0, CACHED:]


def nearest(x: Tensor) -> Tensor:
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    values = values.clone()
    values[..., RANK:] = 0
    return left @ torch.diag_embed(values) @ right


def rounded(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / scale) * scale


def kept(x: Tensor) -> Tensor:
    return x


ALTERED = {
    f"rank {RANK}": (nearest, set()),
    f"window {WINDOW} + {SINKS} sinks": (kept, set(range(SINKS, CACHED - WINDOW))),
    "int8": (rounded, set()),
}


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_those_of_a_pass_over_everything(name: str) -> None:
    opened = model(name)
    found = report(opened, baseline=False)
    assert [change.cache for change in found.changes] == list(ALTERED)
    wanted = torch.tensor(ids(TOKENS)[CACHED + 1 :])
    old = by_hand(opened, kept, set())
    old_loss = torch.nn.functional.cross_entropy(old[:-1], wanted)
    assert found.loss == pytest.approx(float(old_loss), rel=1e-9)
    for change, (alter, hidden) in zip(found.changes, ALTERED.values(), strict=True):
        new = by_hand(opened, alter, hidden)
        shares, others = old.log_softmax(-1), new.log_softmax(-1)
        assert change.mean == pytest.approx(float((new - old).abs().mean()), rel=1e-6, abs=1e-12)
        assert change.largest == pytest.approx(float((new - old).abs().max()), rel=1e-6, abs=1e-12)
        divergence = (shares.exp() * (shares - others)).sum(-1).mean()
        assert change.divergence == pytest.approx(float(divergence), rel=1e-6, abs=1e-12)
        loss = torch.nn.functional.cross_entropy(new[:-1], wanted)
        assert change.loss == pytest.approx(float(loss - old_loss), rel=1e-6, abs=1e-9)
        assert change.agreement == pytest.approx(float((old.argmax(-1) == new.argmax(-1)).double().mean()))
        # A window that is no larger than the one that is looked at hides nothing more.
        assert (change.largest > 0) == (name != "window" or "window" not in change.cache)


@pytest.mark.parametrize("name", NAMES)
def test_full_rank_and_a_window_of_everything_change_nothing(name: str) -> None:
    opened = model(name)
    width = max(opened.config.key_width, opened.config.values_width)
    full, whole, _ = report(opened, ranks=[width], window=CACHED, baseline=False).changes
    for change in (full, whole):
        assert (change.mean, change.largest, change.divergence, change.loss) == (0, 0, 0, 0)
        assert (change.agreement, change.bytes) == (1, change.of)


def test_sinks_and_window_together_may_cover_everything() -> None:
    *_, change, _ = report(model("tiny-llama"), window=CACHED - SINKS, baseline=False).changes
    assert (change.largest, change.bytes) == (0, change.of)


def test_a_higher_rank_loses_less() -> None:
    changes = report(model("tiny-llama"), ranks=[1, 4, 7], baseline=False).changes[:3]
    assert changes[0].divergence > changes[1].divergence > changes[2].divergence > 0


# --- the alterations by themselves ---


def test_the_truncation_is_the_nearest_matrix_of_its_rank() -> None:
    for tokens in (5, 40):
        x = torch.randn(2, 3, tokens, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        lost = (x - LowRank(3).change(x)).square().sum((-1, -2))
        torch.testing.assert_close(lost, torch.linalg.svdvals(x)[..., 3:].square().sum(-1))
        assert torch.linalg.matrix_rank(LowRank(3).change(x)).eq(3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_int8_is_within_its_bound(dtype: torch.dtype) -> None:
    x = torch.randn(1, 2, 30, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, 3] = 0
    moved = (x - Int8().change(x)).abs().double()
    bound = x.abs().amax(-1, keepdim=True).double() * (1 / 254 + 2 * torch.finfo(dtype).eps)
    assert bool((moved <= bound).all())
    assert Int8().change(x).dtype == dtype


def test_sizes_are_those_of_the_tensors_that_would_be_kept() -> None:
    tokens, width = 30, 8
    whole, scales = torch.zeros(tokens, width, dtype=torch.int8), torch.zeros(tokens)
    assert Int8().size(tokens, width, 2) == whole.nbytes + scales.nbytes
    factors = torch.zeros(tokens, 3).half(), torch.zeros(3, width).half()
    assert LowRank(3).size(tokens, width, 2) == sum(factor.nbytes for factor in factors)
    assert LowRank(8).size(tokens, width, 2) == torch.zeros(tokens, width).half().nbytes
    shown = WindowAndSinks(4, 2).shown(tokens)
    assert shown.nonzero()[:, 0].tolist() == [0, 1, 26, 27, 28, 29]
    assert WindowAndSinks(4, 2).size(int(shown.sum()), width, 2) == torch.zeros(6, width).half().nbytes


# --- bytes ---


@pytest.mark.parametrize("name", [*NAMES, "linear elu", "both linear"])
def test_bytes_are_those_of_the_tensors(name: str) -> None:
    opened = model(name)
    found = report(opened, baseline=False)
    for room in found.growth.rooms:
        if room.context <= 4096:
            cache = opened.network.new_cache(1, room.context)
            assert room.bytes == sum(tensor.nbytes for tensor in cache.own_tensors())
    if opened.config.is_encoder_decoder:
        cache, source = opened.network.new_cache(1, 1), torch.tensor([ids(SOURCE, 1)])
        opened.network.decode(torch.tensor([[5]]), opened.network.encode(source), cache=cache)
        tensors = sum(tensor.nbytes for tensor in cache.tensors()) - sum(t.nbytes for t in cache.own_tensors())
        assert {room.source_bytes for room in found.growth.rooms} == {tensors}
    assert TOKENS in [room.context for room in found.growth.rooms]


@pytest.mark.parametrize(("name", "kept_tokens"), [("tiny-llama", 2 * CACHED), ("two windows", 4 + CACHED)])
def test_what_was_kept_counts_only_filled_slots(name: str, kept_tokens: int) -> None:
    opened = model(name)
    config = opened.config
    found = report(opened, baseline=False)
    widths = config.key_width + config.values_width
    assert {change.of for change in found.changes} == {kept_tokens * config.groups * widths * 8}
    shown = 2 * (WINDOW + SINKS) if name == "tiny-llama" else WINDOW + WINDOW + SINKS
    assert found.changes[1].bytes == shown * config.groups * widths * 8


def test_the_formula_is_written_out() -> None:
    found = report(model("tiny-llama"), baseline=False).growth
    assert found.formula == "2 x 2 blocks x 2 key-value heads x head width 8 x 8 bytes"
    assert found.per_token == 2 * 2 * 2 * 8 * 8
    assert "2 blocks x 2 key-value heads x head width (6 + 5)" in report(model("two windows")).growth.formula
    assert [room.context for room in found.rooms] == [1, 4, 16, TOKENS, 64]
    assert report(model("tiny-bloom"), baseline=False).growth.rooms[-1].context == 131_072


# --- spectra ---


def seen_by(opened: Model, *sites: str) -> list[Tensor]:
    """What passes through the sites while the whole text is read at once."""
    seen: dict[str, Tensor] = {}
    hooks = [
        opened.network.get_submodule(site).register_forward_hook(
            lambda m, i, value, site=site: seen.update({site: value})
        )
        for site in sites
    ]
    texts = text_for(opened) if opened.config.is_encoder_decoder else (text_for(opened),)
    with torch.no_grad():
        opened.network(*(torch.tensor([each]) for each in texts))
    for hook in hooks:
        hook.remove()
    return [seen[site][0] for site in sites]


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "two windows", "tiny-t5"])
def test_spectra_are_those_of_the_keys_and_values(name: str) -> None:
    opened = model(name)
    found = {(each.block, each.kind, each.part, each.head): each.measured for each in report(opened).heads}
    kinds = {"self": "attention", "cross": "cross"} if opened.config.is_encoder_decoder else {"self": "attention"}
    rotated = isinstance(opened.config.position, c.Rotary)
    assert len(found) == 2 * opened.config.groups * (3 if rotated else 2 * len(kinds))
    for (kind, place), block in ((each, block) for each in kinds.items() for block in (0, 1)):
        key, value = seen_by(opened, f"decoder.{block}.{place}.key", f"decoder.{block}.{place}.value")
        window = opened.config.window_of(block) or TOKENS
        for part, tensor in (("key", key), ("value", value)):
            for head in range(opened.config.groups):
                rows = tensor[head, -window:]
                measured, values = found[block, kind, part, head], torch.linalg.svdvals(rows)
                torch.testing.assert_close(torch.tensor(measured.values).double(), values)
                assert measured.ranks.shape == tuple(rows.shape)
                assert measured.ranks.stable == pytest.approx(float(values.square().sum() / values[0] ** 2))
                held = values.square().cumsum(0) / values.square().sum()
                assert dict(measured.ranks.effective) == {t: int((held < t).sum()) + 1 for t in (0.9, 0.95, 0.99)}
                assert measured.shares[0.9] == measured.ranks.at(0.9) / rows.shape[1]


def test_keys_before_rotation_are_those_of_the_projection() -> None:
    opened = model("tiny-llama")
    (read,) = seen_by(opened, "decoder.1.attention.input")
    keys = opened.network.decoder.blocks[1].attention.to_key(read).reshape(TOKENS, 2, -1).transpose(0, 1)
    found = [each for each in report(opened).heads if each.block == 1 and each.part == "key before rotation"]
    for head, each in enumerate(found):
        torch.testing.assert_close(torch.tensor(each.measured.values).double(), torch.linalg.svdvals(keys[head]))


def test_a_model_is_not_its_own_baseline() -> None:
    config = preset("tiny-gpt2")
    opened = Model(config, Transformer(config, seed=0).eval())
    found = report(opened, seed=0)
    assert all(head.baseline is not None for head in found.heads)
    assert all(abs(head.baseline.values[0] - head.measured.values[0]) > 1e-6 for head in found.heads if head.baseline)
    assert report(opened, seed=0) == found
    assert report(opened, seed=1).heads[0].baseline != found.heads[0].baseline
    assert all(head.baseline is None for head in report(opened, baseline=False).heads)


# --- what kind of model, and how it comes ---


@pytest.mark.parametrize("name", ["linear elu", "linear random", "both linear"])
def test_linear_attention_has_nothing_per_token(name: str) -> None:
    found = report(model(name))
    assert (found.heads, found.changes, found.loss, found.growth.per_token) == ((), (), None, 0)
    assert len({room.bytes for room in found.growth.rooms}) == 1
    assert "nothing per token" in found.notes[0]


def test_windows_and_sources_are_noted() -> None:
    assert report(model("two windows")).notes == ("1 of 2 blocks keep no more than a window of 4 tokens.",)
    assert "a window leaves them whole" in report(model("tiny-t5")).notes[0]


def test_a_network_in_training_or_on_another_kernel_gives_the_same_and_stays_so() -> None:
    opened = model("tiny-llama")
    wanted = report(opened, baseline=False)
    opened.network.train()
    assert report(opened, baseline=False) == wanted
    assert opened.network.training
    other = replace(opened, network=opened.network.twin("reference").eval())
    assert report(other, baseline=False) == wanted
    assert not any(module._forward_hooks for module in opened.network.modules())


def test_half_precision_is_measured_in_more() -> None:
    config = preset("tiny-llama")
    found = report(Model(config, Transformer(config, seed=0).bfloat16().eval()))
    assert (found.dtype, found.growth.per_token) == ("bfloat16", 2 * 2 * 2 * 8 * 2)
    assert found.heads[0].measured.ranks.dtype == "float32"
    assert found.changes[0].mean > 0


def test_the_context_cuts_the_text() -> None:
    found = report(model("tiny-llama"), context=10, baseline=False)
    assert (found.tokens, found.cached) == (10, 5)
    assert found == kv_report(model("tiny-llama"), ids(TOKENS)[:10], ranks=[2], window=3, sinks=2, baseline=False)


def test_the_defaults_are_shares_of_what_there_is() -> None:
    names = [change.cache for change in kv_report(model("tiny-llama"), ids(TOKENS), baseline=False).changes]
    assert names == ["rank 1", "rank 2", "rank 4", "window 2 + 4 sinks", "int8"]


def test_the_report_is_plain_json() -> None:
    found = report(model("tiny-t5"))
    read = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert set(read) == {
        *("model", "dtype", "tokens", "cached", "tau", "bytes", "heads", "loss", "changes", "notes"),
    }
    head, change = read["heads"][0], read["changes"][0]
    assert head["effective_rank"].keys() == head["share_of_width"].keys() == {"0.9", "0.95", "0.99"}
    assert len(head["singular_values"]) == 8
    assert head["baseline"]["stable_rank"] > 0
    assert change["share"] == found.changes[0].bytes / found.changes[0].of
    assert read["bytes"]["contexts"][0].keys() == {"context", "bytes", "source_bytes"}


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a rank above the width": ("tiny-gpt2", {"ranks": [9]}, "rank 9 is above the width 8 of a head"),
    "no rank": ("tiny-gpt2", {"ranks": [0]}, "a cache of rank 0 holds nothing: give 1 or more"),
    "no window": ("tiny-gpt2", {"window": 0}, "a window of 0 tokens shows nothing: give 1 or more"),
    "fewer than no sinks": ("tiny-gpt2", {"sinks": -1}, "-1 sinks cannot be: give 0 or more"),
    "too long a context": (
        "tiny-gpt2",
        {"context": 23},
        "the text has 22 tokens, but a context of 23 .* ask for 4 to 22",
    ),
    "too short a context": ("tiny-gpt2", {"context": 3}, "a context of 3 was asked for: ask for 4 to 22"),
    "a wrong tau": ("tiny-gpt2", {"tau": (1.5,)}, "strictly between 0 and 1"),
}


@pytest.mark.parametrize(("name", "asked", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(name: str, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        report(model(name), **asked)


def test_texts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"the text has 3 tokens, but half of it is kept .* give 4 or more"):
        kv_report(model("tiny-gpt2"), [5, 6, 7])
    with pytest.raises(InputError, match=r"pairs \(source, target\)"):
        kv_report(model("tiny-t5"), ids(8))
    with pytest.raises(InputError, match="one text, not a pair"):
        kv_report(model("tiny-gpt2"), (ids(8), ids(8)))
    assert len(kv_report(model("tiny-gpt2"), ids(4), baseline=False).changes) == 5


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (preset("tiny-bert"), "it has no cache: `pellucid spectrum` measures its attention"),
        (preset("tiny-gpt2").model_copy(update={"causal": False}), "it has no cache"),
        (preset("tiny-gpt2").model_copy(update={"head": c.Tag(labels=2)}), "the head 'tag' and writes no text"),
    ],
    ids=["encoder", "not causal", "tagger"],
)
def test_models_without_a_cache_are_refused_with_what_fits(config: c.ModelConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        kv_report(Model(config, Transformer(config)), ids(8))


def test_weights_that_are_no_numbers_are_refused() -> None:
    opened = model("tiny-gpt2")
    with torch.no_grad():
        opened.network.decoder.blocks[0].attention.to_key.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="NaN or infinite"):
        report(opened)


def test_every_alteration_is_told_apart() -> None:
    names: list[Alteration] = [LowRank(2), LowRank(3), WindowAndSinks(3), WindowAndSinks(3, 1), Int8()]
    assert [each.name for each in names] == [
        *("rank 2", "rank 3", "window 3 + 4 sinks", "window 3 + 1 sink", "int8"),
    ]
