# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A caller's arrays and pictures: what their shape tells, and later what is in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from .errors import RequestError

# What PIL raises for a picture it cannot decode: unreadable (OSError, EOFError), broken
# (SyntaxError, of its PNG reader), without pixels (ValueError), closed (AssertionError, ValueError)
# or too large.
_UNDECODABLE = (
    *(OSError, EOFError, SyntaxError, ValueError, AssertionError),
    Image.DecompressionBombError,
)


def host_array(media: np.ndarray | torch.Tensor) -> np.ndarray:
    """A caller's array or tensor on the host; numpy knows no bfloat16.

    Args:
        media: Array or tensor [...] of any shape and dtype.
    """
    if isinstance(media, np.ndarray):
        return media
    tensor = media.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        tensor = tensor.float()
    array: np.ndarray = tensor.numpy()
    return array


def picture_size(media: Any, name: str) -> tuple[int, int]:
    """Check what can be told of a picture without its pixels; return height and width."""
    if isinstance(media, Image.Image):
        width, height = media.size
        if 0 in media.size:
            raise RequestError(f"{name} is {width}x{height} pixels; both sides must be at least 1")
    elif isinstance(media, (np.ndarray, torch.Tensor)):
        shape = list(media.shape)
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 3):
            raise RequestError(f"{name} has shape {shape}; an array must be [H, W, 3] or [H, W]")
        if 0 in shape:
            raise RequestError(f"{name} has shape {shape}; both sides must be at least 1")
        if not _is_pixel_type(media):
            raise RequestError(
                f"{name} has dtype {media.dtype}; use uint8 (0..255) or float (0..1)"
            )
        height, width = shape[:2]
    else:
        raise RequestError(
            f"{name} is a {type(media).__name__}; give a PIL image or an array [H, W, 3] "
            "(files and URLs are opened by the caller)"
        )
    if height * width == 1:
        raise RequestError(f"{name} is 1x1 pixel; that shows nothing, the file is probably broken")
    return height, width


def _is_pixel_type(media: np.ndarray | torch.Tensor) -> bool:
    if isinstance(media, torch.Tensor):
        return media.dtype == torch.uint8 or media.is_floating_point()
    return media.dtype == np.uint8 or np.issubdtype(media.dtype, np.floating)


def to_rgb(media: Any, name: str) -> np.ndarray:
    """Decode a picture that :func:`picture_size` let pass, to a uint8 array [H, W, 3]."""
    if isinstance(media, Image.Image):
        try:
            return np.asarray(media.convert("RGB"))
        except _UNDECODABLE as error:
            raise RequestError(
                f"{name} cannot be decoded: {type(error).__name__}: {error}; the file is broken, "
                "too large or was closed"
            ) from error
    pixels = host_array(media)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.dtype == np.uint8:
        return pixels
    if not np.isfinite(pixels).all():
        raise RequestError(f"{name} holds NaN or infinite values; replace them before")
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 1:
        raise RequestError(
            f"{name} holds values from {low:g} to {high:g}; float pixels must lie in 0..1, or "
            "convert to uint8"
        )
    return (pixels * 255).round().astype(np.uint8)
