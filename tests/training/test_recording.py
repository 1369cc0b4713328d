"""The film that a finished model carries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pellucid.errors import InputError
from pellucid.training.recording import LARGEST, RECORD, carry, read_recording
from tests.web.recorded import STEPS, trained


def head(block: int = 0, head: int = 0, **more: Any) -> dict[str, Any]:
    measured = {"stack": "decoder", "kind": "self", "entropy": 1.5, "sink": 0.25, "stable_rank": 2.0}
    return {"block": block, "head": head, **measured, "effective_rank": [3.0, 5.0], **more}


def write(folder: Path, *lines: Any) -> Path:
    (folder / RECORD).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_finished_model_carries_its_record_and_the_losses(tmp_path: Path) -> None:
    model = trained(tmp_path)
    run = model.parent
    kept = [json.loads(line) for line in (run / RECORD).read_text().splitlines()]
    log = {entry["step"]: entry["loss"] for entry in map(json.loads, (run / "log.jsonl").read_text().splitlines())}
    found = read_recording(model)
    assert found is not None
    assert list(found.steps) == STEPS
    assert found.losses == (None, *(log[step] for step in STEPS[1:]))
    assert found.places == (("decoder", 0, "self"), ("decoder", 1, "self"))
    for frame, line in enumerate(kept):
        for own in line["heads"]:
            assert found.values["entropy"][frame, own["block"], own["head"]] == own["entropy"]
            middle = sum(own["effective_rank"]) / 2
            assert found.values["effective_rank"][frame, own["block"], own["head"]] == middle


def test_a_run_without_a_record_leaves_none(tmp_path: Path) -> None:
    carry(tmp_path, tmp_path)
    assert read_recording(tmp_path) is None


def test_stacks_and_kinds_in_the_order_of_the_network(tmp_path: Path) -> None:
    heads = [head(1), head(0, kind="cross"), head(0), head(0, stack="encoder")]
    found = read_recording(write(tmp_path, {"step": 3, "heads": heads}))
    assert found is not None
    assert found.places == (
        ("encoder", 0, "self"),
        ("decoder", 0, "self"),
        ("decoder", 0, "cross"),
        ("decoder", 1, "self"),
    )


def test_a_head_that_looked_at_nothing_has_no_number(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "heads": [head(), head(head=1)]},
        {"step": 1, "heads": [head(entropy=float("nan")), {"block": 0, "head": 1, "problem": "looks at nothing"}]},
    ]
    found = read_recording(write(tmp_path, *lines))
    assert found is not None
    assert np.isnan(found.values["entropy"]).tolist() == [[[False, False]], [[True, True]]]
    assert np.isnan(found.values["sink"]).tolist() == [[[False, False]], [[False, True]]]


@pytest.mark.parametrize("line", ["{", "[]", '{"step": -1, "heads": []}', '{"step": 1, "heads": [{"block": "x"}]}'])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"step": 0, "heads": [head()]})
    with (tmp_path / RECORD).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match="line 2"):
        read_recording(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / RECORD).open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(InputError, match="larger than"):
        read_recording(tmp_path)
