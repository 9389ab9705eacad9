# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""3 x 3 convolutions that halve height and width, channels last, with exact GELU.

cuDNN's kernels multiply rows of channels: with channels first it copies input and output into that
order and back, which takes as long as the convolution. It has nothing for a single input channel;
that one is our own. Shape letters: N pictures, H and W their height and width, H' = ceil(H / 2) and
W' = ceil(W / 2), I input channels, C output channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .activation import gelu
from .kernels import has_kernels, jit, launch, tl

_PIXELS, _CHANNELS = 128, 64  # of a program of the first convolution
_BLOCK = 1024


def convolve_plane(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor
) -> torch.Tensor:
    """GELU(convolution) of pictures with one channel.

    Args:
        x: [N, H, W], contiguous, half precision or fp32.
        weight: [C, 1, 3, 3], contiguous, dtype of x.
        bias: [C], dtype of x.
        keep: [N, W'], contiguous, dtype of x: what each column of the result is multiplied by.

    Returns:
        [N, H', W', C], contiguous, dtype of x.
    """
    if not has_kernels(x.device, x.dtype):
        return _finished(_convolved(x[..., None], weight, bias), keep)
    count, height, width = x.shape
    rows, columns, channels = -(-height // 2), -(-width // 2), len(bias)
    out = torch.empty(count, rows, columns, channels, dtype=x.dtype, device=x.device)
    pixels = count * rows * columns
    launch(
        _plane_kernel,
        (-(-channels // _CHANNELS), -(-pixels // _PIXELS)),
        x,
        weight,
        bias,
        keep,
        out,
        pixels,
        CHANNELS=channels,
        HEIGHT=height,
        WIDTH=width,
        ROWS=rows,
        COLUMNS=columns,
        PIXELS_BLOCK=_PIXELS,
        CHANNELS_BLOCK=_CHANNELS,
        num_warps=4,
    )
    return out


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep: torch.Tensor
) -> torch.Tensor:
    """GELU(convolution) of pictures.

    Args:
        x: [N, H, W, I], contiguous, half precision or fp32.
        weight: [C, I, 3, 3], dtype of x; fastest with channels last in memory.
        bias: [C], dtype of x.
        keep: [N, W'], contiguous, dtype of x: what each column of the result is multiplied by.

    Returns:
        [N, H', W', C], contiguous, dtype of x.
    """
    convolved = _convolved(x, weight, bias)
    if not has_kernels(x.device, x.dtype):
        return _finished(convolved, keep)
    return _launch_finish(convolved, keep, out=convolved)


def convolve_to_columns(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """GELU(convolution) of pictures, turned for a projection of each column.

    Args:
        x: [N, H, W, I], contiguous, half precision or fp32.
        weight: [C, I, 3, 3], dtype of x; fastest with channels last in memory.
        bias: [C], dtype of x.

    Returns:
        [N, W', C, H'], contiguous, dtype of x.
    """
    convolved = _convolved(x, weight, bias)
    if not has_kernels(x.device, x.dtype):
        return F.gelu(convolved).permute(0, 2, 3, 1).contiguous()
    count, rows, columns, channels = convolved.shape
    turned = torch.empty(count, columns, channels, rows, dtype=x.dtype, device=x.device)
    return _launch_finish(convolved, None, out=turned)


def _convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """[N, H, W, I] -> [N, H', W', C], contiguous."""
    last = weight.contiguous(memory_format=torch.channels_last)
    convolved = F.conv2d(x.permute(0, 3, 1, 2), last, bias, stride=2, padding=1)
    return convolved.permute(0, 2, 3, 1).contiguous()


def _finished(convolved: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return F.gelu(convolved) * keep[:, None, :, None]


def _launch_finish(
    convolved: torch.Tensor, keep: torch.Tensor | None, *, out: torch.Tensor
) -> torch.Tensor:
    _, rows, columns, channels = convolved.shape
    launch(
        _finish_kernel,
        (-(-convolved.numel() // _BLOCK),),
        convolved,
        convolved if keep is None else keep,
        out,
        convolved.numel(),
        ROWS=rows,
        COLUMNS=columns,
        CHANNELS=channels,
        TURN=keep is None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out


@jit
def _plane_kernel(
    x,
    weight,
    bias,
    keep,
    out,
    pixels,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PIXELS_BLOCK: tl.constexpr,
    CHANNELS_BLOCK: tl.constexpr,
):
    """Some pixels and channels of the result a program: a product over the 9 (of 16) taps."""
    channel = tl.program_id(0) * CHANNELS_BLOCK + tl.arange(0, CHANNELS_BLOCK)
    pixel = tl.program_id(1) * PIXELS_BLOCK + tl.arange(0, PIXELS_BLOCK)
    has_channel, has_pixel = channel < CHANNELS, pixel < pixels
    picture = pixel // (ROWS * COLUMNS)
    row = pixel // COLUMNS % ROWS
    column = pixel % COLUMNS
    tap = tl.arange(0, 16)
    y = (row * 2 - 1)[:, None] + (tap // 3)[None, :]
    z = (column * 2 - 1)[:, None] + (tap % 3)[None, :]
    inside = (y >= 0) & (y < HEIGHT) & (z >= 0) & (z < WIDTH)
    inside = inside & has_pixel[:, None] & (tap < 9)[None, :]
    at = picture.to(tl.int64)[:, None] * (HEIGHT * WIDTH) + y * WIDTH + z
    patches = tl.load(x + at, mask=inside, other=0.0)
    taps = tl.load(
        weight + channel[None, :] * 9 + tap[:, None],
        mask=has_channel[None, :] & (tap < 9)[:, None],
        other=0.0,
    )
    result = tl.dot(patches, taps)
    result += tl.load(bias + channel, mask=has_channel, other=0.0).to(tl.float32)[None, :]
    kept = tl.load(keep + picture * COLUMNS + column, mask=has_pixel, other=0.0).to(tl.float32)
    result = gelu(result) * kept[:, None]
    at = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    mask = has_pixel[:, None] & has_channel[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


@jit
def _finish_kernel(
    convolved,
    keep,
    out,
    size,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TURN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Activates BLOCK values; where it turns them, in the order in which they are written."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < size
    source = index
    if TURN:
        row = index % ROWS
        channel = index // ROWS % CHANNELS
        column = index // (ROWS * CHANNELS) % COLUMNS
        picture = index // (ROWS * CHANNELS * COLUMNS)
        source = ((picture * ROWS + row) * COLUMNS + column) * CHANNELS + channel
    value = gelu(tl.load(convolved + source, mask=mask, other=0.0).to(tl.float32))
    if not TURN:
        column = index // CHANNELS % COLUMNS
        picture = index // (CHANNELS * COLUMNS * ROWS)
        value *= tl.load(keep + picture * COLUMNS + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + index, value.to(out.dtype.element_ty), mask=mask)
