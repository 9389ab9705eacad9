# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Query and key of a fused projection, in place: norm of every head, two-axis rotation.

Shape letters: T tokens, H heads, D head size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from .kernels import has_kernels, jit, launch, power_of_two, tl

_GROUPS = 256
"""Groups of neighbouring pairs that a program of the kernel without a norm turns."""


class RotaryTables(NamedTuple):
    """Cosines and sines of a rotary embedding.

    Attributes:
        cos: fp32 [T, D / 2], contiguous.
        sin: fp32 [T, D / 2], contiguous.
    """

    cos: torch.Tensor
    sin: torch.Tensor


class AxialAngles(NamedTuple):
    """Angles of a two-axis rotary embedding: position of an axis times a frequency.

    Attributes:
        positions: int32 [T, 2]: row and column, any stride between tokens.
        frequencies: fp32 [D / 4]; the first half of the angles turns with the row, the second with
            the column.
    """

    positions: torch.Tensor
    frequencies: torch.Tensor

    @property
    def table_shape(self) -> tuple[int, int, int]:
        """(2, T, D / 2): of both tables, one after the other."""
        return 2, len(self.positions), 2 * len(self.frequencies)

    def tables(self, room: torch.Tensor | None = None) -> RotaryTables:
        """Made once for all layers: a cosine takes longer than all else that a rotation does.

        Args:
            room: Where they go, fp32 [2, T, D / 2], contiguous; by default new memory.
        """
        if room is None:
            device = self.positions.device
            room = torch.empty(self.table_shape, dtype=torch.float32, device=device)
        if has_kernels(room.device, torch.bfloat16):  # whatever they are to turn
            _launch_tables(self, room)
        else:
            angles = (self.positions.float()[:, :, None] * self.frequencies).flatten(1)
            room[0], room[1] = angles.cos(), angles.sin()
        return RotaryTables(*room)


class HeadNorm(NamedTuple):
    """RMS norm over D of every head's query and key.

    Attributes:
        query: Weight [D], any float dtype.
        key: Weight [D], any float dtype.
        eps: Added to the mean square.
    """

    query: torch.Tensor
    key: torch.Tensor
    eps: float


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding over the whole head, first half against second half.

    Args:
        x: [T, ..., H, D], any float dtype; rotated in fp32.
        cos: fp32 [T, D / 2].
        sin: fp32 [T, D / 2].

    Returns:
        [T, ..., H, D], dtype of x.
    """
    shape = (cos.shape[0], *[1] * (x.dim() - 2), cos.shape[1])
    cos, sin = cos.view(shape), sin.view(shape)
    first, second = x.chunk(2, dim=-1)
    # Products are fp32 because cos and sin are. Halves are written in place: an fp32 copy of x and
    # a concatenation of the halves would triple the memory that this takes.
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = first.shape[-1]
    out[..., :half] = (first * cos).sub_(second * sin)
    out[..., half:] = (second * cos).add_(first * sin)
    return out


def turn_(qkv: torch.Tensor, tables: RotaryTables | None, norm: HeadNorm | None) -> None:
    """Normalises and rotates query and key where they are, in fp32 with one rounding.

    Args:
        qkv: [T, 3, H, D], contiguous, half precision or fp32; values are left alone.
        tables: Of the rotation, for T tokens; None for none.
        norm: Before the rotation; None for none.
    """
    if tables is None and norm is None:
        return
    if has_kernels(qkv.device, qkv.dtype):
        if norm is not None:
            _launch_norm(qkv, tables, norm)
        elif tables is not None:
            _launch_rotation(qkv, tables)
        return
    for part, index in (("query", 0), ("key", 1)):
        x = qkv[:, index].float()
        if norm is not None:
            weight = getattr(norm, part).float()
            x = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, norm.eps)
        if tables is not None:
            x = rotate(x, *tables)
        qkv[:, index] = x.to(qkv.dtype)


def _launch_tables(angles: AxialAngles, room: torch.Tensor) -> None:
    positions, frequencies = angles
    _, tokens, half = angles.table_shape
    launch(
        _table_kernel,
        (tokens,),
        positions,
        frequencies,
        *room,
        positions.stride(0),
        HALF=half,
        HALF_BLOCK=power_of_two(half),
        num_warps=1,
    )


def _launch_rotation(qkv: torch.Tensor, tables: RotaryTables) -> None:
    tokens, _, heads, size = qkv.shape
    half = size // 2
    group = math.gcd(half, 8)  # up to 16 bytes at a time
    groups = tokens * 2 * heads * (half // group)
    launch(
        _rotate_kernel,
        (-(-groups // _GROUPS),),
        qkv,
        *tables,
        groups,
        HEADS=heads,
        HALF=half,
        GROUP=group,
        GROUPS=_GROUPS,
        num_warps=8,
    )


def _launch_norm(qkv: torch.Tensor, tables: RotaryTables | None, norm: HeadNorm) -> None:
    tokens, _, heads, size = qkv.shape
    half = size // 2
    launch(
        _turn_kernel,
        (tokens, 2),
        qkv,
        *(tables or (qkv, qkv)),
        norm.query,
        norm.key,
        norm.eps,
        HEADS=heads,
        HALF=half,
        HEADS_BLOCK=power_of_two(heads),
        HALF_BLOCK=power_of_two(half),
        ROTATE=tables is not None,
        num_warps=2,
    )


@jit
def _table_kernel(
    positions,
    frequencies,
    cos,
    sin,
    position_stride,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """A token a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF_BLOCK)
    in_half = column < HALF
    by_column = column >= HALF // 2
    position = tl.load(positions + row * position_stride + by_column.to(tl.int32))
    index = tl.where(by_column, column - HALF // 2, column)
    frequency = tl.load(frequencies + index, mask=in_half, other=0.0)
    angle = position.to(tl.float32) * frequency
    tl.store(cos + row * HALF + column, tl.cos(angle), mask=in_half)
    tl.store(sin + row * HALF + column, tl.sin(angle), mask=in_half)


@jit
def _rotate_kernel(
    qkv,
    cos,
    sin,
    groups,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """GROUPS times GROUP neighbouring pairs a program, over tokens, queries and keys, and heads.

    So no lane is idle, whatever the size of a head: 36 pairs in a block of 64 would cost half.
    """
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    mask = (group < groups)[:, None]
    head = group // (HALF // GROUP)
    column = (group % (HALF // GROUP) * GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    token = (head // (2 * HEADS)).to(tl.int64)[:, None]
    # A token has 3 H heads, of which the first 2 H turn.
    at = (token * (3 * HEADS) + (head % (2 * HEADS))[:, None]) * (HALF * 2) + column
    angle = token * HALF + column
    first = tl.load(qkv + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + HALF, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(cos + angle, mask=mask, other=0.0)
    s = tl.load(sin + angle, mask=mask, other=0.0)
    tl.store(qkv + at, (first * c - second * s).to(qkv.dtype.element_ty), mask=mask)
    tl.store(qkv + at + HALF, (second * c + first * s).to(qkv.dtype.element_ty), mask=mask)


@jit
def _turn_kernel(
    qkv,
    cos,
    sin,
    query_weight,
    key_weight,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    ROTATE: tl.constexpr,
):
    """All queries, or all keys, of a token a program, each head normalised first."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    x = qkv + (row * 3 + part) * (HEADS * HALF * 2)
    head = tl.arange(0, HEADS_BLOCK)[:, None]
    column = tl.arange(0, HALF_BLOCK)
    in_half = column < HALF
    mask = (head < HEADS) & in_half[None, :]
    at = head * (HALF * 2) + column[None, :]
    first = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x + at + HALF, mask=mask, other=0.0).to(tl.float32)
    squares = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    scale = (1.0 / tl.sqrt(squares / (HALF * 2) + eps))[:, None]
    weight = query_weight
    if part == 1:
        weight = key_weight
    first_weight = tl.load(weight + column, mask=in_half, other=0.0).to(tl.float32)
    second_weight = tl.load(weight + HALF + column, mask=in_half, other=0.0).to(tl.float32)
    first = first * scale * first_weight[None, :]
    second = second * scale * second_weight[None, :]
    if ROTATE:
        c = tl.load(cos + row * HALF + column, mask=in_half, other=0.0)[None, :]
        s = tl.load(sin + row * HALF + column, mask=in_half, other=0.0)[None, :]
        turned = first * c - second * s
        second = second * c + first * s
        first = turned
    tl.store(x + at, first.to(qkv.dtype.element_ty), mask=mask)
    tl.store(x + at + HALF, second.to(qkv.dtype.element_ty), mask=mask)
