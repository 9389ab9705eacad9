# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Metadata of captured packed attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..graphs.buckets import Bucket
from ..ops.attention import PackedAttention
from ..ops.packed_metadata import PackedAttnMetadata, make_metadata


class PackedMetadataProvider:
    """Builds ``PackedAttnMetadata`` per bucket; its tensors are refreshed in place."""

    def __init__(self, attention: PackedAttention, device: torch.device) -> None:
        """Takes the form of attention that the graphs use."""
        self._attention = attention
        self._device = device

    @property
    def graph_critical_attrs(self) -> tuple[str, ...]:
        """See ``EncoderMetadataProvider``."""
        return ("cu_seqlens",) if self._attention.tile_queries is None else ("cu_seqlens", "tiles")

    def build(self, bucket: Bucket, num_segments: int) -> PackedAttnMetadata:
        """Metadata sized from the bucket, not from the eager budget."""
        return make_metadata(
            self._attention,
            num_tokens=bucket.num_tokens,
            max_segments=num_segments,
            max_segment_len=bucket.max_segment_len or bucket.num_tokens,
            device=self._device,
        )

    def refresh_in_place(
        self, metadata: PackedAttnMetadata, segment_lengths: Sequence[int]
    ) -> None:
        """See ``EncoderMetadataProvider``."""
        metadata.refresh(segment_lengths)
