# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Packed attention by a list of tiles: a program for each head and tile of queries.

A tile is a run of queries of one segment. The list is data, so a captured call serves any layout
with as many tiles: no longest segment is baked, and idle tiles end at once. The softmax is the
running one of flash attention (Dao et al., arXiv:2205.14135). ``SegmentAttention`` is the plain
reference. Shape letters: T tokens, H heads, D head size, N tiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from .kernels import TensorDescriptor, jit, launch, power_of_two, tl

TILE_FIELDS = 4
"""int32 values of a tile: first query row, first and last row of its segment (exclusive), unused:
16 bytes. Rows from the first on that are not before the last are none: an idle tile."""

_ALIGNED = 8
"""Elements of half precision in 16 bytes."""

_LOG2_E = math.log2(math.e)


class TileShape(NamedTuple):
    """How the work is cut.

    Attributes:
        queries: Rows of a tile.
        keys: Rows of keys and values at a time.
        num_warps: Of a program.
        num_stages: Depth of the pipeline.
        bulk_copies: Keys and values come by the tensor memory accelerator (Hopper on).
        bulk_queries: Queries too. One copy waits for the other, so ordinary loads are faster where
            there are few programs.
    """

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    bulk_copies: bool
    bulk_queries: bool = False


TINY, LOW, MIDDLE, TALL = (
    TileShape(64, 64, 4, 2, False),
    TileShape(64, 64, 4, 2, True, bulk_queries=True),
    TileShape(64, 128, 4, 2, True),
    TileShape(128, 64, 4, 3, True, bulk_queries=True),
)


def short_segment_len(head_size: int | None) -> int | None:
    """Tokens of a segment up to which low tiles win, None where they always do (H200).

    More low tiles than tall ones fit on a multiprocessor at once. Tall ones read keys and values
    less often, which counts where heads do not end with a sector of memory, and where they are
    large.

    Args:
        head_size: D; None if nobody knows.
    """
    if head_size is None or head_size >= 128:
        return 3072
    return 1536 if head_size % 16 else None


def tile_shape_for(num_tokens: int, longest_segment: int, head_size: int | None) -> TileShape:
    """The shape that was fastest on an H200.

    Args:
        num_tokens: Of the packed batch.
        longest_segment: Most tokens of a segment.
        head_size: D; None if nobody knows.
    """
    if num_tokens <= 64:
        return TINY
    if num_tokens <= (1024 if head_size is not None and 64 < head_size < 128 else 512):
        return MIDDLE
    short = short_segment_len(head_size)
    return LOW if short is None or longest_segment <= short else TALL


def max_tiles(num_tokens: int, max_segments: int, queries: int) -> int:
    """N: most tiles of any layout of so many tokens and segments."""
    return num_tokens // queries + min(max_segments, num_tokens)


def list_tiles(segment_lengths: Sequence[int], queries: int) -> np.ndarray:
    """Tiles of a layout, those of the longest segments first: they take longest.

    Args:
        segment_lengths: Tokens per segment, end to end.
        queries: Rows of a tile.

    Returns:
        int32 [N, TILE_FIELDS].
    """
    segments = pairwise(accumulate(segment_lengths, initial=0))
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    # Lists: a new layout pays for each call to numpy more than for a segment here.
    for start, end in sorted(segments, key=lambda s: s[0] - s[1]):
        first = range(start, end, queries)
        rows += first
        starts += [start] * len(first)
        ends += [end] * len(first)
    tiles = np.zeros((len(rows), TILE_FIELDS), dtype=np.int32)
    tiles[:, 0], tiles[:, 1], tiles[:, 2] = rows, starts, ends
    return tiles


def attend_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tiles: torch.Tensor,
    shape: TileShape,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v within each segment, for the rows that tiles cover.

    Rows of other segments and padding may hold anything, NaN too.

    Args:
        q: Queries [T, H, D], half precision; heads side by side, any stride between tokens.
        k: Keys [T, H, D], dtype of q, likewise.
        v: Values [T, H, D], dtype of q, likewise.
        tiles: int32 [N, TILE_FIELDS], contiguous.
        shape: How the list was cut, and how the kernel works.
        out: [T, H, D], dtype of q, heads side by side, any stride between tokens: q itself, whose
            rows only their own tile reads, or no part of q, k and v.

    Returns:
        ``out``: [T, H, D], dtype of q.
    """
    if isinstance(q, FakeTensor):
        return out  # nothing to look up an address of, nothing to launch
    _, heads, size = q.shape
    if not _aligned((q, k, v)):
        # Triton 3.6 makes wrong code of rows that it cannot copy by 16 bytes at a time: no copy is
        # asynchronous then, so no loop is pipelined (see the kernel).
        q, k, v = (F.pad(x, (0, -size % _ALIGNED)).contiguous() for x in (q, k, v))
    main = max(16, power_of_two(size + 1) // 2)  # 72 is 64 + 16: padded to 128 it takes 1.6 x
    rest = 0 if size <= main else max(16, power_of_two(size - main))
    flat = [x.flatten(1) for x in (q, k, v)]  # [T, H D], views
    bulk = shape.bulk_copies and _has_bulk_copies(q.device)
    strides = [x.stride(0) // _ALIGNED for x in flat]
    sources: list[Any] = []
    bulk_queries = bulk and shape.bulk_queries
    copies = ((shape.queries, bulk_queries), (shape.keys, bulk), (shape.keys, bulk))
    for x, (rows, in_bulk) in zip(flat, copies, strict=True):
        sources += _sources(x, rows, main, rest) if in_bulk else (x, x)
    launch(
        _tile_kernel,
        (heads, tiles.shape[0]),
        tiles,
        out,
        *sources,
        *flat[1:],
        *strides,
        out.stride(0),
        _LOG2_E / math.sqrt(size),
        SIZE=size,
        PITCH=q.shape[2],
        MAIN=main,
        REST=rest,
        QUERIES=shape.queries,
        KEYS=shape.keys,
        BULK=bulk,
        BULK_QUERIES=bulk_queries,
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )
    return out


def _aligned(tensors: Sequence[torch.Tensor]) -> bool:
    """Every head of every token of [T, H, D] starts at a multiple of 16 bytes."""
    steps = 0
    for tensor in tensors:
        token, head, _ = tensor.stride()
        steps |= int(tensor.storage_offset()) | token | head
    return steps % _ALIGNED == 0  # a power of two, so it divides all of them


@functools.cache
def _has_bulk_copies(device: torch.device) -> bool:
    """Whether the device has a tensor memory accelerator, or only pretends to be one."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)


def _sources(x: torch.Tensor, rows: int, main: int, rest: int) -> tuple[Any, Any]:
    """Descriptors of blocks of both widths of [T, H D]; without a rest, the second is not read."""
    shape, strides = list(x.shape), list(x.stride())
    whole = TensorDescriptor(x, shape, strides, [rows, main])
    return whole, TensorDescriptor(x, shape, strides, [rows, rest]) if rest else whole


@jit
def _load(
    source,
    stride,
    row,
    end,
    column,
    used,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BULK: tl.constexpr,
):
    """[ROWS, COLUMNS] from (row, column) on; stride in 16 bytes, so that Triton knows it aligned.

    Bulk copies read on past the end and the columns.
    """
    if BULK:
        block = source.load([row, column])
    else:
        rows = row + tl.arange(0, ROWS)
        columns = tl.arange(0, COLUMNS)
        at = rows.to(tl.int64)[:, None] * (stride * 8) + column + columns[None, :]
        mask = (rows < end)[:, None] & (columns < used)[None, :]
        block = tl.load(source + at, mask=mask, other=0.0)
    return block


@jit
def _step(
    q_main,
    q_rest,
    k_main,
    k_rest,
    v_main,
    v_rest,
    k_stride,
    v_stride,
    row,
    end,
    column,
    scale,
    largest,
    total,
    main,
    rest,
    SIZE: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    BULK: tl.constexpr,
    LAST: tl.constexpr,
):
    """KEYS keys and values from a row on; in the last step some are past the segment's end."""
    used = SIZE if SIZE < MAIN else MAIN
    k = _load(k_main, k_stride, row, end, column, used, KEYS, MAIN, BULK)
    scores = tl.dot(q_main, k.T)
    if REST > 0:
        k = _load(k_rest, k_stride, row, end, column + MAIN, SIZE - MAIN, KEYS, REST, BULK)
        scores = tl.dot(q_rest, k.T, scores)
    if LAST:
        inside = row + tl.arange(0, KEYS) < end
        scores = tl.where(inside[None, :], scores, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_largest[:, None])  # one instruction before the power
    shrink = tl.exp2(largest - new_largest)
    total = total * shrink + tl.sum(weights, 1)
    v = _load(v_main, v_stride, row, end, column, used, KEYS, MAIN, BULK)
    weights = weights.to(v.dtype)
    main = tl.dot(weights, v, main * shrink[:, None])
    if REST > 0:
        v = _load(v_rest, v_stride, row, end, column + MAIN, SIZE - MAIN, KEYS, REST, BULK)
        rest = tl.dot(weights, v, rest * shrink[:, None])
    return new_largest, total, main, rest


@jit
def _tile_kernel(
    tiles,
    out,
    q_main,
    q_rest,
    k_main,
    k_rest,
    v_main,
    v_rest,
    k,
    v,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    scale,
    SIZE: tl.constexpr,
    PITCH: tl.constexpr,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    BULK: tl.constexpr,
    BULK_QUERIES: tl.constexpr,
):
    """Heads are the fast axis: their queries, keys and values share lines of memory."""
    column = tl.program_id(0) * PITCH
    tile = tiles + tl.program_id(1) * 4
    first = tl.load(tile)
    start = tl.load(tile + 1)
    end = tl.load(tile + 2)
    if first < end:
        columns = tl.arange(0, MAIN)
        used = SIZE if SIZE < MAIN else MAIN
        q_a = _load(q_main, q_stride, first, end, column, used, QUERIES, MAIN, BULK_QUERIES)
        if BULK_QUERIES and SIZE < MAIN:
            q_a = tl.where((columns < SIZE)[None, :], q_a, 0.0).to(q_a.dtype)
        q_b = q_a
        rest = tl.zeros((QUERIES, 16), dtype=tl.float32)
        if REST > 0:
            rest_columns = tl.arange(0, REST)
            at, left = column + MAIN, SIZE - MAIN
            q_b = _load(q_rest, q_stride, first, end, at, left, QUERIES, REST, BULK_QUERIES)
            if BULK_QUERIES:
                q_b = tl.where((rest_columns < left)[None, :], q_b, 0.0).to(q_b.dtype)
            rest = tl.zeros((QUERIES, REST), dtype=tl.float32)
        largest = tl.full((QUERIES,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((QUERIES,), dtype=tl.float32)
        main = tl.zeros((QUERIES, MAIN), dtype=tl.float32)
        whole = end - (end - start) % KEYS
        for row in tl.range(start, whole, KEYS):
            largest, total, main, rest = _step(
                q_a, q_b, k_main, k_rest, v_main, v_rest, k_stride, v_stride, row, end, column,
                scale, largest, total, main, rest, SIZE, MAIN, REST, KEYS, BULK, False,
            )  # fmt: skip
        # What is left of the segment. Not by bulk copies, which would read on into the next one:
        # 0 * NaN of another item would be NaN. A loop of one round, because Triton 3.6 makes wrong
        # code of a product with 16 columns that is not in a pipelined loop.
        for row in tl.range(whole, end, KEYS):
            largest, total, main, rest = _step(
                q_a, q_b, k, k, v, v, k_stride, v_stride, row, end, column,
                scale, largest, total, main, rest, SIZE, MAIN, REST, KEYS, False, True,
            )  # fmt: skip
        rows = first + tl.arange(0, QUERIES)
        at = out + rows.to(tl.int64)[:, None] * out_stride + tl.program_id(0) * SIZE
        inside = (rows < end)[:, None]
        inverse = (1.0 / total)[:, None]
        tl.store(
            at + columns[None, :],
            (main * inverse).to(out.dtype.element_ty),
            mask=inside & (columns < SIZE)[None, :],
        )
        if REST > 0:
            tl.store(
                at + MAIN + rest_columns[None, :],
                (rest * inverse).to(out.dtype.element_ty),
                mask=inside & (rest_columns < SIZE - MAIN)[None, :],
            )
