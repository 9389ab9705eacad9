# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Input and output of a chunked audio encoder: one bucket parameter, the number of chunks.

A clip is cut into chunks of mel frames; convolutions turn each into the same number of token rows.
Attention runs in windows of a few chunks, which are the segments. A short last chunk leaves rows
unused; they are attention segments of their own, and nobody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch

from ..graphs.adapter import EncoderGraphIOAdapter, EncoderGraphTensorSpec, Tensors
from ..graphs.buckets import Bucket
from ..graphs.cache import BoundedLRU
from ..graphs.layout import EncoderItem, SegmentRun
from ..graphs.staging import Placement

_SMALL_BUCKETS = (1, 2, 4, 6, 8, 10, 12, 15, 18, 22, 26, 30)
"""Chunks; 30 of a second each are what many clients cut a recording into."""
_CACHED_MASKS = 64


def halved(frames: int, times: int) -> int:
    """Columns left of a number of frames after convolutions of stride 2 (padded by 1)."""
    for _ in range(times):
        frames = -(-frames // 2)
    return frames


class ChunkGeometry(NamedTuple):
    """Sizes of a chunked audio encoder.

    Attributes:
        mel_bins: Rows of the input features.
        chunk_frames: Mel frames of a whole chunk.
        window_chunks: Chunks that attend to each other.
        mask_short_clips: Give a clip under one chunk what it would be alone: no trace of the
            frames that fill up its chunk.
    """

    mel_bins: int
    chunk_frames: int
    window_chunks: int
    mask_short_clips: bool

    @property
    def chunk_tokens(self) -> int:
        """Token rows of a chunk."""
        return halved(self.chunk_frames, 3)

    def num_chunks(self, frames: int) -> int:
        """Chunks of a clip, the last one short."""
        return -(-frames // self.chunk_frames)

    def num_tokens(self, frames: int) -> int:
        """Tokens that a clip comes to."""
        whole, rest = divmod(frames, self.chunk_frames)
        return whole * self.chunk_tokens + halved(rest, 3)

    def segment_rows(self, frames: int) -> tuple[int, ...]:
        """Token rows of each window, unused rows of a short last chunk included."""
        whole, rest = divmod(self.num_chunks(frames), self.window_chunks)
        window = self.window_chunks * self.chunk_tokens
        return (window,) * whole + ((rest * self.chunk_tokens,) if rest else ())


class ChunkSpan(NamedTuple):
    """Frames of one clip that lie in chunks of a step.

    Attributes:
        item: Index of the clip in the batch.
        frame: First of them in the clip.
        chunk: First chunk in the step.
        whole: Chunks that they fill.
        rest: Frames in the chunk after those.
    """

    item: int
    frame: int
    chunk: int
    whole: int
    rest: int


class ChunkPlacement(Placement):
    """A step in chunked inputs: one copy per run of whole chunks, one for a short last chunk."""

    def __init__(
        self,
        inputs: Tensors,
        geometry: ChunkGeometry,
        spans: Sequence[ChunkSpan],
        masked: Hashable,
        masks: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        """Prepares the places.

        Args:
            inputs: Static inputs by name.
            geometry: Sizes of the encoder.
            spans: What comes from where, end to end.
            masked: What the column masks depend on.
            masks: Makes them: ``keep_half`` and ``keep_quarter``, shape and dtype of the inputs.
        """
        features = inputs["features"]  # [chunks, mel, frames]
        mel, size = geometry.mel_bins, geometry.chunk_frames
        self._masks = masks
        self._masked = (inputs["keep_half"], inputs["keep_quarter"])
        self._blanks: list[torch.Tensor] = []
        # Item, first frame, end, target and its shape.
        self._copies: list[tuple[int, int, int, torch.Tensor, tuple[int, ...]]] = []
        chunks = 0
        for item, frame, chunk, whole, rest in spans:
            end, last = frame + whole * size, chunk + whole
            if whole:
                target = features[chunk:last].transpose(0, 1)
                self._copies.append((item, frame, end, target, (mel, whole, size)))
            if rest:
                target = features[last, :, :rest]
                self._copies.append((item, end, end + rest, target, (mel, rest)))
                self._blanks.append(features[last, :, rest:])
            chunks = last + (rest > 0)
        self.num_tokens = chunks * geometry.chunk_tokens
        self.layout = (masked, tuple((s.chunk + s.whole, s.rest) for s in spans if s.rest))

    def write_layout(self) -> None:
        """See the base class."""
        for blank in self._blanks:
            blank.zero_()
        for static, mask in zip(self._masked, self._masks(), strict=True):
            static.copy_(mask)

    def write_rows(self, items: Sequence[EncoderItem]) -> None:
        """See the base class."""
        for item, start, end, target, shape in self._copies:
            part = items[item].rows["input_features"][:, start:end]
            target.copy_(part.view(shape), non_blocking=True)


class ChunkedAudioIOAdapter(EncoderGraphIOAdapter):
    """Inputs ``features`` [chunks, mel, frames] and the column masks of short clips."""

    def __init__(
        self,
        geometry: ChunkGeometry,
        *,
        out_width: int,
        dtype: torch.dtype,
        bakes_max_segment_len: bool,
    ) -> None:
        """Describes the encoder.

        Args:
            geometry: Its sizes.
            out_width: Width of the output rows.
            dtype: Of inputs and outputs.
            bakes_max_segment_len: The attention backend bakes the longest segment into a capture.
        """
        self.geometry = g = geometry
        per_chunk = g.chunk_tokens
        spec = EncoderGraphTensorSpec
        self._half, self._quarter = halved(g.chunk_frames, 1), halved(g.chunk_frames, 2)
        self.input_specs = {
            "features": spec((g.mel_bins, g.chunk_frames), dtype, per_chunk),
            "keep_half": spec((self._half,), dtype, per_chunk),
            "keep_quarter": spec((self._quarter,), dtype, per_chunk),
        }
        self.output_specs = {"features": spec((out_width,), dtype)}
        self._window = per_chunk * g.window_chunks
        self._bakes_max_segment_len = bakes_max_segment_len
        self._masks: BoundedLRU[tuple[torch.Tensor, torch.Tensor]] = BoundedLRU(
            _CACHED_MASKS, lambda masks: 1
        )

    def buckets(
        self,
        *,
        explicit: Sequence[tuple[int, int]] | None,
        max_segments: int | None,
        token_budget: int,
        enable_padding: bool,
    ) -> tuple[Bucket, ...]:
        """Contexts are chunks, as upstream counts them; each takes its tokens of the budget."""
        each = self.geometry.chunk_tokens
        if explicit is not None:
            for tokens, chunks in explicit:
                if tokens < chunks * each:
                    raise ValueError(
                        f"bucket ({tokens}, {chunks}): {chunks} audio chunks take {chunks * each} "
                        f"tokens, {each} each. Use [{chunks * each}, {chunks}]."
                    )
            return self._bounded([chunks for _, chunks in explicit])
        if max_segments is None:
            raise ValueError("either explicit buckets or max_segments is needed")
        if max_segments * each > token_budget:
            raise ValueError(
                f"max_batch_size: {max_segments} audio chunks take {max_segments * each} tokens, "
                f"{each} each, but the budget is {token_budget}. Set max_num_tokens: "
                f"{max_segments * each} or max_batch_size: {max(1, token_budget // each)}."
            )
        sizes = [n for n in _SMALL_BUCKETS if n < max_segments]
        while sizes and sizes[-1] >= _SMALL_BUCKETS[-1] and sizes[-1] * 5 // 4 < max_segments:
            sizes.append(sizes[-1] * 5 // 4)
        return self._bounded([*sizes, max_segments])

    def _bounded(self, chunks: Sequence[int]) -> tuple[Bucket, ...]:
        longest = self._window if self._bakes_max_segment_len else None
        each = self.geometry.chunk_tokens
        return tuple(Bucket(n * each, n, longest) for n in sorted(set(chunks)))

    def num_segment_slots(self, bucket: Bucket) -> int:
        """Windows, the unused rows of each, and the slack in windows."""
        return 2 * bucket.max_segments + -(-bucket.num_tokens // self._window)

    def segment_lengths(
        self, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> tuple[int, ...]:
        """Windows; the unused rows of a short last chunk follow as a segment of their own."""
        lengths: list[int] = []
        for run in runs:
            item = items[run.item]
            used = self.geometry.num_tokens(cast(int, item.layout)) - run.item_token
            for rows in item.segment_lengths[run.first_segment :][: run.num_segments]:
                attended = min(rows, used)
                lengths += [attended] if attended == rows else [attended, rows - attended]
                used -= rows
        return tuple(lengths)

    def pad(self, bucket: Bucket, segment_lengths: Sequence[int]) -> tuple[int, ...]:
        """See the base class."""
        whole, rest = divmod(bucket.num_tokens - sum(segment_lengths), self._window)
        return (*segment_lengths, *[self._window] * whole, *[rest] * (rest > 0))

    def place(
        self, inputs: Tensors, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> ChunkPlacement:
        """See the base class."""
        g = self.geometry
        spans: list[ChunkSpan] = []
        short: list[tuple[int, int]] = []  # chunk, frames
        at = 0
        for run in runs:
            frames = cast(int, items[run.item].layout)
            start = run.item_token // g.chunk_tokens * g.chunk_frames
            chunks = run.num_tokens // g.chunk_tokens
            whole, rest = divmod(min(frames - start, chunks * g.chunk_frames), g.chunk_frames)
            spans.append(ChunkSpan(run.item, start, at, whole, rest))
            if g.mask_short_clips and frames < g.chunk_frames:
                short.append((at, frames))
            at += chunks
        size = inputs["features"].shape[0]
        masks = partial(self._column_masks, size, tuple(short), inputs["features"])
        return ChunkPlacement(inputs, g, spans, (size, *short), masks)

    def clear(self, inputs: Tensors, first_token: int, end: int) -> None:
        """See the base class; masks are written for all chunks."""
        features, each = inputs["features"], self.geometry.chunk_tokens
        features[first_token // each : end // each].zero_()

    def _column_masks(
        self, num_chunks: int, short: tuple[tuple[int, int], ...], like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def build() -> tuple[torch.Tensor, torch.Tensor]:
            masks = []
            for columns, halvings in ((self._half, 1), (self._quarter, 2)):
                mask = torch.ones(num_chunks, columns, dtype=like.dtype)
                for chunk, frames in short:
                    mask[chunk, halved(frames, halvings) :] = 0
                if like.device.type == "cuda":
                    mask = mask.pin_memory()
                masks.append(mask.to(like.device, non_blocking=True))
            return masks[0], masks[1]

        return self._masks.get((like.device, num_chunks, short), build)
