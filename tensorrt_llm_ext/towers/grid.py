# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Geometry of patch grids, on the host: numpy over Python ints.

Rows are in merge-block order: the ``merge x merge`` patches that a merger joins are neighbours.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_CACHED_GRIDS = 16  # a 64x64 grid takes 160 kB, with cubic taps 560 kB
_CACHED_AXES = 256  # up to 2 kB each, for 64 places


@lru_cache(maxsize=_CACHED_GRIDS)
def patch_positions(height: int, width: int, merge: int) -> np.ndarray:
    """Coordinates of the patches of one frame.

    Args:
        height: Patches down; a multiple of ``merge``.
        width: Patches across; a multiple of ``merge``.
        merge: Side of the square of patches that a merger joins.

    Returns:
        int32 [height * width, 2]: (row, column) of each patch, in merge-block order.
    """
    down, across = height // merge, width // merge
    blocks = np.empty((down, across, merge, merge, 2), dtype=np.int32)
    blocks[..., 0] = np.arange(height).reshape(down, 1, merge, 1)
    blocks[..., 1] = np.arange(width).reshape(1, across, 1, merge)
    return _frozen(blocks.reshape(-1, 2))


@lru_cache(maxsize=_CACHED_GRIDS)
def position_taps(
    height: int,
    width: int,
    side: int,
    merge: int,
    *,
    cubic: bool = False,
    align_corners: bool = True,
    square: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Taps that resample a square table of position embeddings to a grid.

    As ``F.interpolate`` does it: patch i of n reads the table at i * (side - 1) / (n - 1) with
    aligned corners, else at (i + 0.5) * side / n - 0.5, taps clamped to the border. The cubic
    kernel is Keys' with a = -0.75.

    Args:
        height: Patches down.
        width: Patches across.
        side: Side of the table; row-major, side * side rows.
        merge: Side of a merge block (1: raster order).
        cubic: 4 taps an axis instead of 2.
        align_corners: See above.
        square: Resample to the larger of height and width on both axes and crop (RADIO).

    Returns:
        Table rows, int32 [height * width, K], and weights, float32 [height * width, K]; K is 4, or
        16 with ``cubic``.
    """
    down, across = height // merge, width // merge
    sizes = (max(height, width),) * 2 if square else (height, width)
    row_taps, column_taps = (_axis_taps(size, side, cubic, align_corners) for size in sizes)
    each = row_taps[0].shape[1]
    # Side by side for all K taps first: numpy is slow over axes as short as those of one tap.
    # Then in merge-block order: [blocks down, blocks across, merge, merge, K].
    rows, row_weights = (
        tap[:height].repeat(each, axis=1).reshape(down, 1, merge, 1, -1) for tap in row_taps
    )
    columns, column_weights = (
        np.tile(tap[:width], each).reshape(1, across, 1, merge, -1) for tap in column_taps
    )
    count = height * width
    return (
        _frozen((rows * side + columns).reshape(count, -1)),
        _frozen((row_weights * column_weights).reshape(count, -1)),
    )


@lru_cache(maxsize=_CACHED_AXES)
def _axis_taps(
    size: int, side: int, cubic: bool, align_corners: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Taps and weights of each place on an axis: int32 and float32 [size, 2 or 4]."""
    place = np.arange(size, dtype=np.float32)
    if align_corners:
        source = place * np.float32(side - 1) / np.float32(max(size - 1, 1))  # [size]
    else:
        source = (place + np.float32(0.5)) * np.float32(side) / np.float32(size) - np.float32(0.5)
    lower = np.floor(source)
    offsets = np.arange(-1, 3) if cubic else np.arange(2)
    taps = lower.astype(np.int32)[:, None] + offsets.astype(np.int32)
    distance = np.abs((source - lower)[:, None] - offsets.astype(np.float32))
    weights = _keys_kernel(distance) if cubic else (1 - distance).clip(min=0)
    return _frozen(taps.clip(0, side - 1)), _frozen(weights)


def _keys_kernel(distance: np.ndarray) -> np.ndarray:
    a, x = np.float32(-0.75), distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, far)


def repeated(array: np.ndarray, times: int) -> np.ndarray:
    """Rows of an array, over and over: [rows, n] -> [times * rows, n]."""
    return array if times == 1 else np.tile(array, (times, 1))


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False  # it is shared by the cache
    return array
