"""Adapters on every architecture and task: what they change, what trains, and how they leave."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import lora
from pellucid.errors import CheckpointError, ConfigError, InputError
from pellucid.lens.explain import explain
from pellucid.lora import Lora
from pellucid.model import config as c
from pellucid.model.layers import Linear
from pellucid.model.presets import PRESETS, preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.weights import weight_spectra
from tests.cli.running import run

TINY = [name for name in PRESETS if name.startswith("tiny-")]
HEADS = {"tag": c.Tag(labels=3), "classify": c.Classify(labels=3), "pool": c.Pool()}
SHAPES: dict[str, c.ModelConfig] = {name: preset(name) for name in TINY}
SHAPES |= {
    f"{kind} {name}": preset(name).model_copy(update={"head": head})
    for kind, head in HEADS.items()
    for name in ("tiny-bert", "tiny-llama")
}
SHAPES["linear"] = preset("tiny-gpt2").model_copy(update={"attention": c.Linear()})
IDS = torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(0))


def build(name: str, dtype: torch.dtype = torch.float64) -> Model:
    return Model(SHAPES[name], Transformer(SHAPES[name], seed=0).to(dtype).eval())


def answers(model: Model) -> Tensor:
    return model.logits(IDS, IDS[:, :5]) if model.config.is_encoder_decoder else model.logits(IDS)


def trained(model: Model, seed: int = 1) -> Model:
    """As if it had been trained: random numbers in all that trains."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for each in model.network.parameters():
            if each.requires_grad:
                each.copy_(torch.randn(each.shape, generator=draw) * 0.2)
    return model


def weights(model: Model) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in model.network.state_dict().items()}


@pytest.mark.parametrize("name", SHAPES)
def test_a_fresh_adapter_changes_nothing_and_alone_has_gradients(name: str) -> None:
    model = build(name)
    before = answers(model)
    added = lora.add(model, Lora(targets=("to_*", "feed_forward.*")), seed=0)
    assert torch.equal(answers(model), before)
    trained(model)
    texts = (IDS, IDS[:, :5]) if model.config.is_encoder_decoder else (IDS,)
    model.network(*texts).square().sum().backward()
    have = {name for name, each in model.network.named_parameters() if each.grad is not None}
    assert have == {name for name, _ in model.network.named_parameters() if ".change.default." in name}
    assert added.trained == sum(each.numel() for each in model.network.parameters() if each.requires_grad)
    assert not torch.equal(answers(model), before)


@pytest.mark.parametrize("name", SHAPES)
def test_merged_unmerged_and_plain_agree_and_the_weights_come_back_to_the_bit(name: str) -> None:
    model = build(name)
    base, before = answers(model), weights(model)
    lora.add(model, Lora(rank=3, rank_stabilized=True, targets=("attention.*", "feed_forward.down")), seed=0)
    wanted = answers(trained(model))
    assert torch.allclose(answers(model.plain()), wanted, rtol=0, atol=1e-12)
    lora.merge(model)
    assert torch.allclose(answers(model), wanted, rtol=0, atol=1e-12)
    assert model.plain() is model
    assert set(model.network.state_dict()) == set(before)
    lora.unmerge(model)
    assert torch.equal(answers(model), wanted)
    lora.remove(model, "default")
    assert torch.equal(answers(model), base)
    assert all(torch.equal(each, before[key]) for key, each in model.network.state_dict().items())
    assert all(each.requires_grad for each in model.network.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_unmerge_is_exact_where_subtracting_would_not_be(dtype: torch.dtype) -> None:
    model = build("tiny-llama", dtype)
    before = weights(model)
    lora.add(model, Lora(targets=("*",)), seed=0)
    assert all(each.dtype == torch.float32 for each in model.network.parameters() if each.requires_grad)
    trained(model)
    lora.merge(model)
    lora.unmerge(model)
    assert all(torch.equal(model.network.state_dict()[key], each) for key, each in before.items())


def test_a_merge_without_keeping_leaves_no_adapter() -> None:
    model = build("tiny-gpt2")
    lora.add(model, seed=0)
    wanted = answers(trained(model))
    lora.merge(model, keep=False)
    assert lora.adapters(model) == {}
    assert torch.allclose(answers(model), wanted, atol=1e-12)
    assert all(each.requires_grad for each in model.network.parameters())
    with pytest.raises(InputError, match="no adapter"):
        lora.unmerge(model)


def test_adapters_switch_and_sum() -> None:
    model = build("tiny-llama")
    base, w = answers(model), model.network.get_parameter("decoder.0.attention.to_query.weight").detach().clone()
    lora.add(model, Lora(rank=2), "a", seed=0)
    one = answers(trained(model, 1))
    lora.add(model, Lora(rank=4, alpha=3, targets=("to_query", "up")), "b", seed=1)
    two = answers(trained(model, 2))
    assert lora.active(model) == {"b": 1.0}
    lora.use(model, "a")
    assert torch.equal(answers(model), one)
    assert {n.split(".")[-2] for n, p in model.network.named_parameters() if p.requires_grad} == {"a"}
    lora.use(model, {"a": 0.25, "b": -2})
    change = model.network.get_submodule("decoder.0.attention.to_query").change
    a, b = change.of("a"), change.of("b")
    wanted = w + 0.25 * 8 * a.up @ a.down - 2 * 0.75 * b.up @ b.down
    summed = model.plain().network.get_parameter("decoder.0.attention.to_query.weight")
    assert torch.allclose(summed, wanted, atol=1e-14)
    assert torch.allclose(answers(model), answers(model.plain()), atol=1e-12)
    lora.use(model, "b")
    assert torch.equal(answers(model), two)
    lora.off(model)
    assert torch.equal(answers(model), base)


def test_the_plain_network_follows_its_adapters_and_stays_one_object() -> None:
    model = build("tiny-gpt2")
    lora.add(model, seed=0)
    plain = model.plain().network
    trained(model)
    assert model.plain().network is plain
    assert torch.allclose(answers(model.plain()), answers(model), atol=1e-12)
    lora.off(model)
    assert torch.equal(answers(model.plain()), answers(model))
    model.network.float()
    assert model.plain().network.get_parameter("decoder.0.attention.to_query.weight").dtype == torch.float32


@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_a_plain_network_leaves_what_trains_as_it_was(kernel: Any) -> None:
    model = build("tiny-llama")
    lora.add(model, Lora(rank=2), seed=0)
    before = {name for name, each in model.network.named_parameters() if each.requires_grad}
    model.network.with_kernel(kernel)
    assert {name for name, each in model.network.named_parameters() if each.requires_grad} == before


def test_heads_of_its_own_come_and_go_with_an_adapter() -> None:
    model = build("classify tiny-bert")
    base = answers(model)
    lora.add(model, Lora(whole=("head.to_labels",)), "a", seed=0)
    assert torch.equal(answers(model), base)
    one = answers(trained(model, 1))
    lora.add(model, Lora(whole=("head",)), "b", seed=0)
    assert torch.equal(answers(model), base)
    names = {n for n, p in model.network.named_parameters() if p.requires_grad and n.startswith("head.")}
    assert names == {"head.dense.weight", "head.dense.bias", "head.to_labels.weight", "head.to_labels.bias"}
    lora.use(model, "a")
    assert torch.equal(answers(model), one)
    with pytest.raises(InputError, match=r"'a' and 'b' both have head.to_labels.weight"):
        lora.use(model, {"a": 1, "b": 1})
    lora.off(model)
    assert torch.equal(answers(model), base)


def test_a_joint_target_shares_a() -> None:
    model = build("tiny-gpt2")
    lora.add(model, Lora(targets=("attention.to_query+to_key+to_value",)), seed=0)
    attention = model.network.get_submodule("decoder.0.attention")
    downs = {getattr(attention, f"to_{part}").change.of("default").down for part in ("query", "key", "value")}
    assert len(downs) == 1
    assert torch.allclose(answers(trained(model)), answers(model.plain()), atol=1e-12)


def test_dropout_acts_in_training_alone() -> None:
    model = trained_with(Lora(dropout=0.5))
    assert torch.equal(answers(model), answers(model))
    model.network.train()
    assert not torch.equal(answers(model), answers(model))


def trained_with(config: Lora, name: str = "tiny-llama") -> Model:
    model = build(name)
    lora.add(model, config, seed=0)
    return trained(model)


def test_ranks_and_alphas_of_their_own() -> None:
    model = build("tiny-llama")
    lora.add(model, Lora(rank=4, alpha=4, targets=("to_*",), ranks={"to_value": 2}, alphas={"decoder.0.*": 1}), seed=0)
    value = model.network.get_submodule("decoder.0.attention.to_value").change.of("default")
    query = model.network.get_submodule("decoder.1.attention.to_query").change.of("default")
    assert (value.down.shape[0], value.scale) == (2, 0.5)
    assert (query.down.shape[0], query.scale) == (4, 1.0)


def test_state_and_copies_keep_adapters() -> None:
    model = trained_with(Lora())
    other = build("tiny-llama")
    lora.add(other, Lora(), seed=5)
    other.network.load_state_dict(model.network.state_dict())
    twin = copy.deepcopy(model)
    lora.off(model)
    assert torch.equal(answers(other), answers(twin))
    assert lora.active(twin) == {"default": 1.0}


def test_training_lowers_the_loss_and_leaves_the_base_alone() -> None:
    model = build("tiny-gpt2")
    before = weights(model)
    lora.add(model, Lora(rank=4, targets=("*",)), seed=0)
    optimizer = torch.optim.AdamW([each for each in model.network.parameters() if each.requires_grad], lr=0.02)
    losses = []
    for _ in range(15):
        scores = model.network(IDS[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), IDS[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    # The frozen table is small (0.02): no score can exceed sqrt(32) |row| = 0.64, so no loss can fall by much more.
    assert losses[-1] < losses[0] - 0.5
    assert all(torch.equal(model.network.state_dict()[key], each) for key, each in before.items())


# --- what reads weights ---


@pytest.mark.parametrize("sites", [None, ["*.query"]])
@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_a_trace_checks_what_the_adapted_model_computes(kernel: Any, sites: list[str] | None) -> None:
    model = trained_with(Lora(targets=("*",)))
    network = Transformer(model.config, kernel=kernel, seed=0).double().eval()
    own = Model(model.config, network)
    lora.add(own, Lora(targets=("*",)), seed=0)
    network.load_state_dict(model.network.state_dict())
    found = pellucid.trace(own, IDS[:1], sites=sites)
    assert all(step.error < 1e-9 for step in found.steps)
    assert explain(found, "decoder.0.attention.query[0,2,1]", own).error < 1e-9


def test_generation_spectra_and_files_read_the_adapted_weights(tmp_path: Path) -> None:
    model = trained_with(Lora(targets=("*",)), "tiny-gpt2")
    merged = build("tiny-gpt2")
    merged.network.load_state_dict(model.plain().network.state_dict())
    texts = [pellucid.generate(one, [[5, 6, 7]], max_tokens=6)[0].ids for one in (model, model.plain(), merged)]
    assert texts[0] == texts[1] == texts[2]
    ours, theirs = (weight_spectra(one.network, baseline_seed=None) for one in (model, merged))
    assert ours == theirs
    for write in (pellucid.save, pellucid.export):
        folder = write(model, tmp_path / write.__name__)
        assert torch.allclose(answers(pellucid.load(folder)), answers(model), atol=1e-12)


# --- files and the command line ---


@pytest.mark.parametrize("name", ["tiny-gpt2", "classify tiny-bert", "linear"])
def test_our_own_layout_keeps_every_number(name: str, tmp_path: Path) -> None:
    config = Lora(
        targets=("attention.to_query+to_key", "up"), whole=("head",) if "classify" in name else (), ranks={"up": 2}
    )
    model = trained_with(config, name)
    lora.save(model, tmp_path / "adapter")
    fresh = build(name)
    assert lora.load(fresh, tmp_path / "adapter").config == config
    assert torch.equal(answers(fresh), answers(model))


def test_the_command_line_opens_exports_and_imports(tmp_path: Path) -> None:
    pellucid.export(build("tiny-llama", torch.float32), tmp_path / "base")
    model = pellucid.load(tmp_path / "base")
    lora.add(model, Lora(rank=2), seed=0)
    lora.save(trained(model), tmp_path / "ours")
    wanted = pellucid.generate(model.plain(), [[5, 6, 7]], max_tokens=4)[0].ids

    def written(*arguments: str | Path) -> tuple[int, ...]:
        result = run("generate", *arguments, "5 6 7", "--ids", "--max-tokens", "4", "--json")
        assert result.returncode == 0, result.stderr
        return tuple(json.loads(result.stdout)[0]["continuations"][0]["ids"])

    assert written(tmp_path / "ours") == wanted
    assert run("export", tmp_path / "ours", tmp_path / "peft").returncode == 0
    assert run("import", tmp_path / "peft", tmp_path / "back").returncode == 0
    assert run("export", tmp_path / "ours", tmp_path / "merged", "--merge").returncode == 0
    assert written(tmp_path / "base", "--adapter", tmp_path / "peft") == wanted
    assert written(tmp_path / "back") == wanted
    assert written(tmp_path / "merged") == wanted
    trace = run("trace", tmp_path / "base", "5 6 7", "--ids", "--adapter", tmp_path / "ours", "--json", "--no-values")
    assert max(step["error"] for step in json.loads(trace.stdout)["steps"]) < 1e-4
    assert "--base is for adapters" in run("import", tmp_path / "base", tmp_path / "x", "--base", "y").stderr


# --- bad input ---


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Lora(targets=("to_qeury",)), "no linear map is called 'to_qeury'; the nearest are to_query"),
        (Lora(targets=("attention.to_query+to_kye",)), "needs the linear map decoder.0.attention.to_kye"),
        (Lora(targets=("feed_forward.up+down",)), "cannot share A"),
        (Lora(targets=("to_query", "attention.to_query+to_key")), "alone and of a joint one"),
        (Lora(whole=("haed",)), "'haed' is not a module"),
        (Lora(whole=("head",)), "'head' has no parameters of its own"),
        (Lora(whole=("decoder.0.attention",)), "is a target and in 'decoder.0.attention'"),
    ],
)
def test_wrong_names_are_told_with_the_nearest(config: Lora, message: str) -> None:
    model = build("tiny-gpt2")
    with pytest.raises(InputError, match=message.replace("+", r"\+")):
        lora.add(model, config)
    assert lora.adapters(model) == {}
    assert not any(module.change for module in model.network.modules() if isinstance(module, Linear))


@pytest.mark.parametrize("values", [{"rank": 0}, {"alpha": 0}, {"dropout": 1.0}, {"targets": ()}, {"rnak": 3}])
def test_wrong_configs_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        Lora(**values)


def test_wrong_order_is_told() -> None:
    model = build("tiny-gpt2")
    with pytest.raises(InputError, match="no adapter"):
        lora.merge(model)
    lora.add(model, seed=0)
    for name, message in (("default", "already"), ("a.b", "cannot be the name"), ("keys", "cannot be the name")):
        with pytest.raises(InputError, match=message):
            lora.add(model, name=name)
    with pytest.raises(InputError, match="nothing is merged"):
        lora.unmerge(model)
    with pytest.raises(InputError, match="no adapter is called 'x'; there are default"):
        lora.use(model, "x")
    lora.merge(model)
    for act in (lambda: lora.add(model, name="b"), lambda: lora.off(model), lambda: lora.merge(model)):
        with pytest.raises(InputError, match="unmerge first"):
            act()


def test_a_wrong_folder_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    wide = build("tiny-bloom")
    lora.add(wide, seed=0)
    lora.save(wide, tmp_path / "wide")
    model = trained_with(Lora(), "tiny-gpt2")
    before = answers(model)
    with pytest.raises(CheckpointError, match="trained on another base"):
        lora.load(model, tmp_path / "wide", "other")
    assert torch.equal(answers(model), before)
    with pytest.raises(CheckpointError, match="is this the folder of an adapter"):
        lora.load(model, tmp_path)
    (tmp_path / "wide" / "adapter.safetensors").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="cannot be read"):
        lora.load(model, tmp_path / "wide", "other")
