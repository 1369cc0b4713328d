"""The change between two models: what a rank-r adapter makes of weights, scores and attention."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pellucid import lora
from pellucid.errors import InputError
from pellucid.lora import Lora
from pellucid.model import config as c
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.save import save
from pellucid.spectra.against import NAMES, against, with_noise
from pellucid.spectra.change import Against
from pellucid.spectra.measure import Selection
from tests.cli.running import run

IDS = torch.randint(0, 96, (40,), generator=torch.Generator().manual_seed(0)).tolist()


def pair(name: str, config: Lora, dtype: torch.dtype = torch.float64, **changes: Any) -> tuple[Model, Model]:
    shape = preset(name).model_copy(update=changes)
    base = Model(shape, Transformer(shape, seed=0).to(dtype).eval())
    tuned = copy.deepcopy(base)
    lora.add(tuned, config, seed=0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in tuned.network.parameters():
            if each.requires_grad:
                each.copy_(torch.randn(each.shape, generator=draw) * 0.2)
    return tuned, base


def texts(model: Model) -> Any:
    return (IDS, IDS[:15]) if model.config.is_encoder_decoder else IDS


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rank_of_the_adapter_is_that_of_weights_and_scores_but_not_of_attention(
    merged: bool, dtype: torch.dtype
) -> None:
    tuned, base = pair("tiny-gpt2", Lora(rank=2, targets=("to_query",)), dtype)
    if merged:
        lora.merge(tuned)
    found = against(tuned, base, IDS)
    for head in found.heads:
        assert head.weights["query"].spectrum.ranks.numerical == 2
        assert head.weights["query"].factored is not merged
        assert all(head.weights[name].is_zero for name in ("key", "value", "output"))
    first = [head for head in found.heads if head.block == 0]
    # Block 0 reads the same input in both models: its keys are equal, and Q1 - Q0 has the adapter's rank.
    assert all(head.scores is not None and head.scores.spectrum.ranks.numerical == 2 for head in first)
    assert all(head.attention.spectrum.ranks.numerical > 20 for head in first)
    assert all(
        head.baseline is not None and head.baseline.weights["query"].spectrum.ranks.numerical == 8 for head in first
    )


def test_rotation_gives_the_scores_more_than_the_rank_of_the_adapter() -> None:
    tuned, base = pair("tiny-llama", Lora(rank=2, targets=("to_query",)))
    found = against(tuned, base, IDS, baseline=False).heads[0]
    assert found.scores is not None
    assert found.weights["query"].spectrum.ranks.numerical == 2
    assert found.scores.spectrum.ranks.numerical == 8


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-t5", "tiny-bert"])
def test_every_number_is_that_of_the_matrices_written_down(name: str) -> None:
    tuned, base = pair(name, Lora(rank=2, targets=("to_*",)))
    found = against(tuned, base, texts(tuned), baseline=False)
    formed = [one.plain().network.with_kernel("reference") for one in (tuned, base)]
    seen: list[dict[str, torch.Tensor]] = [{}, {}]
    for network, kept in zip(formed, seen, strict=True):
        for path, module in network.named_modules():
            if path.endswith((".query", ".key", ".weights")):
                module.register_forward_hook(lambda m, i, value, path=path, kept=kept: kept.update({path: value}))
        given = texts(tuned)
        ids = [torch.tensor([part]) for part in (given if isinstance(given, tuple) else (given,))]
        with torch.no_grad():
            network(*ids)
    for head in found.heads:
        path = f"{head.stack}.{head.block}.{'cross' if head.kind == 'cross' else 'attention'}"
        new, old = ({key: kept[f"{path}.{key}"][0] for key in ("query", "key", "weights")} for kept in seen)
        group = head.head * len(new["key"]) // len(new["query"])
        scale = formed[0].get_submodule(path).mechanism.scale
        scores = [one["query"][head.head] @ one["key"][group].T * scale for one in (new, old)]
        assert head.scores is not None
        for change, difference in (
            (head.scores, scores[0] - scores[1]),
            (head.attention, new["weights"][head.head] - old["weights"][head.head]),
        ):
            wanted = torch.linalg.svdvals(difference)
            mine = torch.tensor(change.spectrum.singular_values, dtype=torch.float64)
            assert torch.allclose(mine, wanted[: len(mine)], atol=1e-10)
            assert float(wanted[len(mine) :].sum()) < 1e-10
    assert {head.kind for head in found.heads} == ({"self", "cross"} if name == "tiny-t5" else {"self"})


@pytest.mark.parametrize("merged", [False, True])
def test_factored_changes_of_weights_are_those_of_the_difference(merged: bool) -> None:
    tuned, base = pair("tiny-llama", Lora(rank=3, targets=("attention.*",)))
    plain = tuned.plain().network.decoder.blocks[1].attention
    old = base.network.decoder.blocks[1].attention
    if merged:
        lora.merge(tuned)
    head = next(h for h in against(tuned, base, IDS, baseline=False).heads if (h.block, h.head) == (1, 3))
    # Four heads of width 8, two groups: head 3 reads the second group.
    bands = {"query": slice(24, 32), "key": slice(8, 16), "value": slice(8, 16), "output": slice(24, 32)}
    for name in NAMES:
        difference = getattr(plain, f"to_{name}").weight - getattr(old, f"to_{name}").weight
        band = difference[:, bands[name]] if name == "output" else difference[bands[name]]
        wanted = torch.linalg.svdvals(band.detach())[:3]
        assert torch.allclose(
            torch.tensor(head.weights[name].spectrum.singular_values[:3], dtype=torch.float64), wanted, atol=1e-10
        )
        assert head.weights[name].spectrum.ranks.numerical == 3


def test_the_noise_is_as_large_as_the_change_and_only_where_it_is() -> None:
    tuned, base = pair("tiny-gpt2", Lora(rank=2))
    noisy, new, old = (
        with_noise(base.network, tuned.network, 0).state_dict(),
        tuned.plain().network.state_dict(),
        base.network.state_dict(),
    )
    for name in old:
        wanted = (new[name] - old[name]).norm()
        assert torch.allclose((noisy[name] - old[name]).norm(), wanted, rtol=1e-9)


def test_other_mechanisms_have_attention_and_no_scores() -> None:
    tuned, base = pair("tiny-gpt2", Lora(), attention=c.Linear())
    found = against(tuned, base, IDS)
    assert all(head.scores is None and not head.attention.is_zero for head in found.heads)
    json.dumps(found.to_json(), allow_nan=False)


def test_no_change_is_a_rank_of_zero() -> None:
    _, base = pair("tiny-gpt2", Lora())
    found = against(base, copy.deepcopy(base), IDS, only=Selection(blocks=[1], heads=[0, 2]))
    assert len(found.heads) == 2
    assert all(change.is_zero and change.relative == 0 for head in found.heads for change in head.weights.values())
    assert all(head.attention.spectrum.ranks.numerical == 0 for head in found.heads)


def test_bad_input_is_told() -> None:
    tuned, base = pair("tiny-gpt2", Lora())
    other = Model(preset("tiny-llama"), Transformer(preset("tiny-llama"), seed=0))
    with pytest.raises(InputError, match="differ in shape"):
        against(tuned, other, IDS)
    with pytest.raises(InputError, match="no text came"):
        against(tuned, base)
    with pytest.raises(InputError, match="no head is left"):
        against(tuned, base, IDS, only=Selection(blocks=[9]))
    t5, t5_base = pair("tiny-t5", Lora())
    with pytest.raises(InputError, match=r"2049 tokens.*context of 2048"):
        against(t5, t5_base, ([5] * 2049, [5]))


def test_the_command_compares(tmp_path: Path) -> None:
    tuned, base = pair("tiny-gpt2", Lora(rank=2, targets=("to_query",)), torch.float32)
    save(base, tmp_path / "base")
    save(tuned, tmp_path / "tuned")
    lora.save(tuned, tmp_path / "adapter")
    (tmp_path / "ids.json").write_text(json.dumps(IDS))
    common = ("--against", tmp_path / "base", "--ids", tmp_path / "ids.json")
    result = run("spectrum", tmp_path / "base", "--adapter", tmp_path / "adapter", *common, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert set(answer) == set(Against("", "", 0, (), ()).to_json())
    assert answer["heads"][0]["weights"]["query"]["numerical_rank"] == 2
    assert answer["heads"][0]["weights"]["query"]["factored"]
    table = run("spectrum", tmp_path / "tuned", *common, "--no-baseline").stdout
    assert "decoder 0 head 0" in table
    assert "not shown there: key, output, value" in table
    assert "does not go with --against" in run("spectrum", tmp_path / "tuned", *common, "--top", "3").stderr
