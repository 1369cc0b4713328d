"""Every family and option against transformers: one row of the table is one set of tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pellucid
from pellucid.pretrained.facade import Model
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.save import export
from tests.parity import table_bert, table_bloom, table_gpt2, table_llama, table_marian, table_t5
from tests.parity.case import Case

CASES: list[Case] = [
    *table_bert.CASES,
    *table_bloom.CASES,
    *table_gpt2.CASES,
    *table_llama.CASES,
    *table_marian.CASES,
    *table_t5.CASES,
]

# Relative to the largest score. float64: rounding of a few thousand operations. float32: the same, 2^29 times coarser.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}

# A row declares the sides on which the reference can be padded without changing its own positions.
PADDED = [(case, side) for case in CASES for side in (None, *case.paddings)]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference and our model of a case, in a dtype; built once."""
    built: dict[tuple[str, torch.dtype], tuple[Any, Model, Path]] = {}

    def open_case(case: Case, dtype: torch.dtype) -> tuple[Any, Model, Path]:
        if (case.name, dtype) not in built:
            network = case.build(dtype)
            folder = case.save(network, tmp_path_factory.mktemp("checkpoint"))
            if case.edit_config is not None:
                edit_json(folder / "config.json", case.edit_config)
            built[case.name, dtype] = (network, pellucid.load(folder), folder)
        return built[case.name, dtype]

    return open_case


def edit_json(path: Path, edit: Any) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def compared(case: Case, network: Any, model: Model, padding: str | None) -> tuple[Tensor, Tensor]:
    """Our scores and the reference's, at real tokens."""
    inputs = case.inputs(model.config.vocab, padding)
    wanted = case.reference(network, inputs)
    found = model.logits(*(inputs[key] for key in ("ids", "target") if key in inputs), padding=inputs.get("padding"))
    assert found.shape == wanted.shape
    if padding and case.kind in ("decoder", "bare", "masked", "tag"):
        return found[inputs["padding"]], wanted[inputs["padding"]]
    return found, wanted


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("case", "padding"), [pytest.param(case, side, id=f"{case.name}, padding {side}") for case, side in PADDED]
)
def test_scores_equal_the_reference(opened: Any, case: Case, dtype: torch.dtype, padding: str | None) -> None:
    network, model, _ = opened(case, dtype)
    found, wanted = compared(case, network, model, padding)
    assert (found - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()


@pytest.mark.parametrize("case", [case for case in CASES if case.generates and case.caches], ids=lambda case: case.name)
def test_cached_scores_equal_the_reference(opened: Any, case: Case) -> None:
    network, model, _ = opened(case, torch.float64)
    inputs = case.inputs(model.config.vocab, None)
    wanted = case.reference(network, inputs)
    text = inputs.get("target", inputs["ids"])
    cache = model.network.new_cache(len(text), text.shape[1])
    with torch.no_grad():
        memory = model.network.encode(inputs["ids"]) if "target" in inputs else None
        parts = [model.network.decode(text[:, :4], memory, cache=cache)]
        parts += [model.network.decode(text[:, i : i + 1], cache=cache) for i in range(4, text.shape[1])]
    assert (torch.cat(parts, 1) - wanted).abs().max() <= TOLERANCE[torch.float64] * wanted.abs().max()


@every_case
def test_export_gives_the_same_tensors_to_the_bit(opened: Any, case: Case, tmp_path: Path) -> None:
    _, model, folder = opened(case, torch.float32)
    export(model, tmp_path / "out")
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    repeated = set(FAMILIES[model.origin.family].aliases(model.config))
    assert set(before) - repeated == set(after) - repeated
    assert all(torch.equal(before[name], after[name]) for name in set(before) & set(after))


@every_case
def test_the_reference_loads_what_we_write(opened: Any, case: Case, tmp_path: Path) -> None:
    import transformers

    network, model, _ = opened(case, torch.float64)
    fresh = Model(model.config, model.network, labels=model.labels)
    export(fresh, tmp_path / "out", family=model.origin.family)
    again = getattr(transformers, case.model).from_pretrained(
        tmp_path / "out", dtype=torch.float64, attn_implementation="eager"
    )
    again.config.pad_token_id = network.config.pad_token_id
    inputs = case.inputs(model.config.vocab, None)
    wanted, found = case.reference(network, inputs), case.reference(again.eval(), inputs)
    assert (found - wanted).abs().max() <= TOLERANCE[torch.float64] * wanted.abs().max()
