# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Layout of a packed batch on the device, refreshed in place.

Shape letters: T tokens, S segments, N tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch

from .host_copy import copy_from_host
from .tile_attention import TILE_FIELDS, list_tiles, max_tiles

if TYPE_CHECKING:
    from .attention import PackedAttention

_CACHED_LAYOUTS = 256


@dataclass
class PackedAttnMetadata:
    """Layout of a packed batch.

    Attributes:
        memory: int32 [N * TILE_FIELDS + S + 1] on the device: tiles, which start at a multiple of
            16 bytes so, and offsets. One copy writes both.
        segment_lengths: Tokens per segment on the host, for the reference and for checks.
        max_segment_len: Upper bound of the segment lengths; a constant of a captured graph.
        attention: The form of attention that reads this metadata.
        num_tiles: N; 0 for forms that read none.
        cu_seqlens: int32 [S + 1], a view of the memory: first token of each segment and the end of
            the last; unused segments are empty (they repeat the last offset).
        tiles: int32 [N, TILE_FIELDS], likewise, see ``tile_attention``; unused tiles are zeros.
            None without any.
    """

    memory: torch.Tensor
    segment_lengths: tuple[int, ...]
    max_segment_len: int
    attention: PackedAttention
    num_tiles: int = 0
    cu_seqlens: torch.Tensor = field(init=False)
    tiles: torch.Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        """Makes the views."""
        self.cu_seqlens, self.tiles = self.memory, None
        if self.num_tiles:
            tile_values = self.num_tiles * TILE_FIELDS
            self.tiles = self.memory[:tile_values].view(-1, TILE_FIELDS)
            self.cu_seqlens = self.memory[tile_values:]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.memory.device

    @property
    def max_segments(self) -> int:
        """Segments the offsets have room for."""
        return self.cu_seqlens.numel() - 1

    def refresh(self, segment_lengths: Sequence[int]) -> None:
        """Writes a new layout into the existing tensors.

        Args:
            segment_lengths: Tokens per segment.

        Raises:
            ValueError: More segments or tiles than there is room for, or a segment above
                ``max_segment_len``.
        """
        slots, longest = self.max_segments, max(segment_lengths, default=0)
        if len(segment_lengths) > slots:
            raise ValueError(f"{len(segment_lengths)} segments do not fit metadata for {slots}")
        if longest > self.max_segment_len:
            raise ValueError(
                f"a segment of {longest} tokens is longer than the bound of this metadata, "
                f"{self.max_segment_len}"
            )
        lengths = tuple(segment_lengths)
        values = _values(lengths, slots, self.num_tiles, self.attention.tile_queries)
        copy_from_host([values], self.memory)
        self.segment_lengths = lengths

    def for_one_run(self, segment_lengths: Sequence[int]) -> PackedAttnMetadata | None:
        """Metadata of one layout, with the attention that suits it.

        Args:
            segment_lengths: Tokens per segment.

        Returns:
            Metadata of exactly this layout in the same memory, or None without room for it.
        """
        count, longest, tokens = len(segment_lengths), max(segment_lengths), sum(segment_lengths)
        attention = self.attention.shaped(tokens, longest)
        needed = _num_tiles(attention, segment_lengths)
        if count > self.max_segments or needed > self.num_tiles:
            return None
        # Exactly this layout: empty segments and a loose bound cost attention blocks.
        part = self.memory[: needed * TILE_FIELDS + count + 1]
        made = PackedAttnMetadata(part, (), longest, attention, needed)
        made.refresh(segment_lengths)
        return made


def _num_tiles(attention: PackedAttention, segment_lengths: Sequence[int]) -> int:
    queries = attention.tile_queries
    return 0 if queries is None else sum(-(-n // queries) for n in segment_lengths)


@lru_cache(_CACHED_LAYOUTS)
def _values(
    segment_lengths: tuple[int, ...], slots: int, num_tiles: int, queries: int | None
) -> np.ndarray:
    """int32 [N * TILE_FIELDS + slots + 1]: tiles, idle ones, offsets; the last one is repeated."""
    tile_values, count = num_tiles * TILE_FIELDS, len(segment_lengths)
    values = np.zeros(tile_values + slots + 1, dtype=np.int32)
    if queries is not None:
        tiles = list_tiles(segment_lengths, queries)
        if len(tiles) > num_tiles:  # the offsets lie behind
            raise ValueError(
                f"segments of {sum(segment_lengths)} tokens need {len(tiles)} tiles of attention; "
                f"this metadata has room for {num_tiles}, as it was made for fewer tokens"
            )
        values[: tiles.size] = tiles.ravel()
    offsets = values[tile_values:]
    offsets[: count + 1] = list(accumulate(segment_lengths, initial=0))
    offsets[count + 1 :] = offsets[count]
    return values


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
    attention = attention.shaped(num_tokens, max_segment_len)
    queries = attention.tile_queries
    slots = 0 if queries is None else max_tiles(num_tokens, max_segments, queries)
    size = slots * TILE_FIELDS + max_segments + 1
    memory = torch.zeros(size, dtype=torch.int32, device=device)
    return PackedAttnMetadata(memory, (), max_segment_len, attention, slots)
