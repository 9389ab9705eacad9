# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Upstream's TRTLLM or FlashInfer attention inside our towers, for who chooses it.

``TRTLLM_EXT_VISION_ATTENTION=TRTLLM`` (or ``FLASHINFER``) puts upstream's attention where ours
would be. Its metadata are then upstream's: one object a captured shape, made for its sizes and
refreshed in place; the runner captures the largest bucket first, so that a workspace which all
share has its final size before the others, and checks that nothing a graph reads has moved. What
the backend bakes into a capture, the longest segment, is the bucket's bound.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from ..graphs.buckets import Bucket
from .probe import ATTENTION, Missing, find

VARIABLE = "TRTLLM_EXT_VISION_ATTENTION"
OURS = "packed"
BACKENDS = ("TRTLLM", "FLASHINFER")
_CRITICAL = (
    "_seq_lens_cuda",
    "cu_q_seqlens",
    "workspace_buffer",
    "_ragged_qo_indptr_buf",
    "_ragged_kv_indptr_buf",
)


def chosen_backend() -> str:
    """What the environment asks for: ours, or one of upstream's.

    Raises:
        ValueError: It asks for something else.
    """
    name = os.environ.get(VARIABLE, OURS)
    if name not in (OURS, *BACKENDS):
        raise ValueError(f"{VARIABLE}={name!r} is unknown; allowed: {', '.join((OURS, *BACKENDS))}")
    return name


@dataclass(frozen=True)
class UpstreamAttention:
    """A form of packed attention (``ops.attention.PackedAttention``) that upstream computes.

    Attributes:
        backend: TRTLLM or FLASHINFER.
        attention: Upstream's attention object.
        metadata_cls: Its class of metadata.
        full_mask: Upstream's name for attention without a mask.
        device: Where it computes.
    """

    backend: str
    attention: Any
    metadata_cls: Any
    full_mask: Any
    device: torch.device
    bakes_max_segment_len: ClassVar[bool] = True
    short_segment_len: ClassVar[int | None] = None

    @property
    def name(self) -> str:
        """One for each backend: what is fastest with one need not be with the other."""
        return f"upstream {self.backend}"

    @property
    def tile_queries(self) -> int | None:
        """None: no tiles."""
        return None

    def shaped(self, num_tokens: int, longest_segment: int) -> UpstreamAttention:
        """There is one shape."""
        return self

    def prepare(self, metadata: Any, num_tokens: int) -> torch.Tensor | None:
        """Nothing that layers share beside the metadata.

        Returns:
            None where another form has a bool tensor [T, T].
        """
        return None

    def metadata(
        self, *, num_tokens: int, max_segments: int, max_segment_len: int, graph: bool = False
    ) -> UpstreamMetadata:
        """Upstream's metadata with room for so much.

        Args:
            num_tokens: Most tokens of a layout.
            max_segments: Most segments.
            max_segment_len: Longest segment.
            graph: Its tensors are refreshed in place.
        """
        layout = {"kv_layout": "NHD"} if self.backend == "FLASHINFER" else {}
        made = self.metadata_cls(
            max_num_requests=max_segments,
            max_num_tokens=num_tokens,
            kv_cache_manager=None,
            **layout,
        )
        made.is_cuda_graph = graph
        if graph and self.backend == "TRTLLM" and hasattr(made, "cu_q_seqlens"):
            # Upstream makes new offsets at every step unless there are some to refresh.
            offsets = torch.zeros(max_segments + 1, dtype=torch.int32, device=self.device)
            made.cu_q_seqlens = made.cu_kv_seqlens = offsets
        return UpstreamMetadata(self, made, num_tokens, max_segments, max_segment_len, self.device)

    def provider(self) -> UpstreamMetadataProvider:
        """Metadata of graphs."""
        return UpstreamMetadataProvider(self)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        metadata: UpstreamMetadata,
        prepared: torch.Tensor | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """softmax(q k^T / sqrt(D)) v within each segment.

        Args:
            q: Queries [T, H, D], half.
            k: Keys [T, H, D], dtype of q.
            v: Values [T, H, D], dtype of q.
            metadata: Layout of the batch.
            prepared: None.
            out: Where to, [T, H, D], dtype of q; by default a new tensor.

        Returns:
            [T, H, D], dtype of q.
        """
        parts: tuple[torch.Tensor | None, ...] = tuple(x.flatten(1) for x in (q, k, v))
        if self.attention.support_fused_qkv():
            parts = (torch.cat([x.flatten(1) for x in (q, k, v)], dim=1), None, None)
        # A process-wide flag of upstream's, left on by a compiled decoder, would choose other ops.
        compiling = find("tensorrt_llm._torch.utils:torch_compiling")
        with compiling(False) if compiling else contextlib.nullcontext():
            attended = self.attention.forward(
                *parts, metadata.upstream, attention_mask=self.full_mask
            ).view(q.shape)
        return attended if out is None else out.copy_(attended)


@dataclass
class UpstreamMetadata:
    """Upstream's metadata of a packed batch.

    Attributes:
        attention: The form that reads them.
        upstream: Upstream's object.
        num_tokens: Tokens there is room for.
        max_segments: Segments there is room for; in a graph, empty ones fill it up.
        max_segment_len: Bound of the longest segment.
        device: Where it is.
        segment_lengths: The layout, on the host.
    """

    attention: UpstreamAttention
    upstream: Any
    num_tokens: int
    max_segments: int
    max_segment_len: int
    device: torch.device
    segment_lengths: tuple[int, ...] = field(default=())

    def __getattr__(self, name: str) -> Any:
        if name in _CRITICAL:  # the runner checks their addresses here
            return getattr(self.upstream, name)
        raise AttributeError(name)

    def refresh(self, segment_lengths: Sequence[int]) -> None:
        """Writes a new layout into upstream's tensors.

        Args:
            segment_lengths: Tokens per segment.

        Raises:
            ValueError: More segments than there is room for, or one above the bound.
        """
        spare = self.max_segments - len(segment_lengths)
        longest = max(segment_lengths, default=0)
        if spare < 0 or longest > self.max_segment_len:
            raise ValueError(
                f"{len(segment_lengths)} segments, the longest of {longest} tokens, do not fit "
                f"metadata for {self.max_segments} of up to {self.max_segment_len}"
            )
        meta, pinned = self.upstream, torch.cuda.is_available()
        # In a graph the number of sequences is baked: unused ones are empty.
        lengths = [*segment_lengths, *[0] * (spare if meta.is_cuda_graph else 0)]
        seq_lens = torch.tensor(lengths, dtype=torch.int32, pin_memory=pinned)
        meta.num_contexts = len(lengths)
        meta.request_ids = list(range(1, len(lengths) + 1))
        meta.prompt_lens = lengths
        meta.seq_lens = seq_lens
        meta.max_seq_len = self.max_segment_len
        offsets = getattr(meta, "cu_q_seqlens", None)
        if isinstance(offsets, torch.Tensor):
            ends = torch.zeros(len(lengths) + 1, dtype=torch.int32, pin_memory=pinned)
            torch.cumsum(seq_lens, 0, out=ends[1:])
            offsets.copy_(ends, non_blocking=True)
        bind = getattr(meta, "bind_encoder_cuda_graph_seq_lens", None)
        if bind is not None and meta.is_cuda_graph:
            bind(meta.seq_lens, len(lengths))
        prepare = getattr(meta, "prepare_encoder_only", None) or meta.prepare
        prepare()
        self.segment_lengths = tuple(segment_lengths)

    def for_one_run(self, segment_lengths: Sequence[int]) -> UpstreamMetadata | None:
        """Itself with a layout, or None without room for it.

        Args:
            segment_lengths: Tokens per segment.
        """
        longest, tokens = max(segment_lengths), sum(segment_lengths)
        room = (self.max_segments, self.max_segment_len, self.num_tokens)
        if any(
            n > most for n, most in zip((len(segment_lengths), longest, tokens), room, strict=True)
        ):
            return None
        self.refresh(segment_lengths)
        return self


class UpstreamMetadataProvider:
    """``EncoderMetadataProvider`` over upstream's metadata."""

    def __init__(self, attention: UpstreamAttention) -> None:
        """Takes the form of attention that the graphs use."""
        self._attention = attention
        self._attributes: tuple[str, ...] = ()

    @property
    def graph_critical_attrs(self) -> tuple[str, ...]:
        """Those that the first metadata had as tensors."""
        return self._attributes

    def build(self, bucket: Bucket, num_segments: int) -> UpstreamMetadata:
        """Metadata sized from the bucket, with a first layout: some of its tensors appear then."""
        made = self._attention.metadata(
            num_tokens=bucket.num_tokens,
            max_segments=num_segments,
            max_segment_len=bucket.max_segment_len or bucket.num_tokens,
            graph=True,
        )
        made.refresh(bucket.even_segments)
        self._attributes = tuple(
            name
            for name in _CRITICAL
            if isinstance(getattr(made.upstream, name, None), torch.Tensor)
        )
        return made

    def refresh_in_place(self, metadata: UpstreamMetadata, segment_lengths: Sequence[int]) -> None:
        """See ``EncoderMetadataProvider``."""
        metadata.refresh(segment_lengths)


def upstream_attention(
    backend: str, num_heads: int, head_dim: int, device: torch.device
) -> UpstreamAttention:
    """Upstream's attention for one of our towers.

    Args:
        backend: TRTLLM or FLASHINFER.
        num_heads: H.
        head_dim: D.
        device: Where the tower is.

    Raises:
        ValueError: The installed version does not have it.
    """
    create = find(*(f"{package}.utils:create_attention" for package in ATTENTION))
    look_up = find(*(f"{package}.utils:get_attention_backend" for package in ATTENTION))
    mask = find(*(f"{package}.interface:PredefinedAttentionMask.FULL" for package in ATTENTION))
    missing = next((x for x in (create, look_up, mask) if isinstance(x, Missing)), None)
    if missing is not None:
        raise ValueError(f"{VARIABLE}={backend}: {missing.reason}; unset it for our attention")
    attention = create(backend, 0, num_heads, head_dim, num_kv_heads=num_heads)
    return UpstreamAttention(backend, attention, look_up(backend).Metadata, mask, device)
