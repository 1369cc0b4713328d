"""What the parity table cannot say of BERT and its relatives: segments, layouts of older files, sentence encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pellucid
from pellucid.errors import CheckpointError
from pellucid.model.config import Classify, LayerNorm, Learned, ModelConfig, Pool, Tag, Unembed
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.family import ConfigReader
from pellucid.pretrained.save import export
from tests.parity.case import Case
from tests.parity.table_bert import CASES, DISTIL_SIZE, SIZE
from tests.pretrained.released_bert import RELEASED

MASKED = next(case for case in CASES if case.name == "bert masked")
POOLED = next(case for case in CASES if case.name == "bert pooled")
TAGGER = next(case for case in CASES if case.name == "bert tagger")
ROBERTA = next(case for case in CASES if case.name == "roberta masked")
IDS = torch.randint(5, 64, (2, 9), generator=torch.Generator().manual_seed(2))


def saved(case: Case, folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None) -> Any:
    """The reference in float64, written to a folder with its tensors edited."""
    network = case.build(torch.float64)
    case.save(network, folder)
    if edit is not None:
        path = folder / "model.safetensors"
        save_file(edit(load_file(path)), path, metadata={"format": "pt"})
    return network


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "remove"}))


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found - wanted).abs().max() <= 1e-9 * wanted.abs().max())


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_segments_are_the_token_types_of_the_reference(tmp_path: Path) -> None:
    network = saved(MASKED, tmp_path)
    segments = (torch.arange(9) > 4).long().expand(2, 9)
    wanted = network(IDS, token_type_ids=segments).logits
    found = pellucid.load(tmp_path).network(IDS, segments=segments)
    assert close(found, wanted)
    assert not close(found, network(IDS).logits)


# --- files of older versions ---


def as_in_2019(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """gamma and beta, a counter, both heads of pre-training, and the tied tensors twice."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    return renamed | {
        "bert.embeddings.position_ids": torch.arange(40)[None],
        "bert.pooler.dense.weight": random(32, 32),
        "bert.pooler.dense.bias": random(32),
        "cls.seq_relationship.weight": random(2, 32),
        "cls.seq_relationship.bias": random(2),
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }


@torch.no_grad()
@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining", "remove"])
def test_a_file_of_the_first_years_opens_and_loses_nothing(tmp_path: Path, architecture: str) -> None:
    network = saved(MASKED, tmp_path / "in", as_in_2019)
    edit_config(tmp_path / "in", architectures="remove" if architecture == "remove" else [architecture])
    model = pellucid.load(tmp_path / "in")
    assert close(model.logits(IDS), network(IDS).logits)
    export(model, tmp_path / "out")
    before, after = load_file(tmp_path / "in" / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight"):
        assert torch.equal(before[name], after[name])
    assert torch.equal(before["bert.embeddings.LayerNorm.gamma"], after["bert.embeddings.LayerNorm.weight"])
    assert close(pellucid.load(tmp_path / "out").logits(IDS), network(IDS).logits)


@torch.no_grad()
def test_either_of_two_tied_tensors_will_do(tmp_path: Path) -> None:
    def kept_the_other(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors["cls.predictions.decoder.weight"] = tensors.pop("bert.embeddings.word_embeddings.weight")
        tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
        return tensors

    network = saved(MASKED, tmp_path, kept_the_other)
    assert close(pellucid.load(tmp_path).logits(IDS), network(IDS).logits)


def test_tied_tensors_that_differ_are_refused(tmp_path: Path) -> None:
    saved(MASKED, tmp_path, lambda tensors: tensors | {"cls.predictions.decoder.weight": random(64, 32)})
    with pytest.raises(CheckpointError, match="the tensors differ"):
        pellucid.load(tmp_path)


@torch.no_grad()
def test_a_tagger_may_bring_a_pooler(tmp_path: Path) -> None:
    pooler = {"bert.pooler.dense.weight": random(32, 32), "bert.pooler.dense.bias": random(32)}
    network = saved(TAGGER, tmp_path / "in", lambda tensors: tensors | pooler)
    model = pellucid.load(tmp_path / "in")
    assert close(model.logits(IDS), network(IDS).logits)
    export(model, tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in pooler.items())


def test_other_tensors_are_still_refused(tmp_path: Path) -> None:
    saved(TAGGER, tmp_path, lambda tensors: tensors | {"bert.adapter.weight": random(2)})
    with pytest.raises(CheckpointError, match=r"bert\.adapter\.weight"):
        pellucid.load(tmp_path)


@torch.no_grad()
def test_a_model_without_a_pooler_gives_the_first_token(tmp_path: Path) -> None:
    def without(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in tensors.items() if "pooler" not in name}

    network = saved(POOLED, tmp_path / "in", without)
    model = pellucid.load(tmp_path / "in")
    assert model.config.head == Pool(pooling="first")
    assert close(model.logits(IDS), network(IDS).last_hidden_state[:, 0])
    export(model, tmp_path / "out")
    assert pellucid.load(tmp_path / "out").config == model.config


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_config_without_its_class_is_told_by_the_tensors(tmp_path: Path, case: Case) -> None:
    saved(case, tmp_path)
    named = pellucid.load(tmp_path)
    edit_config(tmp_path, architectures="remove")
    if named.origin.family == "bert" and case.kind in ("tag", "classify"):
        with pytest.raises(CheckpointError, match=r"has unknown classifier\.bias, classifier\.weight"):
            pellucid.load(tmp_path)
        return
    assert pellucid.load(tmp_path).config == named.config


# --- sentence encoders ---


def describe(folder: Path, settings: dict[str, Any], *, normalize: bool) -> None:
    kinds = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if normalize else {})
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


@torch.no_grad()
@pytest.mark.parametrize("settings", [{"pooling_mode_mean_tokens": True}, {"pooling_mode": "mean"}], ids=str)
@pytest.mark.parametrize("case", [POOLED, MASKED, ROBERTA], ids=lambda case: case.name)
def test_a_sentence_encoder_keeps_its_pooling_and_its_unused_tensors(
    tmp_path: Path, case: Case, settings: dict[str, Any]
) -> None:
    network = saved(case, tmp_path / "in")
    describe(tmp_path / "in", settings, normalize=True)
    model = pellucid.load(tmp_path / "in")
    states = network(IDS, output_hidden_states=True).hidden_states[-1]
    wanted = torch.nn.functional.normalize(states.mean(1), dim=-1)
    assert model.config.head == Pool(pooling="mean", normalize=True)
    assert close(model.logits(IDS), wanted)
    export(model, tmp_path / "out")
    again = pellucid.load(tmp_path / "out")
    assert again.config == model.config
    assert torch.equal(again.logits(IDS), model.logits(IDS))
    before, after = load_file(tmp_path / "in" / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_poolings_that_cannot_be_built_are_refused(tmp_path: Path) -> None:
    saved(POOLED, tmp_path)
    describe(tmp_path, {"pooling_mode": ["mean", "cls"]}, normalize=False)
    with pytest.raises(CheckpointError, match="exactly one of"):
        pellucid.load(tmp_path)


def test_a_new_sentence_encoder_can_be_written(tmp_path: Path) -> None:
    config = preset("tiny-bert").model_copy(update={"head": Pool(pooling="mean", normalize=True)})
    model = Model(config, Transformer(config, seed=0))
    export(model, tmp_path / "out")
    again = pellucid.load(tmp_path / "out")
    assert again.config == config
    assert torch.equal(again.logits(IDS), model.logits(IDS))


# --- configs ---


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_are_read_to_the_end(name: str) -> None:
    theirs, family, head = RELEASED[name]
    reader = ConfigReader(theirs)
    config = FAMILIES[family].read(reader, (theirs.get("architectures") or [""])[0])
    reader.finish()
    assert config.head.kind == head
    assert config.context == 512
    assert isinstance(config.norm, LayerNorm)
    assert config.norm.epsilon == (1e-5 if "roberta" in family or family == "camembert" else 1e-12)
    assert config.segments == (0 if family == "distilbert" else theirs["type_vocab_size"])
    if isinstance(config.head, Tag | Classify):
        assert config.head.labels == len(theirs["id2label"])


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "only 'absolute'"),
        ("bert", {"is_decoder": True}, "is_decoder = True"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention = True"),
        ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("bert", {"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ("bert", {"type_vocab_size": 0}, "type_vocab_size = 0"),
        ("bert", {"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        ("bert", {"embedding_size": 128}, "embedding_size = 128"),
        ("roberta", {"position_embedding_type": "relative_key_query"}, "only 'absolute'"),
        ("distilbert", {"is_decoder": True}, "is_decoder = True"),
        ("distilbert", {"architectures": ["DistilBertForMultipleChoice"]}, "DistilBertForMultipleChoice"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused(family: str, changes: dict[str, Any], said: str) -> None:
    def read_to_the_end() -> None:
        reader = ConfigReader({**(DISTIL_SIZE if family == "distilbert" else SIZE), **changes})
        FAMILIES[family].read(reader, changes.get("architectures", [""])[0])
        reader.finish()

    with pytest.raises(CheckpointError, match=said):
        read_to_the_end()


HEADS = [
    Unembed(bias=True, transform="gelu"),
    Unembed(tied=False, bias=True, transform="gelu"),
    Tag(labels=4),
    Classify(labels=3),
    Classify(labels=3, hidden="relu"),
    Pool(pooling="first", project=True),
    Pool(pooling="first"),
    Pool(pooling="mean", normalize=True),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"position": Learned(skip=2), "segments": 1},
    "distilbert": {"segments": 0},
}


def variant(family: str, **changes: Any) -> ModelConfig:
    values = preset("tiny-bert").model_dump() | VARIANTS[family] | changes
    return ModelConfig(**values)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("family", VARIANTS)
def test_every_config_that_a_family_can_say_comes_back(family: str, head: Any) -> None:
    config = variant(family, head=head)
    labels = head.labels if isinstance(head, Tag | Classify) else 0
    written = FAMILIES[family].express(config, labels)
    relu = isinstance(head, Classify) and head.hidden == "relu"
    projects = isinstance(head, Pool) and head.project
    wrong_hidden = isinstance(head, Classify) and relu != (family == "distilbert")
    assert (written is None) == (wrong_hidden or (family == "distilbert" and projects))
    others = [name for name in VARIANTS if name != family]
    assert all(FAMILIES[name].express(config, labels) is None for name in others)


@pytest.mark.parametrize(
    "changes",
    [
        {"placement": "pre"},
        {"embedding_norm": False},
        {"decoder_blocks": 2, "encoder_blocks": 0},
        {"head": Unembed(transform="gelu")},
        {"head": Unembed(bias=True, transform="relu")},
        {"head": Classify(labels=2, pooling="mean")},
        {"head": Pool(pooling="first", project=True, normalize=True)},
        {"key_value_heads": 2},
    ],
    ids=str,
)
def test_what_bert_has_no_words_for_is_not_written_as_bert(changes: dict[str, Any]) -> None:
    assert FAMILIES["bert"].express(variant("bert", **changes), 2) is None
