"""The chunked cross-entropy is the plain one, in value and gradient; its sum does not depend on how rows are dealt."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pellucid.training.batches import Source
from pellucid.training.config import RunConfig
from pellucid.training.data import IGNORED, prepare
from pellucid.training.distributed import World
from pellucid.training.loop import Loop
from pellucid.training.objective import chunked_cross_entropy, plain_cross_entropy
from pellucid.training.run import model_for
from tests.training.runs import run_of, stories, tagging_run, translation_run


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 30, 100])
def test_chunks_equal_the_whole(smoothing: float, biased: bool, chunk: int) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, matrix, bias = (torch.randn(shape, generator=draw).double() for shape in ((30, 8), (17, 8), (17,)))
    answers = torch.randint(0, 17, (30,), generator=draw)
    answers[3:9] = IGNORED
    inputs = [x.requires_grad_() for x in (rows, matrix, *([bias] if biased else []))]
    b = bias if biased else None
    ours = chunked_cross_entropy(rows, matrix, b, answers, smoothing, chunk)
    logits = functional.linear(rows, matrix, b)
    wanted = functional.cross_entropy(logits, answers, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        plain_cross_entropy(rows, matrix, b, answers, smoothing).double(), wanted, rtol=1e-5, atol=0
    )
    found, expected = (torch.autograd.grad(3 * loss, inputs) for loss in (ours, wanted))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_chunks_under_autocast_are_near_the_plain_form() -> None:
    draw = torch.Generator().manual_seed(0)
    rows, matrix = (torch.randn(shape, generator=draw).requires_grad_() for shape in ((64, 16), (50, 16)))
    answers = torch.randint(0, 50, (64,), generator=draw)
    gradients = []
    for function in (chunked_cross_entropy, plain_cross_entropy):
        with torch.autocast("cpu", torch.bfloat16):
            loss = function(rows, matrix, None, answers, 0.0)
        gradients.append((loss, *torch.autograd.grad(loss, (rows, matrix))))
    for ours, wanted in zip(*gradients, strict=True):
        # One product in bfloat16: 2^-8 of the largest.
        assert (ours - wanted).abs().max() < 2**-8 * wanted.abs().max() * 4


def test_nothing_to_learn_gives_zero() -> None:
    rows, matrix = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    loss = chunked_cross_entropy(rows, matrix, None, torch.full((4,), IGNORED))
    loss.backward()
    assert loss.item() == 0
    assert not rows.grad.any()
    assert not matrix.grad.any()


# --- splits ---


def gradients(run: RunConfig, folder: Path, size: int = 1) -> dict[str, Tensor]:
    """Of the first step, in float64. With size > 1, what that many processes would average."""
    prepared = prepare(run, folder / f"data-{run.task.kind}-{getattr(run.task, 'packing', '')}")
    found: dict[str, Tensor] = {}
    totals = []
    for rank in range(size):
        network = model_for(run, None, prepared, World(torch.device("cpu")))[0].network.double()
        loop = Loop(
            run,
            World(torch.device("cpu")),
            network,
            Source(prepared.train, run, prepared.words, training=True),
            None,
            folder,
        )
        loop.world = _Pretended(torch.device("cpu"), rank, size, totals)
        loop.optimizer.step = lambda: None  # type: ignore[method-assign]
        loop.optimizer.zero_grad = lambda set_to_none: None  # type: ignore[method-assign]
        works = loop._works()
        loop._learn(next(works))
        for name, parameter in network.named_parameters():
            found[name] = found.get(name, 0) + parameter.grad / size
    return found


class _Pretended(World):
    """One of several processes that are not there: the total is what all of them together would count."""

    def __init__(self, device: torch.device, rank: int, size: int, totals: list[float]) -> None:
        super().__init__(device, rank, size)
        object.__setattr__(self, "totals", totals)

    def total(self, count: int) -> int | Tensor:
        return torch.tensor(TOTAL[0], dtype=torch.float64) if self.size > 1 else count


TOTAL = [0.0]
MODEL = {"width": 16, "heads": 2, "decoder_blocks": 1, "feed_forward": {"kind": "plain", "hidden": 32}}


def whole_of(folder: Path, packing: str, **batch: int) -> RunConfig:
    """All documents in one batch."""
    file = stories(folder, count=12)
    size = {"tokens": 4096, "context": 128, **batch}
    task = {"kind": "language_model", "packing": packing}
    return run_of(folder, file, model=MODEL, task=task, batch=size, data={"holdout": 0}, optimizer={"clip": 0})


def close(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=1e-12, msg=name)


def test_gradients_do_not_depend_on_the_split_nor_on_the_packing(tmp_path: Path) -> None:
    wanted = gradients(whole_of(tmp_path, "padded"), tmp_path)
    assert max(float(each.abs().max()) for each in wanted.values()) > 1e-3
    for packing, micro in (("padded", 128), ("padded", 384), ("documents", 4096), ("documents", 256)):
        close(gradients(whole_of(tmp_path, packing, micro=micro), tmp_path), wanted)


def test_nor_on_the_number_of_processes(tmp_path: Path) -> None:
    run = whole_of(tmp_path, "documents")
    wanted = gradients(run, tmp_path)
    prepared = prepare(run, tmp_path / "data-language_model-documents")
    TOTAL[0] = float(sum(prepared.train.lengths["ids"] - 1))
    for size in (2, 3):
        close(gradients(run, tmp_path, size), wanted)


@pytest.mark.parametrize("make", [translation_run, tagging_run])
def test_nor_for_other_tasks(tmp_path: Path, make) -> None:
    changes = {"data": {"holdout": 0}, "optimizer": {"clip": 0}}
    if make is translation_run:
        changes["data"] = {"holdout": 0, "format": {"kind": "tsv"}}
    else:
        changes["data"] = {"holdout": 0, "format": {"kind": "conllu"}}
    sizes = {"tokens": 20_000, "context": 64}
    wanted = gradients(make(tmp_path, batch=sizes, **changes), tmp_path)
    close(gradients(make(tmp_path, batch={**sizes, "micro": 100, "multiple": 8}, **changes), tmp_path), wanted)


@pytest.mark.parametrize("position", ["rotary", "t5_buckets", "relative", "learned"])
def test_nor_on_whether_activations_are_computed_again_or_maps_joined(tmp_path: Path, position: str) -> None:
    found = []
    for compute in ({"join": False}, {"recompute": True}):
        run = whole_of(tmp_path, "documents")
        changed = {"model": {**MODEL, "position": {"kind": position}}, "compute": {"device": "cpu", **compute}}
        found.append(gradients(RunConfig(**{**run.model_dump(), **changed}), tmp_path))
    close(found[1], found[0])


# --- clipping ---


def test_a_long_gradient_is_cut_to_the_limit_and_a_short_one_left_alone(tmp_path: Path) -> None:
    def clipped(limit: float) -> dict[str, Tensor]:
        run = whole_of(tmp_path, "documents")
        return gradients(RunConfig(**{**run.model_dump(), "optimizer": {"clip": limit}}), tmp_path)

    whole = clipped(0)
    norm = float(torch.stack([each.norm() for each in whole.values()]).norm())
    for limit in (2 * norm, norm + 1e-5):
        assert all(torch.equal(each, whole[name]) for name, each in clipped(limit).items())
    for name, each in clipped(norm / 3).items():
        torch.testing.assert_close(each, whole[name] / 3, rtol=1e-4, atol=1e-12)
