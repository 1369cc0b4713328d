"""Token by token what transformers writes: greedy and with beams, for each family.

Two of its defaults are set aside: Marian's forced end at the last token, and the padding token of an encoder-decoder,
which only released Marian configs forbid; we never write it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.generation.decode import generate
from pellucid.generation.request import Beams
from tests.parity import table_bloom, table_gpt2, table_llama, table_marian, table_t5

CASES = [table.CASES[0] for table in (table_gpt2, table_llama, table_bloom, table_t5, table_marian)]
PROMPTS = [[5, 9, 12, 33], [7, 7, 20, 41], [50, 3, 2, 1]]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    case = request.param
    reference = case.build(torch.float32)
    reference.generation_config.forced_eos_token_id = None
    folder: Path = case.save(reference, tmp_path_factory.mktemp("checkpoint"))
    return reference, pellucid.load(folder)


@pytest.mark.parametrize("penalty", [1.0, 0.5])
@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_are_the_same(pair: tuple[Any, Any], beams: int, penalty: float):
    reference, model = pair
    padding = reference.config.pad_token_id
    banned = {"bad_words_ids": [[padding]]} if model.config.is_encoder_decoder else {}
    wanted = reference.generate(
        torch.tensor(PROMPTS),
        attention_mask=torch.ones(3, 4, dtype=torch.long),
        max_new_tokens=14,
        num_beams=beams,
        length_penalty=penalty,
        do_sample=False,
        pad_token_id=63 if padding is None else padding,
        **banned,
    )
    found = generate(model, PROMPTS, max_tokens=14, beams=Beams(beams, penalty))
    for ours, theirs in zip(found, wanted.tolist(), strict=True):
        assert list(ours.ids) == theirs[: len(ours.ids)]


def test_the_penalty_on_repetition_is_the_same(pair: tuple[Any, Any]):
    reference, model = pair
    if model.config.is_encoder_decoder:
        pytest.skip("transformers counts the tokens of the source too")
    wanted = reference.generate(
        torch.tensor(PROMPTS),
        attention_mask=torch.ones(3, 4, dtype=torch.long),
        max_new_tokens=10,
        repetition_penalty=1.5,
        do_sample=False,
        pad_token_id=63,
    )
    found = generate(model, PROMPTS, max_tokens=10, filters=pellucid_filters(1.5))
    for ours, theirs in zip(found, wanted.tolist(), strict=True):
        assert list(ours.ids) == theirs[: len(ours.ids)]


def pellucid_filters(penalty: float) -> Any:
    from pellucid.generation.sampling import Filters

    return Filters(repetition_penalty=penalty)
