# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Query and key of a fused projection, in place: norm of every head, two-axis rotation.

Shape letters: T tokens, H heads, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .kernels import has_kernels, jit, launch, power_of_two, tl


class AxialAngles(NamedTuple):
    """Angles of a two-axis rotary embedding: position of an axis times a frequency.

    Attributes:
        positions: int32 [T, 2]: row and column, any stride between tokens.
        frequencies: fp32 [D / 4]; the first half of the angles turns with the row, the second with
            the column.
    """

    positions: torch.Tensor
    frequencies: torch.Tensor

    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines.

        Returns:
            fp32 [T, D / 2] each.
        """
        angles = (self.positions.float()[:, :, None] * self.frequencies).flatten(1)
        return angles.cos(), angles.sin()


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


def turn_(qkv: torch.Tensor, angles: AxialAngles | None, norm: HeadNorm | None) -> None:
    """Normalises and rotates query and key where they are, in fp32 with one rounding.

    Args:
        qkv: [T, 3, H, D], contiguous, half precision or fp32; values are left alone.
        angles: Of the rotation, for T tokens; None for none.
        norm: Before the rotation; None for none.
    """
    if angles is None and norm is None:
        return
    if has_kernels(qkv.device, qkv.dtype):
        _launch(qkv, angles, norm)
        return
    for part, index in (("query", 0), ("key", 1)):
        x = qkv[:, index].float()
        if norm is not None:
            weight = getattr(norm, part).float()
            x = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, norm.eps)
        if angles is not None:
            x = rotate(x, *angles.tables())
        qkv[:, index] = x.to(qkv.dtype)


def _launch(qkv: torch.Tensor, angles: AxialAngles | None, norm: HeadNorm | None) -> None:
    tokens, _, heads, size = qkv.shape
    half = size // 2
    launch(
        _turn_kernel,
        (tokens, 2),
        qkv,
        qkv if angles is None else angles.positions,
        qkv if angles is None else angles.frequencies,
        qkv if norm is None else norm.query,
        qkv if norm is None else norm.key,
        0 if angles is None else angles.positions.stride(0),
        0.0 if norm is None else norm.eps,
        HEADS=heads,
        HALF=half,
        HEADS_BLOCK=power_of_two(heads),
        HALF_BLOCK=power_of_two(half),
        ROTATE=angles is not None,
        NORM=norm is not None,
        num_warps=2,
    )


@jit
def _turn_kernel(
    qkv,
    positions,
    frequencies,
    query_weight,
    key_weight,
    position_stride,
    eps,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    ROTATE: tl.constexpr,
    NORM: tl.constexpr,
):
    """All queries, or all keys, of a token a program."""
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
    if NORM:
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
        by_column = column >= HALF // 2
        position = tl.load(positions + row * position_stride + by_column.to(tl.int32))
        index = tl.where(by_column, column - HALF // 2, column)
        frequency = tl.load(frequencies + index, mask=in_half, other=0.0)
        angle = position.to(tl.float32) * frequency
        cos = tl.cos(angle)[None, :]
        sin = tl.sin(angle)[None, :]
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    tl.store(x + at, first.to(qkv.dtype.element_ty), mask=mask)
    tl.store(x + at + HALF, second.to(qkv.dtype.element_ty), mask=mask)
