# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Geometry of patch grids, on the host: numpy over Python ints.

Rows are in merge-block order: the ``merge x merge`` patches that a merger joins are neighbours.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_CACHED_GRIDS = 64  # a 64x64 grid takes 160 kB


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
    rows, columns = np.mgrid[:height, :width].astype(np.int32)
    blocks = (height // merge, merge, width // merge, merge)
    ordered = [axis.reshape(blocks).transpose(0, 2, 1, 3).ravel() for axis in (rows, columns)]
    return _frozen(np.stack(ordered, axis=1))


@lru_cache(maxsize=_CACHED_GRIDS)
def bilinear_taps(height: int, width: int, side: int, merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Taps that resample a square table of position embeddings to a grid.

    Bilinear with aligned corners: patch i of n reads the table at i * (side - 1) / (n - 1), as in
    Qwen3-VL (``F.interpolate(mode="bilinear", align_corners=True)``).

    Args:
        height: Patches down.
        width: Patches across.
        side: Side of the table; row-major, side * side rows.
        merge: Side of a merge block.

    Returns:
        Table rows, int32 [height * width, 4], and weights, float32 [height * width, 4]; order of
        the taps: (upper, left), (upper, right), (lower, left), (lower, right).
    """
    position = patch_positions(height, width, merge)
    row_taps, row_weights = _linear_taps(position[:, 0], height, side)  # [P, 2]
    column_taps, column_weights = _linear_taps(position[:, 1], width, side)
    index = row_taps[:, :, None] * side + column_taps[:, None, :]  # [P, 2, 2]
    weight = row_weights[:, :, None] * column_weights[:, None, :]
    return _frozen(index.reshape(-1, 4)), _frozen(weight.reshape(-1, 4))


def _linear_taps(index: np.ndarray, size: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    source = index.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))  # [P]
    lower = np.floor(source)
    taps = lower.astype(np.int32)[:, None] + np.arange(2, dtype=np.int32)  # [P, 2]
    distance = np.abs(source[:, None] - lower[:, None] - np.arange(2, dtype=np.float32))
    return taps.clip(0, side - 1), (1 - distance).clip(min=0)


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False  # it is shared by the cache
    return array
