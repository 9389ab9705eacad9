# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Two attention layouts of the same tokens: segments, and square windows inside them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ..graphs.adapter import PackedEncoderGraphIOAdapter
from ..graphs.buckets import Bucket
from ..graphs.layout import EncoderItem, SegmentRun
from ..ops.attention import PackedAttention
from ..ops.packed_metadata import PackedAttnMetadata, make_metadata


class WindowedLengths(NamedTuple):
    """Lengths of the segments, and of the windows they are cut into; both cover all tokens."""

    segments: tuple[int, ...]
    windows: tuple[int, ...]


@dataclass(frozen=True)
class WindowedMetadata:
    """Metadata of both layouts, refreshed together."""

    segments: PackedAttnMetadata
    windows: PackedAttnMetadata

    @classmethod
    def of(
        cls, lengths: WindowedLengths, attention: PackedAttention, device: torch.device
    ) -> WindowedMetadata:
        """Metadata of exactly these lengths."""
        made = cls(
            *(
                make_metadata(
                    attention,
                    num_tokens=sum(x),
                    max_segments=len(x),
                    max_segment_len=max(x),
                    device=device,
                )
                for x in lengths
            )
        )
        made.refresh(lengths)
        return made

    @property
    def attention(self) -> tuple[PackedAttention, PackedAttention]:
        """Forms for segments and windows: what runs before a capture goes by them."""
        return self.segments.attention, self.windows.attention

    @property
    def cu_seqlens(self) -> torch.Tensor:
        """Offsets of the segments, int32 [segments + 1]."""
        return self.segments.cu_seqlens

    @property
    def cu_window_seqlens(self) -> torch.Tensor:
        """Offsets of the windows, int32 [windows + 1]."""
        return self.windows.cu_seqlens

    @property
    def tiles(self) -> torch.Tensor | None:
        """Tiles of the segments, int32 [N, 4], where attention reads any."""
        return self.segments.tiles

    @property
    def window_tiles(self) -> torch.Tensor | None:
        """Tiles of the windows, int32 [N, 4], where attention reads any."""
        return self.windows.tiles

    def refresh(self, lengths: WindowedLengths) -> None:
        """Writes both layouts into the existing tensors; errors as ``PackedAttnMetadata``'s."""
        self.segments.refresh(lengths.segments)
        self.windows.refresh(lengths.windows)


class WindowedMetadataProvider:
    """Builds ``WindowedMetadata`` per bucket."""

    def __init__(
        self, attention: PackedAttention, device: torch.device, *, side: int, unit: int
    ) -> None:
        """Takes the form of attention, the side of a window in merged rows, and tokens of one."""
        self._attention = attention
        self._device = device
        self._side = side
        self._unit = unit

    @property
    def graph_critical_attrs(self) -> tuple[str, ...]:
        """See ``EncoderMetadataProvider``."""
        offsets = ("cu_seqlens", "cu_window_seqlens")
        has_tiles = self._attention.tile_queries is not None
        return (*offsets, "tiles", "window_tiles") if has_tiles else offsets

    def build(self, bucket: Bucket, num_segments: int) -> WindowedMetadata:
        """See ``EncoderMetadataProvider``."""
        size, side, unit = bucket.num_tokens, self._side, self._unit
        # H x W merged tokens make ceil(H / s) * ceil(W / s) <= (H * W + s - 1) / s windows.
        slots = (
            (num_segments, bucket.max_segment_len or size),
            (num_segments + size // (unit * side), unit * side**2),
        )
        return WindowedMetadata(
            *(
                make_metadata(
                    self._attention,
                    num_tokens=size,
                    max_segments=n,
                    max_segment_len=longest,
                    device=self._device,
                )
                for n, longest in slots
            )
        )

    def refresh_in_place(self, metadata: WindowedMetadata, segment_lengths: Any) -> None:
        """See ``EncoderMetadataProvider``; takes ``WindowedLengths``."""
        metadata.refresh(segment_lengths)


class WindowedIOAdapter(PackedEncoderGraphIOAdapter):
    """Describes a step by ``WindowedLengths``; slack is cut into windows too."""

    def __init__(
        self,
        *,
        window_tokens: int,
        windows_of: Callable[[Hashable], tuple[int, ...]],
        **packed: Any,
    ) -> None:
        """Describes the encoder.

        Args:
            window_tokens: Of a whole window.
            windows_of: Item layout -> tokens of each window of one of its segments.
            packed: Of ``PackedEncoderGraphIOAdapter``.
        """
        super().__init__(**packed)
        self._window_tokens = window_tokens
        self._windows_of = windows_of

    def segment_lengths(
        self, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> WindowedLengths:
        """See the base class."""
        windows: list[int] = []
        for run in runs:
            windows += self._windows_of(items[run.item].layout) * run.num_segments
        return WindowedLengths(super().segment_lengths(items, runs), tuple(windows))

    def pad(self, bucket: Bucket, segment_lengths: WindowedLengths) -> WindowedLengths:
        """See the base class."""
        segments, windows = segment_lengths
        padded = super().pad(bucket, segments)
        return WindowedLengths(padded, windows + self._cut(padded[len(segments) :]))

    def layout_of(self, bucket: Bucket, segments: tuple[int, ...] = ()) -> WindowedLengths:
        """See the base class."""
        return self.pad(bucket, WindowedLengths(segments, self._cut(segments)))

    def attending_pairs(self, layout: WindowedLengths) -> int:
        """See the base class; in windows it is the same for every token."""
        return super().attending_pairs(layout.segments)

    def _cut(self, segments: Sequence[int]) -> tuple[int, ...]:
        whole = self._window_tokens
        pieces = ((whole,) * (n // whole) + (n % whole,) * (n % whole > 0) for n in segments)
        return tuple(piece for segment in pieces for piece in segment)


@lru_cache(maxsize=64)
def window_layout(height: int, width: int, side: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Cuts a frame into windows.

    Args:
        height: Merged rows of the frame.
        width: Merged columns.
        side: Side of a window, in merged rows.

    Returns:
        Where each merged token of the windowed order comes from, as the distance from its own place
        (int32 [height * width]; a distance, so that it holds wherever the frame lies in a batch),
        and the merged tokens of each window.
    """
    row, column = (axis.ravel() for axis in np.mgrid[:height, :width])
    order = np.lexsort((column, row, column // side, row // side))
    sizes = tuple(
        min(side, height - top) * min(side, width - left)
        for top in range(0, height, side)
        for left in range(0, width, side)
    )
    return (order - np.arange(height * width)).astype(np.int32), sizes
