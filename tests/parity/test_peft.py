"""Adapters against PEFT, both ways: the same scores, and the same tensors after a round trip."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pellucid
from pellucid import lora
from pellucid.errors import CheckpointError
from pellucid.lora import Lora
from pellucid.pretrained.facade import Model

SIZES = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
HIDDEN = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64} | SIZES
# Their class, config and options; what PEFT adapts; what we adapt; and what both train whole.
FAMILIES: dict[str, tuple[str, str, dict[str, Any], list[str], tuple[str, ...], list[str], tuple[str, ...]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64} | SIZES,
        ["c_attn", "c_proj", "c_fc"],
        ("to_query", "to_value", "feed_forward.up"),
        [],
        (),
    ),
    "llama": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"num_key_value_heads": 2, "max_position_embeddings": 64} | HIDDEN,
        ["q_proj", "v_proj", "down_proj"],
        ("attention.*", "gate"),
        [],
        (),
    ),
    "bert": (
        "BertForSequenceClassification",
        "BertConfig",
        {"num_labels": 3, "max_position_embeddings": 64} | HIDDEN,
        ["query", "value", "dense"],
        ("to_query", "to_value"),
        ["classifier"],
        ("head.to_labels",),
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2, "decoder_start_token_id": 0} | SIZES,
        ["q", "v", "wo"],
        ("to_query", "cross.to_value", "encoder.0.feed_forward.up"),
        [],
        (),
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4} | SIZES,
        ["query_key_value", "dense"],
        ("to_key", "down"),
        [],
        (),
    ),
}
SCALES = {"plain": {"r": 4, "lora_alpha": 6}, "rank stabilised": {"r": 3, "lora_alpha": 5, "use_rslora": True}}
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
# transformers itself rounds to float32 within its norms and softmax in the other families, whatever the dtype.
EXACT = ("gpt2", "bert")
CASES = [(name, torch.float32) for name in FAMILIES] + [(name, torch.float64) for name in EXACT]

every_family = pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
every_scale = pytest.mark.parametrize("scale", SCALES)

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import transformers

    folders = {}
    for name, (model, config, options, *_) in FAMILIES.items():
        torch.manual_seed(0)
        network = getattr(transformers, model)(getattr(transformers, config)(**options))
        with torch.no_grad():
            for each in network.parameters():
                each.normal_(0, 0.1) if each.dim() > 1 else each.add_(torch.randn_like(each) * 0.05)
        network.tie_weights()
        folders[name] = tmp_path_factory.mktemp(name)
        network.save_pretrained(folders[name])
    return folders


def reference(name: str, folder: Path, dtype: torch.dtype) -> Any:
    import transformers

    return getattr(transformers, FAMILIES[name][0]).from_pretrained(folder, dtype=dtype, attn_implementation="eager")


def fill(parameters: Any) -> None:
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for each in parameters:
            if each.requires_grad:
                each.copy_(torch.randn(each.shape, generator=draw) * 0.1)


IDS = torch.randint(5, 96, (2, 9), generator=torch.Generator().manual_seed(1))


def compared(theirs: Any, model: Model) -> float:
    """The largest difference of scores, relative to the largest score."""
    both = model.config.is_encoder_decoder
    options = {"decoder_input_ids": IDS[:, :5]} if both else {}
    with torch.no_grad():
        wanted: Tensor = theirs.eval()(input_ids=IDS, **options).logits
    found = model.logits(IDS, IDS[:, :5]) if both else model.logits(IDS)
    return float((found - wanted).abs().max() / wanted.abs().max())


@every_scale
@every_family
def test_we_read_what_peft_writes(
    name: str, scale: str, dtype: torch.dtype, bases: dict[str, Path], tmp_path: Path
) -> None:
    import peft

    config = peft.LoraConfig(
        **SCALES[scale], target_modules=FAMILIES[name][3], modules_to_save=FAMILIES[name][5] or None
    )
    theirs = peft.get_peft_model(reference(name, bases[name], dtype), config, autocast_adapter_dtype=False)
    fill(theirs.parameters())
    theirs.save_pretrained(tmp_path / "peft")
    model, alone = (pellucid.load(bases[name], dtype=dtype) for _ in range(2))
    lora.load(model, tmp_path / "peft")
    assert compared(theirs, model) <= TOLERANCE[dtype]
    assert compared(theirs, alone) > 1e-2
    lora.export(model, tmp_path / "again")
    before, after = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("peft", "again"))
    assert set(before) == set(after)
    assert all(torch.equal(before[key], after[key]) for key in before)


@every_scale
@every_family
def test_peft_reads_what_we_write(
    name: str, scale: str, dtype: torch.dtype, bases: dict[str, Path], tmp_path: Path
) -> None:
    import peft

    values = SCALES[scale]
    config = Lora(
        rank=values["r"],
        alpha=values["lora_alpha"],
        rank_stabilized=values.get("use_rslora", False),
        targets=FAMILIES[name][4],
        whole=FAMILIES[name][6],
        ranks={"0.attention.to_query": 2},
        alphas={"*.1.*": 9},
    )
    model = pellucid.load(bases[name], dtype=dtype)
    lora.add(model, config, seed=0)
    fill(model.network.parameters())
    lora.export(model, tmp_path / "ours")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = peft.PeftModel.from_pretrained(
            reference(name, bases[name], dtype), tmp_path / "ours", autocast_adapter_dtype=False
        )
    assert compared(theirs, model) <= TOLERANCE[dtype]
    assert compared(theirs, pellucid.load(bases[name], dtype=dtype)) > 1e-2


@pytest.fixture
def written(bases: dict[str, Path], tmp_path: Path) -> Path:
    model = pellucid.load(bases["gpt2"])
    lora.add(model, Lora(rank=2), seed=0)
    return lora.export(model, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights = 'pissa'"),
        ({"bias": "all"}, "bias = 'all'"),
        ({"r": 0}, "r = 0"),
        ({"lora_alpha": "x"}, "lora_alpha = 'x'"),
    ],
)
def test_what_computes_something_else_is_refused(
    change: dict[str, Any], message: str, written: Path, bases: dict[str, Path]
) -> None:
    file = written / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        lora.load(pellucid.load(bases["gpt2"]), written)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "transformer.h.0.attn.c_attn.lora_A",
            "transformer.h.7.attn.c_attn.lora_A",
            r"h\.7\.attn\.c_attn.*no linear map",
        ),
        (
            "transformer.h.0.attn.c_attn.lora_A.weight",
            "transformer.wte.lora_embedding_A",
            "wte, which is no linear map",
        ),
        (
            "transformer.h.0.attn.c_attn.lora_A.weight",
            "transformer.x.weight",
            r"transformer\.x\.weight, which is no part",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    old: str, new: str, message: str, written: Path, bases: dict[str, Path]
) -> None:
    file = written / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors = {key.replace(old, new): each for key, each in tensors.items() if old.split(".lora")[0] in key}
    if "wte" not in new and ".x." not in new:
        tensors = {key.replace("h.0.", "h.7."): each for key, each in tensors.items()}
    elif ".x." in new:
        tensors = {key: each for key, each in tensors.items() if ".x." in key}
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=message):
        lora.load(pellucid.load(bases["gpt2"]), written)


def test_a_pickled_adapter_is_read_by_import_alone(written: Path, bases: dict[str, Path], tmp_path: Path) -> None:
    torch.save(load_file(written / "adapter_model.safetensors"), written / "adapter_model.bin")
    (written / "adapter_model.safetensors").unlink()
    model = pellucid.load(bases["gpt2"])
    with pytest.raises(CheckpointError, match="pellucid import"):
        lora.load(model, written)
    assert lora.load(model, lora.convert(model, written, tmp_path / "own")).config.targets == (
        "decoder.*.attention.to_query+to_key+to_value",
    )


def test_a_tied_table_and_an_architecture_of_no_family_are_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    from pellucid.model.config import Linear
    from pellucid.model.presets import preset
    from pellucid.model.transformer import Transformer

    model = pellucid.load(bases["gpt2"])
    lora.add(model, Lora(whole=("tokens",)), seed=0)
    with pytest.raises(CheckpointError, match=r"transformer\.wte\.weight was trained whole"):
        lora.export(model, tmp_path / "x")
    config = preset("tiny-gpt2").model_copy(update={"attention": Linear()})
    own = Model(config, Transformer(config, seed=0))
    lora.add(own, seed=0)
    with pytest.raises(CheckpointError, match=r"lora\.save"):
        lora.export(own, tmp_path / "x")
