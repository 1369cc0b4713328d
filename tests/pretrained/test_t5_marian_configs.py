"""Configs as released checkpoints of T5 and Marian have them, from transformers 2 to 5, and layouts of their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pellucid
from pellucid.errors import CheckpointError
from pellucid.model.config import (
    Biases,
    Gated,
    ModelConfig,
    Plain,
    Pool,
    RMSNorm,
    Sinusoidal,
    Softmax,
    T5Buckets,
    Unembed,
)
from pellucid.model.presets import preset
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.families.marian import MARIAN
from pellucid.pretrained.families.t5 import MT5, T5
from pellucid.pretrained.family import ConfigReader
from tests.parity import table_marian, table_t5
from tests.parity.case import Case
from tests.pretrained.released_t5_marian import (
    FLAN_T5_BASE,
    MT5_SMALL,
    OPUS_EN_DE,
    OPUS_TC_BIG,
    RELEASED,
    T5_ENCODER,
    T5_SMALL,
    T5_V1_1_SMALL,
    T5_V5,
)


def read(theirs: dict[str, Any], tensors: list[str] | None = None) -> ModelConfig:
    reader = ConfigReader(theirs, tensors)
    config = FAMILIES[theirs["model_type"]].read(reader, theirs["architectures"][0])
    reader.finish()
    return config


def t5_like(width: int, heads: int, depth: int, feed_forward: Plain | Gated, **options: Any) -> ModelConfig:
    common: dict[str, Any] = {
        "vocab": 32128,
        "head_width": 64,
        "encoder_blocks": depth,
        "decoder_blocks": depth,
        "attention": Softmax(scale=1.0),
        "position": T5Buckets(),
        "norm": RMSNorm(epsilon=1e-6),
        "biases": Biases.none(),
    }
    return ModelConfig(width=width, heads=heads, feed_forward=feed_forward, **common | options)


def gated(hidden: int) -> Gated:
    return Gated(hidden=hidden, activation="gelu_tanh")


@pytest.mark.parametrize("name", RELEASED)
def test_a_key_that_nobody_knows_is_refused_by_name(name: str) -> None:
    with pytest.raises(CheckpointError, match="twist = 3"):
        read(RELEASED[name] | {"twist": 3})


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_are_written_and_read_back(name: str) -> None:
    config = read(RELEASED[name])
    family = FAMILIES[RELEASED[name]["model_type"]]
    written = family.express(config)
    assert written is not None
    assert read(json.loads(json.dumps(written))) == config


def test_t5_is_what_its_config_says() -> None:
    assert read(T5_SMALL) == preset("t5-small")
    v1_1 = t5_like(512, 6, 8, gated(1024), head=Unembed(tied=False))
    assert read(T5_V1_1_SMALL) == v1_1
    assert read(FLAN_T5_BASE) == t5_like(768, 12, 12, gated(2048), head=Unembed(tied=False))
    assert read(MT5_SMALL) == v1_1.model_copy(update={"vocab": 250112})
    assert read(T5_ENCODER) == t5_like(768, 12, 12, gated(2048), decoder_blocks=0, head=Pool())


def test_marian_is_what_its_config_says() -> None:
    wanted = ModelConfig(
        vocab=58101,
        width=512,
        heads=8,
        encoder_blocks=6,
        decoder_blocks=6,
        context=512,
        feed_forward=Plain(hidden=2048, activation="silu"),
        position=Sinusoidal(layout="half", precision="float32"),
        placement="post",
        scale_embedding=True,
        head=Unembed(bias=True),
    )
    assert read(OPUS_EN_DE) == wanted
    assert read(OPUS_TC_BIG).feed_forward == Plain(hidden=4096, activation="relu")


@pytest.mark.parametrize(
    ("theirs", "tensors", "head"),
    [
        (T5_SMALL, ["shared.weight"], Unembed(scale=512**-0.5)),
        (T5_SMALL, ["shared.weight", "lm_head.weight"], Unembed(scale=512**-0.5)),  # a copy, which load compares
        (T5_V1_1_SMALL, ["shared.weight", "lm_head.weight"], Unembed(tied=False)),
        (T5_V1_1_SMALL, ["shared.weight"], Unembed()),
        (T5_V5, ["shared.weight", "lm_head.weight"], Unembed(tied=False)),
        (T5_V5, ["shared.weight"], Unembed()),
        (T5_V5 | {"scale_decoder_outputs": True}, ["lm_head.weight"], Unembed(tied=False, scale=768**-0.5)),
        (MT5_SMALL, ["shared.weight", "lm_head.weight"], Unembed(tied=False)),
        (MT5_SMALL | {"tie_word_embeddings": True}, ["shared.weight", "lm_head.weight"], Unembed(tied=False)),
        (MT5_SMALL | {"tie_word_embeddings": True}, ["shared.weight"], Unembed()),
    ],
)
def test_tying_and_scaling_follow_the_config_and_the_file(
    theirs: dict[str, Any], tensors: list[str], head: Unembed
) -> None:
    others = [f"encoder.block.{block}.layer.0.layer_norm.weight" for block in range(24)]
    assert read(theirs, tensors + others).head == head


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (T5_SMALL | {"architectures": ["T5ForTokenClassification"]}, "T5ForTokenClassification"),
        (T5_SMALL | {"feed_forward_proj": "gated-mish"}, "'mish'"),
        (T5_SMALL | {"is_decoder": True}, "is_decoder = True"),
        (T5_SMALL | {"quantization_config": {"bits": 8}}, "quantization_config"),
        (OPUS_EN_DE | {"decoder_attention_heads": 16}, "encoder_attention_heads = 8 and decoder_attention_heads = 16"),
        (OPUS_EN_DE | {"encoder_ffn_dim": 1024}, "encoder_ffn_dim = 1024 and decoder_ffn_dim = 2048"),
        (OPUS_EN_DE | {"normalize_before": True}, "normalize_before = True"),
        (OPUS_EN_DE | {"normalize_embedding": True}, "normalize_embedding = True"),
        (OPUS_EN_DE | {"add_final_layer_norm": True}, "add_final_layer_norm = True"),
        (OPUS_EN_DE | {"static_position_embeddings": False}, "static_position_embeddings = False"),
        (OPUS_EN_DE | {"decoder_vocab_size": 7}, "vocab_size 58101 and decoder_vocab_size 7"),
        (OPUS_EN_DE | {"tie_word_embeddings": False}, "tie_word_embeddings = false"),
        (OPUS_EN_DE | {"activation_function": "mish"}, "'mish'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_value(theirs: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(theirs)


def test_umt5_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MT5_SMALL | {"model_type": "umt5"}))
    save_file({"shared.weight": torch.zeros(1, 1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="'umt5' is not a family"):
        pellucid.load(tmp_path)


def test_families_say_what_they_can() -> None:
    tiny = preset("tiny-t5")
    assert T5.express(tiny) is not None
    assert MT5.express(tiny) is None  # mT5 never scales its logits
    for head in (Unembed(tied=False), Unembed(), Unembed(tied=False, scale=32**-0.5)):
        config = tiny.model_copy(update={"head": head, "dropout": 0.1})
        written = T5.express(config)
        assert written is not None
        assert read(written).head == head
    assert T5.express(tiny.model_copy(update={"head": Unembed(scale=0.5)})) is None
    assert T5.express(preset("tiny-gpt2")) is None
    assert MARIAN.express(preset("tiny-original")) is None  # its sines and cosines take turns
    marian = read(OPUS_EN_DE)
    assert MARIAN.express(marian.model_copy(update={"context": None, "dropout": 0.1})) is not None
    assert MARIAN.express(marian.model_copy(update={"source_vocab": 99, "head": Unembed(tied=False, bias=True)}))


# --- layouts of files ---


def stored(case: Case, folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """The reference of a row of the parity table, saved, and its tensors."""
    network = case.build(torch.float32)
    case.save(network, folder)
    return network, load_file(folder / "model.safetensors")


def check_scores(case: Case, network: Any, folder: Path) -> None:
    model = pellucid.load(folder)
    inputs = case.inputs(64, None)
    wanted = case.reference(network, inputs)
    found = model.logits(inputs["ids"], inputs["target"])
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def rewrite(folder: Path, tensors: dict[str, torch.Tensor], **changes: Any) -> None:
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors")
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def test_t5_files_of_transformers_4_open(tmp_path: Path) -> None:
    """Every repeat written out, a bias that nothing reads, and no key for the scaling."""
    first, v1_1 = (case for case in table_t5.CASES if case.name in ("t5 1.0", "t5 1.1"))
    for case, tied in ((first, True), (v1_1, False)):
        folder = tmp_path / case.name
        network, tensors = stored(case, folder)
        tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.randn(8, 4)
        for stack in ("encoder", "decoder"):
            tensors[f"{stack}.embed_tokens.weight"] = tensors["shared.weight"]
        tensors.setdefault("lm_head.weight", tensors["shared.weight"])
        rewrite(folder, tensors, tie_word_embeddings=tied, scale_decoder_outputs=None)
        check_scores(case, network, folder)
        tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1
        rewrite(folder, tensors)
        with pytest.raises(CheckpointError, match=r"encoder\.embed_tokens\.weight"):
            pellucid.load(folder)


def test_either_name_of_a_shared_table_will_do(tmp_path: Path) -> None:
    network, tensors = stored(table_t5.CASES[0], tmp_path)
    tensors["decoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    rewrite(tmp_path, tensors)
    check_scores(table_t5.CASES[0], network, tmp_path)


@pytest.mark.parametrize("name", ["T5EncoderModel", "MT5EncoderModel"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_an_encoder_alone_pools_its_states(name: str, padding: str | None, tmp_path: Path) -> None:
    config = name.replace("EncoderModel", "Config")
    case = Case("encoder", name, config, table_t5.SIZE, "pool")
    network = case.build(torch.float64)
    case.save(network, tmp_path)
    inputs = case.inputs(64, padding)
    real = inputs.get("padding", torch.ones(3, case.length, dtype=torch.bool))
    with table_t5.unrounded(), torch.no_grad():
        states = network(input_ids=inputs["ids"], attention_mask=real.long()).last_hidden_state
    wanted = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    found = pellucid.load(tmp_path).logits(inputs["ids"], padding=real)
    assert (found - wanted).abs().max() <= 1e-9 * wanted.abs().max()


def test_marian_files_of_other_versions_open(tmp_path: Path) -> None:
    """With the fixed table of positions; without the bias, which is zero then; and the bare model."""
    case = table_marian.CASES[0]
    network, tensors = stored(case, tmp_path)
    for stack in ("encoder", "decoder"):
        tensors[f"model.{stack}.embed_positions.weight"] = network.model.encoder.embed_positions.weight
        tensors[f"model.{stack}.embed_tokens.weight"] = tensors["model.shared.weight"]
    tensors["lm_head.weight"] = tensors["model.shared.weight"]
    rewrite(tmp_path, tensors)
    check_scores(case, network, tmp_path)
    del tensors["final_logits_bias"]
    rewrite(tmp_path, tensors)
    network.final_logits_bias.zero_()
    check_scores(case, network, tmp_path)
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    rewrite(tmp_path, bare, architectures=["MarianModel"])
    check_scores(case, network, tmp_path)
