# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Packed non-causal attention: every segment attends to itself and to nothing else.

Three forms of one function: ``SegmentAttention`` is the plain reference (one SDPA per segment, its
layout is in Python ints, so it cannot be captured), ``BlockMaskAttention`` is static (one SDPA
under a block mask computed on the device from the offsets), ``VarlenAttention`` is torch's
variable-length flash attention (CUDA, half precision).

Shape letters: T tokens, H heads, D head size, S segments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, cast

import torch
import torch.nn.functional as F


@dataclass
class PackedAttnMetadata:
    """Layout of a packed batch.

    Attributes:
        cu_seqlens: int32 [S + 1] on the device: first token of each segment and the end of the
            last; unused segments are empty (they repeat the last offset).
        segment_lengths: The same on the host, for the reference and for checks.
        max_segment_len: Upper bound of the segment lengths; a constant of a captured graph.
        attention: The form of attention that reads this metadata.
    """

    cu_seqlens: torch.Tensor
    segment_lengths: tuple[int, ...]
    max_segment_len: int
    attention: PackedAttention

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
        offsets = list(accumulate(segment_lengths, initial=0))
        host = torch.tensor(offsets + offsets[-1:] * spare, dtype=torch.int32)
        if self.cu_seqlens.device.type == "cuda":
            host = host.pin_memory()
        self.cu_seqlens.copy_(host, non_blocking=True)
        self.segment_lengths = tuple(segment_lengths)


def make_metadata(
    attention: PackedAttention, *, max_segments: int, max_segment_len: int, device: torch.device
) -> PackedAttnMetadata:
    """Metadata with room for a number of segments, all empty."""
    cu_seqlens = torch.zeros(max_segments + 1, dtype=torch.int32, device=device)
    return PackedAttnMetadata(cu_seqlens, (), max_segment_len, attention)


class PackedAttention(Protocol):
    """A form of packed attention.

    Attributes:
        name: Shown in reports.
        bakes_max_segment_len: A captured call only serves segments up to the metadata's bound.
    """

    name: str
    bakes_max_segment_len: bool

    def prepare(self, metadata: PackedAttnMetadata, num_tokens: int) -> torch.Tensor | None:
        """What all layers share.

        Args:
            metadata: Layout of the batch.
            num_tokens: Rows of the batch, slack included.

        Returns:
            A tensor for ``__call__`` (bool [T, T] for the block mask), or None.
        """
        ...

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """softmax(q k^T / sqrt(D)) v within each segment.

        Args:
            q: Queries [T, H, D], float.
            k: Keys [T, H, D], dtype of q.
            v: Values [T, H, D], dtype of q.
            metadata: Layout of the batch.
            prepared: What ``prepare`` returned for it, bool [T, T] or None.

        Returns:
            [T, H, D], dtype of q.
        """
        ...


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, H, T, D]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.squeeze(0).transpose(0, 1)


class _NothingShared:
    def prepare(self, metadata: PackedAttnMetadata, num_tokens: int) -> torch.Tensor | None:
        """Nothing to share.

        Returns:
            None where ``BlockMaskAttention`` has a bool tensor [T, T].
        """
        return None


class SegmentAttention(_NothingShared):
    """The reference: one dense SDPA for each segment, lengths from the host."""

    name = "segments"
    bakes_max_segment_len = False

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """See ``PackedAttention``: q, k, v [T, H, D] float; prepared None; returns [T, H, D]."""
        lengths = metadata.segment_lengths
        parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
        return torch.cat([_sdpa(*part, mask=None) for part in parts])


class BlockMaskAttention:
    """Static: one SDPA under a [T, T] mask made on the device from the offsets."""

    name = "block_mask"
    bakes_max_segment_len = False

    def prepare(self, metadata: PackedAttnMetadata, num_tokens: int) -> torch.Tensor | None:
        """The mask.

        Returns:
            bool [T, T], true where two tokens share a segment.
        """
        tokens = torch.arange(num_tokens, dtype=torch.int32, device=metadata.cu_seqlens.device)
        segment = torch.searchsorted(metadata.cu_seqlens[1:], tokens, right=True)  # [T]
        return segment[:, None] == segment[None, :]

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """As ``PackedAttention``: q, k, v [T, H, D] float; prepared bool [T, T]; -> [T, H, D]."""
        return _sdpa(q, k, v, prepared)


class VarlenAttention(_NothingShared):
    """torch's variable-length flash attention; the longest segment is baked into a capture."""

    name = "varlen"
    bakes_max_segment_len = True

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
    ) -> torch.Tensor:
        """See ``PackedAttention``: q, k, v [T, H, D] half; prepared None; returns [T, H, D]."""
        from torch.nn.attention.varlen import varlen_attn

        cu, longest = metadata.cu_seqlens, metadata.max_segment_len
        # The arguments of torch 2.11; later versions only add keywords. No window: full attention.
        out = varlen_attn(q, k, v, cu, cu, longest, longest)
        return cast(torch.Tensor, out)  # a tuple only when auxiliary outputs are asked for


_assumed_device: ContextVar[torch.device | None] = ContextVar("assumed_device", default=None)


@contextlib.contextmanager
def attention_as_on(device: torch.device) -> Iterator[None]:
    """Makes ``attention_for`` answer as for another device: to plan a capture where there is none.

    Args:
        device: The device that is asked about, for this thread and inside the ``with`` only.
    """
    token = _assumed_device.set(device)
    try:
        yield
    finally:
        _assumed_device.reset(token)


def attention_for(device: torch.device, dtype: torch.dtype, *, captured: bool) -> PackedAttention:
    """The form to use on a device.

    Args:
        device: Where the encoder runs.
        dtype: Its activations.
        captured: The call becomes part of a graph, whose layout is refreshed in place.

    Returns:
        Variable-length flash attention on CUDA in half precision; elsewhere the block mask inside
        a graph and one SDPA per segment outside.
    """
    device = _assumed_device.get() or device
    if device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
        return VarlenAttention()
    return BlockMaskAttention() if captured else SegmentAttention()
