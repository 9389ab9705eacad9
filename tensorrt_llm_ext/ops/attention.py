# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Packed non-causal attention: every segment attends to itself and to nothing else.

Four forms of one function: ``SegmentAttention`` is the plain reference (one SDPA per segment, its
layout is in Python ints, so it cannot be captured), ``BlockMaskAttention`` is static (one SDPA
under a block mask computed on the device from the offsets), ``TileAttention`` is our kernel and
``VarlenAttention`` torch's variable-length flash attention (both CUDA, half precision).

Shape letters: T tokens, H heads, D head size, S segments, N tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

import torch
import torch.nn.functional as F

from .kernels import HALF, HAS_TRITON, device_type
from .packed_metadata import PackedAttnMetadata
from .tile_attention import TALL, TileShape, attend_tiles, short_segment_len, tile_shape_for

AttentionBackend = Literal["auto", "tiles", "varlen", "static"]
"""Form of attention of a tower: chosen for its device, our kernel, torch's, or a block mask."""


class PackedAttention(Protocol):
    """A form of packed attention.

    Attributes:
        name: Shown in reports; what start-ups remember, they remember under it.
        bakes_max_segment_len: A captured call only serves segments up to the metadata's bound.
        short_segment_len: Tokens up to which segments are served faster by another shape of this
            form; None for a form of one shape.
        tile_queries: Rows of a query tile; None for forms that read no tiles.
    """

    bakes_max_segment_len: ClassVar[bool]

    @property
    def name(self) -> str:
        """See the class."""
        ...

    @property
    def short_segment_len(self) -> int | None:
        """See the class."""
        ...

    @property
    def tile_queries(self) -> int | None:
        """See the class."""
        ...

    def shaped(self, num_tokens: int, longest_segment: int) -> PackedAttention:
        """This form in its best shape for so many tokens and so long a segment."""
        ...

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
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """softmax(q k^T / sqrt(D)) v within each segment.

        Args:
            q: Queries [T, H, D], float.
            k: Keys [T, H, D], dtype of q.
            v: Values [T, H, D], dtype of q.
            metadata: Layout of the batch.
            prepared: What ``prepare`` returned for it, bool [T, T] or None.
            out: Where to, [T, H, D], dtype of q, heads side by side, any stride between tokens: q
                itself or no part of q, k and v; by default a new tensor.

        Returns:
            [T, H, D], dtype of q: ``out`` where it is given.
        """
        ...


def _sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # [1, H, T, D]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.squeeze(0).transpose(0, 1)


class _OneShape:
    short_segment_len: ClassVar[int | None] = None

    @property
    def tile_queries(self) -> int | None:
        return None

    def shaped(self, num_tokens: int, longest_segment: int) -> Any:
        return self


def _into(out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    return result if out is None else out.copy_(result)


class _NothingShared:
    def prepare(self, metadata: PackedAttnMetadata, num_tokens: int) -> torch.Tensor | None:
        """Nothing to share.

        Returns:
            None where ``BlockMaskAttention`` has a bool tensor [T, T].
        """
        return None


@dataclass(frozen=True)
class SegmentAttention(_NothingShared, _OneShape):
    """The reference: one dense SDPA for each segment, lengths from the host."""

    name: ClassVar[str] = "segments"
    bakes_max_segment_len: ClassVar[bool] = False

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``PackedAttention``: q, k, v [T, H, D] float; prepared None; returns [T, H, D]."""
        lengths = metadata.segment_lengths
        parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
        return _into(out, torch.cat([_sdpa(*part, mask=None) for part in parts]))


@dataclass(frozen=True)
class BlockMaskAttention(_OneShape):
    """Static: one SDPA under a [T, T] mask made on the device from the offsets."""

    name: ClassVar[str] = "block_mask"
    bakes_max_segment_len: ClassVar[bool] = False

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
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ``PackedAttention``: q, k, v [T, H, D] float; prepared bool [T, T]; -> [T, H, D]."""
        return _into(out, _sdpa(q, k, v, prepared))


@dataclass(frozen=True)
class VarlenAttention(_NothingShared, _OneShape):
    """torch's variable-length flash attention; the longest segment is baked into a capture."""

    name: ClassVar[str] = "varlen"
    bakes_max_segment_len: ClassVar[bool] = True

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``PackedAttention``: q, k, v [T, H, D] half; prepared None; returns [T, H, D]."""
        from torch.nn.attention.varlen import varlen_attn

        cu, longest = metadata.cu_seqlens, metadata.max_segment_len
        # The arguments of torch 2.11; later versions only add keywords. No window: full attention.
        attended = varlen_attn(q, k, v, cu, cu, longest, longest)
        # A tuple only when auxiliary outputs are asked for.
        return _into(out, cast(torch.Tensor, attended))


@dataclass(frozen=True)
class TileAttention(_NothingShared):
    """Our kernel over a list of tiles; nothing about the layout is baked.

    Attributes:
        shape: How the work is cut.
        head_size: D, which decides what shape is best; None if nobody knows.
    """

    shape: TileShape = TALL
    head_size: int | None = None
    name: ClassVar[str] = "tiles"
    bakes_max_segment_len: ClassVar[bool] = False

    @property
    def short_segment_len(self) -> int | None:
        """See ``PackedAttention``."""
        return short_segment_len(self.head_size)

    @property
    def tile_queries(self) -> int | None:
        """Rows of a query tile."""
        return self.shape.queries

    def shaped(self, num_tokens: int, longest_segment: int) -> TileAttention:
        """See ``PackedAttention``."""
        shape = tile_shape_for(num_tokens, longest_segment, self.head_size)
        return TileAttention(shape, self.head_size)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: PackedAttnMetadata,
        prepared: torch.Tensor | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``PackedAttention``: q, k, v [T, H, D] half; prepared None; returns [T, H, D].

        Raises:
            ValueError: The metadata was made for a form without tiles.
        """
        if metadata.tiles is None:
            raise ValueError("metadata without tiles: make it with make_metadata(TileAttention())")
        if out is None:
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        return attend_tiles(q, k, v, metadata.tiles, self.shape, out=out)


def attention_for(
    device: torch.device,
    dtype: torch.dtype,
    *,
    captured: bool,
    backend: AttentionBackend = "auto",
    head_size: int | None = None,
) -> PackedAttention:
    """The form to use on a device.

    Args:
        device: Where the encoder runs.
        dtype: Its activations.
        captured: The call becomes part of a graph, whose layout is refreshed in place.
        backend: ``auto``, or a form by name.
        head_size: D, if it is known.

    Returns:
        On CUDA in half precision our kernel, without Triton torch's flash attention; elsewhere the
        block mask inside a graph and one SDPA per segment outside.

    Raises:
        ValueError: The backend is unknown, or does not run there.
    """
    if backend not in get_args(AttentionBackend):
        raise ValueError(
            f"attention backend {backend!r} is unknown; allowed: {list(get_args(AttentionBackend))}"
        )
    flash = device_type(device) == "cuda" and dtype in HALF
    if backend == "auto":
        backend = ("tiles" if HAS_TRITON else "varlen") if flash else "static"
    if backend == "static":
        return BlockMaskAttention() if captured else SegmentAttention()
    if not flash or (backend == "tiles" and not HAS_TRITON):
        raise ValueError(
            f"attention backend {backend!r} needs half precision on CUDA"
            f"{' and Triton' if backend == 'tiles' else ''}, this is {dtype} on {device}; use "
            "'auto'"
        )
    return TileAttention(head_size=head_size) if backend == "tiles" else VarlenAttention()
