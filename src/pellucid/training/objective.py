"""What is minimised: sums of cross-entropies over tokens. The logits of a whole batch never exist at once."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from pellucid.kernels.entropy import losses, losses_and_slopes, losses_over_slopes, slopes
from pellucid.model.heads import UnembedHead
from pellucid.model.transformer import Transformer
from pellucid.training.batches import Batch
from pellucid.training.data import IGNORED

CHUNK_NUMBERS = 2**19  # logits at a time on a CPU, unless told: they stay in its cache
GPU_SHARE = 64  # on a GPU, the logits of a chunk may take this part of its memory
Features = Float[Tensor, "row width"]
Matrix = Float[Tensor, "vocab width"]
Answers = Int[Tensor, " row"]
Sum = Float[Tensor, ""]


def plain_cross_entropy(
    rows: Features, matrix: Matrix, bias: Float[Tensor, " vocab"] | None, answers: Answers, smoothing: float
) -> Sum:
    """The readable twin: all logits at once. The sum over the rows that have an answer."""
    logits = functional.linear(rows, matrix, bias).float()
    return functional.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)


def chunked_cross_entropy(
    rows: Features,
    matrix: Matrix,
    bias: Float[Tensor, " vocab"] | None,
    answers: Answers,
    smoothing: float = 0.0,
    chunk: int = 0,
) -> Sum:
    """The same sum and the same gradients, at most `chunk` rows at a time."""
    most = chunk or rows_at_once(matrix.shape[0], matrix.device)
    count = max(-(-rows.shape[0] // most), 1)
    chunk = max(-(-rows.shape[0] // count), 1)  # chunks of the same size: their products are equally fast
    apply: Any = _Chunked.apply  # untyped in torch
    found: Sum = apply(rows, matrix, bias, answers, smoothing, chunk)
    return found


def rows_at_once(vocab: int, device: torch.device) -> int:
    numbers = CHUNK_NUMBERS
    if device.type == "cuda":
        numbers = torch.cuda.get_device_properties(device).total_memory // 4 // GPU_SHARE
    rows = max(numbers // vocab, 128)
    return 2 ** (rows.bit_length() - 1)  # a power of two, as batches are: products of odd sizes are slower


class _Chunked(torch.autograd.Function):
    """Gradients are formed beside the logits of a chunk, so these are computed once and thrown away."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        matrix: Tensor,
        bias: Tensor | None,
        answers: Tensor,
        smoothing: float,
        chunk: int,
    ) -> Tensor:
        of_rows, of_matrix, of_bias = ctx.needs_input_grad[:3]
        working = _working_dtype(rows)
        table = matrix.to(working)
        total = torch.zeros((), dtype=_exact(rows), device=rows.device)
        to_rows = torch.empty_like(rows) if of_rows else None
        to_matrix = torch.zeros_like(matrix) if of_matrix else None
        to_bias = torch.zeros_like(bias) if bias is not None and of_bias else None
        for first in range(0, rows.shape[0], chunk):
            part = slice(first, first + chunk)
            x, answer = rows[part].to(working), answers[part]
            if to_rows is None and to_matrix is None and to_bias is None:
                total = total + losses(_logits(x, table, bias), answer, smoothing).sum()
                continue
            loss, slope = _losses_and_slopes(x, table, bias, answer, smoothing)
            total = total + loss.sum()
            if to_bias is not None:
                to_bias += slope.sum(0).to(to_bias.dtype)
            slope = slope.to(working)
            if to_rows is not None:
                to_rows[part] = (slope @ table).to(rows.dtype)
            if to_matrix is not None:
                to_matrix += slope.T @ x
        ctx.save_for_backward(to_rows, to_matrix, to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        scaled = [None if each is None else (each * slope).to(each.dtype) for each in ctx.saved_tensors]
        return *scaled, None, None, None


@torch.no_grad()
def likeliest(
    rows: Features, matrix: Matrix, bias: Float[Tensor, " vocab"] | None, answers: Answers, chunk: int
) -> Answers:
    """The entry with the highest score for every row that has an answer, `chunk` of them at a time."""
    working = _working_dtype(rows)
    table, found = matrix.to(working), torch.full_like(answers, IGNORED)
    for part in torch.split((answers != IGNORED).nonzero().flatten(), chunk):
        found[part] = _logits(rows[part].to(working), table, bias).argmax(-1)
    return found


def _working_dtype(rows: Tensor) -> torch.dtype:
    kind = rows.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else rows.dtype


def _exact(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


def _logits(x: Tensor, table: Tensor, bias: Tensor | None) -> Tensor:
    logits = (x @ table.T).to(_exact(x))
    return logits if bias is None else logits + bias


def _losses_and_slopes(
    x: Tensor, table: Tensor, bias: Tensor | None, answers: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    if x.device.type == "cuda" and bias is None and x.dtype != torch.float64:
        logits = x @ table.T
        return losses_over_slopes(logits, answers, smoothing), logits
    logits = _logits(x, table, bias)
    if x.device.type == "cpu":
        return losses_and_slopes(logits, answers, smoothing)
    return losses(logits, answers, smoothing), slopes(logits, answers, smoothing)


class Objective(nn.Module):
    """The network and the sum of its losses on a batch: what is wrapped for many processes, and compiled.

    guesses: evaluations want the likeliest token of each answer too.
    """

    def __init__(self, network: Transformer, smoothing: float = 0.0, chunk: int = 0, *, guesses: bool = False) -> None:
        super().__init__()
        self.network, self.smoothing, self.guesses = network, smoothing, guesses
        self.chunk = chunk or rows_at_once(network.config.vocab, network.tokens.weight.device)

    def forward(
        self,
        ids: Int[Tensor, "batch token"],
        answers: Int[Tensor, "batch answer"],
        target: Int[Tensor, "batch target"] | None = None,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> tuple[Sum, Int[Tensor, "batch *answer"] | None]:
        """The sum of the losses, and the likeliest label (or token, if these are wanted) of each answer."""
        network, smoothing = self.network, self.smoothing if self.training else 0.0
        states = network.states(ids, target, padding=padding, documents=documents)
        head = network.head
        if isinstance(head, UnembedHead):
            rows, matrix = head.rows(states).flatten(0, 1), head.matrix(network.tokens.weight)
            loss = chunked_cross_entropy(rows, matrix, head.bias, answers.flatten(), smoothing, self.chunk)
            if self.training or not self.guesses:
                return loss, None
            return loss, likeliest(rows, matrix, head.bias, answers.flatten(), self.chunk).view_as(answers)
        scores = head(states, network.tokens.weight, padding)
        scores = scores.to(_exact(scores)).flatten(0, -2)
        return losses(scores, answers.flatten(), smoothing).sum(), scores.argmax(-1).view_as(answers)


def arguments(batch: Batch) -> dict[str, Tensor]:
    """What an objective takes of a batch."""
    parts = {
        "ids": batch.ids,
        "answers": batch.answers,
        "target": batch.target,
        "padding": batch.padding,
        "documents": batch.documents,
    }
    return {name: part for name, part in parts.items() if part is not None}
