# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Layout of a packed batch on the device, refreshed in place.

Shape letters: T tokens, S segments, N tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from .tile_attention import TILE_FIELDS, list_tiles, max_tiles

if TYPE_CHECKING:
    from .attention import PackedAttention

_CACHED_LAYOUTS = 256


@dataclass
class PackedAttnMetadata:
    """Layout of a packed batch.

    Attributes:
        cu_seqlens: int32 [S + 1] on the device: first token of each segment and the end of the
            last; unused segments are empty (they repeat the last offset).
        segment_lengths: The same on the host, for the reference and for checks.
        max_segment_len: Upper bound of the segment lengths; a constant of a captured graph.
        attention: The form of attention that reads this metadata.
        tiles: int32 [N, 4] on the device, see ``tile_attention``; unused tiles are zeros. None for
            forms that read none.
    """

    cu_seqlens: torch.Tensor
    segment_lengths: tuple[int, ...]
    max_segment_len: int
    attention: PackedAttention
    tiles: torch.Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the offsets are."""
        return self.cu_seqlens.device

    @property
    def max_segments(self) -> int:
        """Segments the offsets have room for."""
        return self.cu_seqlens.numel() - 1

    def refresh(self, segment_lengths: Sequence[int]) -> None:
        """Writes a new layout into the existing tensors.

        Args:
            segment_lengths: Tokens per segment.

        Raises:
            ValueError: More segments than there is room for, or one above ``max_segment_len``.
        """
        spare = self.max_segments - len(segment_lengths)
        if spare < 0:
            raise ValueError(
                f"{len(segment_lengths)} segments do not fit metadata for {self.max_segments}"
            )
        if max(segment_lengths, default=0) > self.max_segment_len:
            raise ValueError(
                f"a segment of {max(segment_lengths)} tokens is longer than the bound of this "
                f"metadata, {self.max_segment_len}"
            )
        lengths, pinned = tuple(segment_lengths), self.cu_seqlens.device.type == "cuda"
        self.cu_seqlens.copy_(_offsets(lengths, self.max_segments, pinned), non_blocking=True)
        queries = self.attention.tile_queries
        if self.tiles is not None and queries is not None:
            tiles = _tiles(lengths, self.tiles.shape[0], queries, pinned)
            self.tiles.copy_(tiles, non_blocking=True)
        self.segment_lengths = lengths

    def for_one_run(self, segment_lengths: Sequence[int]) -> PackedAttnMetadata | None:
        """The part that one layout takes, with the attention that suits it.

        Args:
            segment_lengths: Tokens per segment.

        Returns:
            Metadata of exactly this layout in the same tensors, or None without room for it.
        """
        count, longest, tokens = len(segment_lengths), max(segment_lengths), sum(segment_lengths)
        attention = self.attention.shaped(tokens, longest)
        needed = _num_tiles(attention, segment_lengths)
        if count > self.max_segments or (self.tiles is not None and needed > len(self.tiles)):
            return None
        tiles = None if self.tiles is None else self.tiles[:needed]
        # Exactly this layout: empty segments and a loose bound cost attention blocks.
        made = replace(
            self,
            cu_seqlens=self.cu_seqlens[: count + 1],
            max_segment_len=longest,
            attention=attention,
            tiles=tiles,
        )
        made.refresh(segment_lengths)
        return made


def _num_tiles(attention: PackedAttention, segment_lengths: Sequence[int]) -> int:
    queries = attention.tile_queries
    return 0 if queries is None else sum(-(-n // queries) for n in segment_lengths)


# Layouts repeat; the tensors are only read. Pinned, so that a copy does not wait for the device.
@lru_cache(_CACHED_LAYOUTS)
def _offsets(segment_lengths: tuple[int, ...], slots: int, pinned: bool) -> torch.Tensor:
    """int32 [slots + 1]: the last offset is repeated for unused slots."""
    offsets = list(accumulate(segment_lengths, initial=0))
    offsets += offsets[-1:] * (slots + 1 - len(offsets))
    host = torch.tensor(offsets, dtype=torch.int32)
    return host.pin_memory() if pinned else host


@lru_cache(_CACHED_LAYOUTS)
def _tiles(
    segment_lengths: tuple[int, ...], slots: int, queries: int, pinned: bool
) -> torch.Tensor:
    """int32 [slots, TILE_FIELDS]: the tiles of a layout, then idle ones."""
    found = list_tiles(segment_lengths, queries)
    tiles = np.zeros((slots, TILE_FIELDS), dtype=np.int32)
    tiles[: len(found)] = found
    host = torch.from_numpy(tiles)
    return host.pin_memory() if pinned else host


def make_metadata(
    attention: PackedAttention,
    *,
    num_tokens: int,
    max_segments: int,
    max_segment_len: int,
    device: torch.device,
) -> PackedAttnMetadata:
    """Metadata with room for a number of tokens and segments, all empty.

    Args:
        attention: The form that is to read it; its shape is chosen for these numbers.
        num_tokens: Most tokens of a layout.
        max_segments: Most segments of a layout.
        max_segment_len: Most tokens of a segment.
        device: Where it lives.
    """
    cu_seqlens = torch.zeros(max_segments + 1, dtype=torch.int32, device=device)
    attention = attention.shaped(num_tokens, max_segment_len)
    tiles = None
    if attention.tile_queries is not None:
        slots = max_tiles(num_tokens, max_segments, attention.tile_queries)
        tiles = torch.zeros(slots, TILE_FIELDS, dtype=torch.int32, device=device)
    return PackedAttnMetadata(cu_seqlens, (), max_segment_len, attention, tiles)
