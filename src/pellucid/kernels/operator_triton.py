"""The attention operator as Triton kernels: tiles of A live in registers, and go through the tensor cores at once.

bfloat16 and float16 queries multiply as they are, with float32 sums; float32 queries multiply in three tf32 passes.
Rows of a kernel's output are queries for A x and keys for A' y; the inner loop runs over the other side, in three
parts: tiles that a mask cuts, tiles that all rows see whole, tiles that a mask cuts. Tiles that no row sees are never
made.
Scores are kept in base two, because the hardware's exponential is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pellucid.errors import KernelError
from pellucid.kernels.operator import AttentionOperator, KeyBlock, QueryBlock, RowMoments
from pellucid.kernels.view import View

LOG2E = math.log2(math.e)
ROW_TILE = 128  # queries and keys are padded to a multiple of it
INTERPRETED = triton.knobs.runtime.interpret


class TritonOperator(AttentionOperator):
    """On a GPU; with TRITON_INTERPRET=1 anywhere, slowly."""

    @property
    def rounding(self) -> float:
        return 1e-5 if self.query.dtype == torch.float32 else 5e-3

    def _measure_rows(self) -> RowMoments:
        if self.query.dtype not in (torch.float32, torch.bfloat16, torch.float16) or self.key.dtype != self.query.dtype:
            raise KernelError(
                f"the Triton kernels take queries and keys of one type, bfloat16, float16 or float32, not "
                f"{self.query.dtype} and {self.key.dtype}: use the tiled operator"
            )
        self._padded = _Padded(self.query, self.key, self.view)
        texts, heads, queries = self.query.shape[:3]
        moments = torch.empty(4, texts * heads, self._padded.queries, device=self.query.device)
        rows, columns, warps, stages = _row_tiles(self._precise)
        _moments_kernel[(self._padded.queries // rows, texts * heads)](
            *self._padded.operands,
            moments,
            moments.stride(0),
            scale=self.scale * LOG2E,
            ROWS=rows,
            COLUMNS=columns,
            **self._padded.sizes,
            **self._padded.switches,
            PRECISE=self._precise,
            INTERPRETED=INTERPRETED,
            num_warps=warps,
            num_stages=stages,
        )
        self._lse = moments[0]  # +inf for a blind row, whose weights are then zero
        lse, *others = moments.reshape(4, texts, heads, -1)[..., :queries]
        return RowMoments(torch.where(lse == torch.inf, -lse, lse) / LOG2E, *others)

    def apply(self, x: KeyBlock) -> QueryBlock:
        return self._multiply(x, transposed=False)

    def apply_transposed(self, y: QueryBlock) -> KeyBlock:
        return self._multiply(y, transposed=True)

    @property
    def _precise(self) -> bool:
        return self.query.dtype == torch.float32

    def _multiply(self, x: Tensor, *, transposed: bool) -> Tensor:
        padded, (texts, heads) = self._padded, self.query.shape[:2]
        inner, outer = (padded.queries, padded.keys) if transposed else (padded.keys, padded.queries)
        real = self.view.keys if transposed else self.view.queries
        rows, columns, chunk, warps, stages = _product_tiles(x.shape[-1], self._precise)
        given, wide = x.shape[-1], triton.cdiv(x.shape[-1], chunk) * chunk
        x = _pad(x.to(self.query.dtype).flatten(0, 1), inner, wide)
        product = torch.empty(texts * heads, outer, wide, device=x.device)
        _product_kernel[(wide // chunk, outer // rows, texts * heads)](
            *padded.operands,
            self._lse,
            x,
            product,
            wide,
            scale=self.scale * LOG2E,
            ROWS=rows,
            COLUMNS=columns,
            CHUNK=chunk,
            TRANSPOSED=transposed,
            **padded.sizes,
            **padded.switches,
            PRECISE=self._precise,
            INTERPRETED=INTERPRETED,
            num_warps=warps,
            num_stages=stages,
        )
        return product.reshape(texts, heads, outer, wide)[:, :, :real, :given]


class _Padded:
    """Queries and keys as the kernels read them: contiguous, lengths and width padded with zeros."""

    def __init__(self, query: Tensor, key: Tensor, view: View) -> None:
        self.width = max(triton.next_power_of_2(query.shape[-1]), 16)
        self.queries, self.keys = (triton.cdiv(n, ROW_TILE) * ROW_TILE for n in (view.queries, view.keys))
        q, k = (_pad(x.flatten(0, 1), n, self.width) for x, n in ((query, self.queries), (key, self.keys)))
        mask, nothing = view.mask, torch.empty(1, dtype=torch.int32, device=q.device)
        prefix = torch.as_tensor(0 if mask.prefix is None else mask.prefix, dtype=torch.int32, device=q.device)
        padding = nothing if mask.padding is None else mask.padding.to(torch.int8).contiguous()
        bias = nothing if view.bias is None else (view.bias.float() * LOG2E).contiguous()
        self.operands = (q, k, bias, prefix.expand(query.shape[0]).contiguous(), padding)
        self.sizes: dict[str, Any] = {
            "queries": view.queries,
            "keys": view.keys,
            "padded_queries": self.queries,
            "padded_keys": self.keys,
            "offset": view.offset,
            "window": mask.window or 0,
            "heads": query.shape[1],
            "share": query.shape[1] // key.shape[1],
        }
        self.switches: dict[str, Any] = {
            "WIDTH": self.width,
            "HAS_BIAS": view.bias is not None,
            "HAS_PREFIX": mask.prefix is not None,
            "HAS_WINDOW": mask.window is not None,
            "HAS_PADDING": mask.padding is not None,
        }


def _pad(x: Tensor, length: int, width: int) -> Tensor:
    if x.shape[1:] == (length, width):
        return x.contiguous()
    padded = x.new_zeros(x.shape[0], length, width)
    padded[:, : x.shape[1], : x.shape[2]] = x
    return padded


def _row_tiles(precise: bool) -> tuple[int, int, int, int]:
    """Rows, columns, warps and stages of the pass over the scores."""
    return (64, 64, 4, 2) if precise else (128, 64, 8, 3)


def _product_tiles(columns: int, precise: bool) -> tuple[int, int, int, int, int]:
    """Rows, columns, chunk of the right-hand side, warps and stages of a product: the fastest of those measured."""
    chunk = min(max(triton.next_power_of_2(columns), 16), 32 if precise else 256)
    if precise:
        return 64, 32, chunk, 4, 2
    return {256: (128, 64, 256, 8, 4), 128: (128, 32, 128, 8, 3)}.get(chunk, (128, 64, chunk, 4, 3))


@triton.jit
def _dot(a, b, sum, PRECISE: tl.constexpr, INTERPRETED: tl.constexpr):
    if INTERPRETED:  # its own product reads the bits of bfloat16 as integers
        return tl.dot(a.to(tl.float32), b.to(tl.float32), sum)
    if PRECISE:
        return tl.dot(a, b, sum, input_precision="tf32x3")
    return tl.dot(a, b, sum)


@triton.jit
def _sees(
    query,
    key,
    queries,
    keys,
    offset,
    window,
    prefix,
    padding,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_PADDING: tl.constexpr,
):
    """Whether each query sees each key; one of the two is a column, the other a row."""
    slot = query + offset
    seen = (key < keys) & (query < queries)
    if HAS_PREFIX:
        seen &= (key <= slot) | (key < prefix)
    if HAS_WINDOW:
        seen &= (slot - key < window) & (key - slot < window)
    if HAS_PADDING:
        seen &= tl.load(padding + key, mask=key < keys, other=0) != 0
    return seen


@triton.jit
def _sight_of_rows(first, last, keys, window, prefix, HAS_PREFIX: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """For query slots first..last: where the keys that any of them sees start and stop, and those that all see."""
    start, stop, clear_start, clear_stop = 0, keys, 0, keys
    if HAS_PREFIX:
        stop = tl.minimum(stop, tl.maximum(last + 1, prefix))
        clear_stop = tl.minimum(clear_stop, tl.maximum(first + 1, prefix))
    if HAS_WINDOW:
        start = tl.maximum(start, first - window + 1)
        stop = tl.minimum(stop, last + window)
        clear_start = tl.maximum(clear_start, last - window + 1)
        clear_stop = tl.minimum(clear_stop, first + window)
    return start, clear_start, clear_stop, stop


@triton.jit
def _sight_of_keys(first, last, queries, offset, window, prefix, HAS_PREFIX: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """For keys first..last: where the rows that see any of them start and stop, and those that see all of them."""
    start, stop, clear_start, clear_stop = 0, queries, 0, queries
    if HAS_PREFIX:
        start = tl.where(first < prefix, start, tl.maximum(start, first - offset))
        clear_start = tl.where(last < prefix, clear_start, tl.maximum(clear_start, last - offset))
    if HAS_WINDOW:
        start = tl.maximum(start, first - window + 1 - offset)
        stop = tl.minimum(stop, last + window - offset)
        clear_start = tl.maximum(clear_start, last - window + 1 - offset)
        clear_stop = tl.minimum(clear_stop, first + window - offset)
    return start, clear_start, clear_stop, stop


@triton.jit
def _part(part: tl.constexpr, start, clear_start, clear_stop, stop, COLUMNS: tl.constexpr, HAS_PADDING: tl.constexpr):
    """The bounds of one of three runs of tiles: those before the clear ones (0), the clear ones (1), those after (2).

    With padding, no tile is known to be clear.
    """
    start = start // COLUMNS * COLUMNS
    stop = tl.maximum(stop, start)
    clear_start = tl.minimum(tl.maximum(tl.cdiv(clear_start, COLUMNS) * COLUMNS, start), stop)
    if HAS_PADDING:
        clear_stop = clear_start
    clear_stop = tl.maximum(tl.minimum(clear_stop, stop) // COLUMNS * COLUMNS, clear_start)
    if part == 0:
        return start, clear_start
    if part == 1:
        return clear_start, clear_stop
    return clear_stop, stop


@triton.jit
def _scores(
    own,
    other,
    query,
    key,
    queries,
    keys,
    bias,
    scale,
    HAS_BIAS: tl.constexpr,
    PRECISE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """A tile of scores in base two: own rows against the other side's rows."""
    scores = _dot(own, other, tl.zeros((ROWS, COLUMNS), tl.float32), PRECISE, INTERPRETED) * scale
    if HAS_BIAS:
        scores += tl.load(bias + tl.minimum(tl.maximum(key - query + queries - 1, 0), queries + keys - 2))
    return scores


@triton.jit
def _moments_kernel(
    q,
    k,
    bias,
    prefixes,
    padding,
    out,
    out_stride,
    queries,
    keys,
    padded_queries,
    padded_keys,
    offset,
    window,
    heads,
    share,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    PRECISE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Log-sum-exp (base two), energy, entropy and mean distance of a tile of rows, in one pass over their keys."""
    tile, head = tl.program_id(0), tl.program_id(1)
    if HAS_PREFIX:  # later rows see more keys: they start first
        tile = tl.num_programs(0) - 1 - tile
    text = head // heads
    row, width = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    own = tl.load(q + (head.to(tl.int64) * padded_queries + row)[:, None] * WIDTH + width[None, :])
    k += (head // share).to(tl.int64) * padded_keys * WIDTH
    bias += (head % heads).to(tl.int64) * (queries + keys - 1)
    padding += text.to(tl.int64) * keys
    prefix = tl.load(prefixes + text)
    last = tl.minimum(tile * ROWS + ROWS, queries) - 1 + offset
    start, clear_start, clear_stop, stop = _sight_of_rows(
        tile * ROWS + offset, last, keys, window, prefix, HAS_PREFIX, HAS_WINDOW
    )
    largest = tl.full((ROWS,), -1e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    below_sum = tl.zeros((ROWS,), tl.float32)
    away_sum = tl.zeros((ROWS,), tl.float32)
    for part in tl.static_range(3):
        lower, upper = _part(part, start, clear_start, clear_stop, stop, COLUMNS, HAS_PADDING)
        for column in range(lower, upper, COLUMNS):
            key = column + tl.arange(0, COLUMNS)
            other = tl.load(k + key[None, :].to(tl.int64) * WIDTH + width[:, None])
            scores = _scores(
                own,
                other,
                row[:, None],
                key[None, :],
                queries,
                keys,
                bias,
                scale,
                HAS_BIAS,
                PRECISE,
                INTERPRETED,
                ROWS,
                COLUMNS,
            )
            if part != 1:
                seen = _sees(
                    row[:, None],
                    key[None, :],
                    queries,
                    keys,
                    offset,
                    window,
                    prefix,
                    padding,
                    HAS_PREFIX,
                    HAS_WINDOW,
                    HAS_PADDING,
                )
                scores = tl.where(seen, scores, -1e30)
            now = tl.maximum(largest, tl.max(scores, 1))
            fade = tl.exp2(largest - now)
            below = scores - now[:, None]
            powers = tl.exp2(below)
            if part != 1:
                powers = tl.where(seen, powers, 0.0)
            away = tl.abs((row[:, None] + offset - key[None, :]).to(tl.float32))
            below_sum = fade * (below_sum + (largest - now) * total) + tl.sum(powers * below, 1)
            total = fade * total + tl.sum(powers, 1)
            squares = fade * fade * squares + tl.sum(powers * powers, 1)
            away_sum = fade * away_sum + tl.sum(powers * away, 1)
            largest = now
    blind = total == 0
    total = tl.where(blind, 1.0, total)
    out += head.to(tl.int64) * padded_queries + row
    tl.store(out, tl.where(blind, float("inf"), largest + tl.log2(total)))
    tl.store(out + out_stride, squares / (total * total))
    tl.store(out + 2 * out_stride, (tl.log2(total) - below_sum / total) * 0.6931471805599453)
    tl.store(out + 3 * out_stride, away_sum / total)


@triton.jit
def _product_kernel(
    q,
    k,
    bias,
    prefixes,
    padding,
    lse,
    x,
    out,
    wide,
    queries,
    keys,
    padded_queries,
    padded_keys,
    offset,
    window,
    heads,
    share,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHUNK: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_PREFIX: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    PRECISE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """A tile of rows and a chunk of columns of A x, or of A' x. Rows are the output's, `inner` the other side's."""
    chunk, tile, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if HAS_PREFIX and not TRANSPOSED:  # later rows see more keys: they start first
        tile = tl.num_programs(1) - 1 - tile
    text = head // heads
    row, width, columns = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, CHUNK)
    q += head.to(tl.int64) * padded_queries * WIDTH
    k += (head // share).to(tl.int64) * padded_keys * WIDTH
    lse += head.to(tl.int64) * padded_queries
    bias += (head % heads).to(tl.int64) * (queries + keys - 1)
    padding += text.to(tl.int64) * keys
    prefix = tl.load(prefixes + text)
    if TRANSPOSED:
        last = tl.minimum(tile * ROWS + ROWS, keys) - 1
        start, clear_start, clear_stop, stop = _sight_of_keys(
            tile * ROWS, last, queries, offset, window, prefix, HAS_PREFIX, HAS_WINDOW
        )
        own = tl.load(k + row[:, None].to(tl.int64) * WIDTH + width[None, :])
        x += head.to(tl.int64) * padded_queries * wide
        out += head.to(tl.int64) * padded_keys * wide
    else:
        last = tl.minimum(tile * ROWS + ROWS, queries) - 1 + offset
        start, clear_start, clear_stop, stop = _sight_of_rows(
            tile * ROWS + offset, last, keys, window, prefix, HAS_PREFIX, HAS_WINDOW
        )
        own = tl.load(q + row[:, None].to(tl.int64) * WIDTH + width[None, :])
        own_lse = tl.load(lse + row)
        x += head.to(tl.int64) * padded_keys * wide
        out += head.to(tl.int64) * padded_queries * wide
    x += chunk * CHUNK
    sum = tl.zeros((ROWS, CHUNK), tl.float32)
    for part in tl.static_range(3):
        lower, upper = _part(part, start, clear_start, clear_stop, stop, COLUMNS, HAS_PADDING)
        for column in range(lower, upper, COLUMNS):
            inner = column + tl.arange(0, COLUMNS)
            if TRANSPOSED:
                query, key = inner[None, :], row[:, None]
                other = tl.load(q + inner[None, :].to(tl.int64) * WIDTH + width[:, None])
                shift = tl.load(lse + inner)[None, :]
            else:
                query, key = row[:, None], inner[None, :]
                other = tl.load(k + inner[None, :].to(tl.int64) * WIDTH + width[:, None])
                shift = own_lse[:, None]
            scores = _scores(
                own, other, query, key, queries, keys, bias, scale, HAS_BIAS, PRECISE, INTERPRETED, ROWS, COLUMNS
            )
            weights = tl.exp2(scores - shift)
            if part != 1:
                seen = _sees(
                    query, key, queries, keys, offset, window, prefix, padding, HAS_PREFIX, HAS_WINDOW, HAS_PADDING
                )
                weights = tl.where(seen, weights, 0.0)
            values = tl.load(x + inner[:, None].to(tl.int64) * wide + columns[None, :])
            sum = _dot(weights if PRECISE else weights.to(values.dtype), values, sum, PRECISE, INTERPRETED)
    tl.store(out + row[:, None].to(tl.int64) * wide + chunk * CHUNK + columns[None, :], sum)
