# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Interpolated rows of a position table. Shape letters: T tokens, K taps, C width."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from .kernels import has_kernels, jit, launch, power_of_two, tl


def gather_taps(table: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of table rows, one tap at a time: K gathered rows at once would be K times x.

    Args:
        table: [rows, C], any float dtype.
        rows: int32 [T, K].
        weights: fp32 [T, K].

    Returns:
        fp32 [T, C].
    """
    total = embedding(rows[:, 0], table).float() * weights[:, 0:1]
    for tap in range(1, rows.shape[1]):
        total.addcmul_(embedding(rows[:, tap], table).float(), weights[:, tap : tap + 1])
    return total


def add_taps_(
    x: torch.Tensor, table: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Adds ``gather_taps(...)`` to x, with one rounding.

    Args:
        x: [T, C], contiguous, dtype of the table.
        table: [rows, C], contiguous, half precision or fp32.
        rows: int32 [T, K], any stride between tokens.
        weights: fp32 [T, K], any stride between tokens.

    Returns:
        x [T, C], overwritten; its own dtype.
    """
    if not has_kernels(x.device, x.dtype):
        return x.copy_(gather_taps(table, rows, weights).add_(x))
    width = x.shape[1]
    block = min(power_of_two(width), 512)
    launch(
        _taps_kernel,
        (x.shape[0], -(-width // block)),
        x,
        table,
        rows,
        weights,
        rows.stride(0),
        weights.stride(0),
        width,
        TAPS=rows.shape[1],
        BLOCK=block,
        num_warps=2,
    )
    return x


@jit
def _taps_kernel(
    x,
    table,
    rows,
    weights,
    rows_stride,
    weights_stride,
    width,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A piece of a token's row a program."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        row = tl.load(rows + token * rows_stride + tap).to(tl.int64)
        weight = tl.load(weights + token * weights_stride + tap)
        total += tl.load(table + row * width + column, mask=mask, other=0.0).to(tl.float32) * weight
    at = x + token * width + column
    total += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, total.to(x.dtype.element_ty), mask=mask)
