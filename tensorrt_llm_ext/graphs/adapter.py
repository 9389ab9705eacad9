# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What a graph needs to know about an encoder's inputs and outputs.

``EncoderGraphIOAdapter`` says which shapes exist, their buffers, what fits, how to pad, fill and
read back. ``PackedEncoderGraphIOAdapter`` is the default: one token axis, segments end to end. An
encoder with other axes (audio: chunks in, fewer rows out, a mask) brings an adapter of its own;
the runner knows nothing of it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import torch

from .buckets import SLACK_SEGMENTS, Bucket, bounded, ladder, short_and_long, with_more_room
from .layout import AttentionLayout, EncoderItem, SegmentRun, joined_runs
from .outputs import OutputBlock, output_blocks
from .packed_placement import (
    BuildLayout,
    LayoutPart,
    LayoutParts,
    PackedPlacement,
    RowCopy,
    RowSpan,
)
from .staging import Placement

M = TypeVar("M")
Tensors = dict[str, torch.Tensor]

_MIN_SLACK_SEGMENT = 64


class EncoderGraphTensorSpec(NamedTuple):
    """Shape of one static tensor.

    Attributes:
        shape: The axes after the first.
        dtype: Element type.
        tokens_per_row: Tokens for each row of the first axis (1 for per-token inputs, the merge
            unit for merged outputs).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    tokens_per_row: int = 1

    def rows(self, num_tokens: int) -> int:
        """Rows of the first axis for a number of tokens."""
        return num_tokens // self.tokens_per_row

    def allocate(self, num_tokens: int, device: torch.device) -> torch.Tensor:
        """Makes a zeroed buffer.

        Args:
            num_tokens: Tokens it has to hold.
            device: Where it lives.

        Returns:
            Tensor [num_tokens / tokens_per_row, *shape] of ``dtype``, zeros: rows that no request
            ever wrote have to be finite.
        """
        return torch.zeros(self.rows(num_tokens), *self.shape, dtype=self.dtype, device=device)


class EncoderMetadataProvider(Protocol[M]):
    """Builds the attention metadata of a captured shape once, and refreshes it in place.

    Attributes:
        graph_critical_attrs: Names of the metadata's tensors that captured kernels read. Their
            addresses are checked after every refresh.
    """

    @property
    def graph_critical_attrs(self) -> Sequence[str]:
        """See the class."""
        ...

    def build(self, bucket: Bucket, num_segments: int) -> M:
        """Metadata sized from a shape and its segment slots (slack segments included)."""
        ...

    def refresh_in_place(self, metadata: M, segment_lengths: AttentionLayout) -> None:
        """Writes a new layout into the existing tensors; unused slots become empty segments."""
        ...


class EncoderGraphIOAdapter(abc.ABC):
    """Shapes, buffers, padding and copying of one encoder."""

    input_specs: Mapping[str, EncoderGraphTensorSpec]
    output_specs: Mapping[str, EncoderGraphTensorSpec]

    @abc.abstractmethod
    def buckets(
        self,
        *,
        explicit: Sequence[tuple[int, int]] | None,
        max_segments: int | None,
        token_budget: int,
        enable_padding: bool,
    ) -> tuple[Bucket, ...]:
        """The shapes to capture for a configuration; raises ValueError for one that cannot work."""

    def roomier(self, bucket: Bucket) -> Bucket | None:
        """A shape of a few more tokens that is worth trying in a bucket's place, if there is one.

        The encoder's region then runs at that number of tokens; requests, packing and reports know
        the bucket alone.
        """
        return None

    @abc.abstractmethod
    def num_segment_slots(self, bucket: Bucket) -> int:
        """Segments the bucket's metadata has room for, slack segments included."""

    def segment_lengths(
        self, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> AttentionLayout:
        """Attention segments of a step's runs, end to end; they cover its tokens exactly.

        By default the items' segments. An encoder that leaves rows unused inside a segment makes
        pieces of their own of them; one with several layouts returns them all.
        """
        lengths: list[int] = []
        for item, first, count, *_ in runs:
            lengths += items[item].segment_lengths[first : first + count]
        return tuple(lengths)

    @abc.abstractmethod
    def pad(self, bucket: Bucket, segment_lengths: AttentionLayout) -> AttentionLayout:
        """Segment lengths that fill the bucket: the real ones, then the slack in pieces."""

    def layout_of(self, bucket: Bucket, segments: tuple[int, ...] = ()) -> AttentionLayout:
        """What a bucket holds that has segments of these lengths and slack, by default slack alone.

        Warm-ups and captures go by slack: the kernels are the same, and one long segment would keep
        them busy for nothing.
        """
        return self.pad(bucket, segments)

    def attending_pairs(self, layout: AttentionLayout) -> int:
        """Pairs of tokens that attend to each other, which is what attention takes time for."""
        return sum(length * length for length in layout)

    @property
    def arena_specs(self) -> Mapping[str, EncoderGraphTensorSpec]:
        """Tensors behind the inputs; by default the inputs."""
        return self.input_specs

    def allocate_inputs(self, num_tokens: int, device: torch.device) -> Tensors:
        """Static inputs that hold ``num_tokens`` tokens, by default one for each spec."""
        return {name: s.allocate(num_tokens, device) for name, s in self.arena_specs.items()}

    def view_inputs(self, arena: Tensors, bucket: Bucket) -> Tensors:
        """The part of the arena that a bucket uses (same addresses, fewer rows)."""
        return {n: arena[n][: s.rows(bucket.num_tokens)] for n, s in self.arena_specs.items()}

    @abc.abstractmethod
    def place(
        self, inputs: Tensors, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> Placement:
        """Where the runs of a step lie in the inputs, from row 0 on; holds for all such items."""

    @abc.abstractmethod
    def clear(self, inputs: Tensors, first_token: int, end: int) -> None:
        """Zeroes the rows of tokens that come with the items, and what no layout is written over.

        What nobody wrote has to be finite (0 * NaN is NaN).
        """

    def fill(
        self, inputs: Tensors, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> None:
        """Copies the runs into the inputs from row 0 on and clears the rows after them."""
        placement = self.place(inputs, items, runs)
        name, spec = next(iter(self.arena_specs.items()))
        self.clear(inputs, placement.num_tokens, len(inputs[name]) * spec.tokens_per_row)
        placement.write_layout()
        placement.write_rows(items)

    @cached_property
    def output_blocks(self) -> tuple[OutputBlock, ...]:
        """The outputs, those of one spec together."""
        return output_blocks(self.output_specs)

    def allocate_outputs(self, num_tokens: int, device: torch.device) -> Tensors:
        """Zeroed tensor [num_tokens / tokens_per_row, *shape] for each output."""
        outputs: Tensors = {}
        for block in self.output_blocks:
            shape, dtype = block.shape(num_tokens), block.spec.dtype
            outputs |= block.named(torch.zeros(shape, dtype=dtype, device=device))
        return outputs

    def view_outputs(self, arena: Tensors, num_tokens: int) -> Tensors:
        """The outputs of a number of tokens, at the start of the memory of each block."""
        outputs: Tensors = {}
        for block in self.output_blocks:
            outputs |= block.named(block.behind(arena, num_tokens))
        return outputs

    def read(self, outputs: Tensors, runs: Sequence[SegmentRun], sinks: Tensors) -> None:
        """Copies the rows of each run to their place in the caller's tensors.

        Args:
            outputs: Results of a step, by name: [tokens / tokens_per_row, *shape], ``dtype`` of the
                output's spec.
            runs: The runs of the step, in its order.
            sinks: Tensors of the whole batch by name, items end to end, same axes and dtype.
        """
        for source, target, num_tokens in joined_runs(runs):
            for name, spec in self.output_specs.items():
                rows, at, to = (spec.rows(n) for n in (num_tokens, source, target))
                sinks[name][to : to + rows].copy_(outputs[name][at : at + rows])


class PackedEncoderGraphIOAdapter(EncoderGraphIOAdapter):
    """Inputs with one token axis.

    Two kinds of inputs: rows that come with the items (pixels), and the *layout*: per-token
    integers and floats that depend on the item's geometry alone (positions, interpolation taps).
    The layout is built with numpy and kept on the host per geometry; on the device it lives in one
    int32 arena (floats as their bits), so that a step needs one copy of it.
    """

    def __init__(
        self,
        *,
        row_specs: Mapping[str, EncoderGraphTensorSpec],
        output_specs: Mapping[str, EncoderGraphTensorSpec],
        layout_specs: Mapping[str, EncoderGraphTensorSpec] | None = None,
        build_layout: BuildLayout | None = None,
        unit: int = 1,
        rowless_tokens: int = 0,
        bakes_max_segment_len: bool = False,
        short_segment_len: int | None = None,
    ) -> None:
        """Describes the encoder.

        Args:
            row_specs: Inputs taken from ``EncoderItem.rows``.
            output_specs: Outputs.
            layout_specs: Host-built inputs, each one axis of 4-byte elements, one row a token.
            build_layout: (item layout, first segment, number of segments) -> array
                [tokens, *shape] for each layout input.
            unit: Tokens a merger joins; every segment is a multiple of it.
            rowless_tokens: Tokens at the end of every segment that have no input rows (learned
                ones); their rows are cleared.
            bakes_max_segment_len: The attention backend bakes the longest segment into a capture.
            short_segment_len: Attention serves segments up to this faster in another shape: larger
                buckets are captured in both.

        Raises:
            ValueError: A layout input is not one axis of 4-byte elements, or nothing builds it.
        """
        layout_specs = layout_specs or {}
        if layout_specs and build_layout is None:
            raise ValueError(f"layout inputs {sorted(layout_specs)} need build_layout")
        for name, spec in layout_specs.items():
            if len(spec.shape) != 1 or spec.dtype.itemsize != 4 or spec.tokens_per_row != 1:
                raise ValueError(
                    f"layout input {name!r} is {spec}: it needs shape (n,), a 4-byte dtype and one "
                    "row per token"
                )
        self.row_specs = row_specs
        self.layout_specs = layout_specs
        self.input_specs = {**row_specs, **layout_specs}
        self.output_specs = output_specs
        self.unit = unit
        self._rowless = rowless_tokens
        self._bakes_max_segment_len = bakes_max_segment_len
        self._short_segment_len = short_segment_len
        self._layout_width = sum(spec.shape[0] for spec in layout_specs.values())
        self._layout_parts = LayoutParts(
            layout_specs, build_layout or (lambda layout, first_segment, num_segments: {})
        )

    def buckets(
        self,
        *,
        explicit: Sequence[tuple[int, int]] | None,
        max_segments: int | None,
        token_budget: int,
        enable_padding: bool,
    ) -> tuple[Bucket, ...]:
        """See the base class. A ragged explicit token count is rounded up to whole merge units."""
        if explicit is None:
            if max_segments is None:
                raise ValueError("either explicit buckets or max_segments is needed")
            chosen = ladder(
                token_budget, max_segments, unit=self.unit, rowless_tokens=self._rowless
            )
        else:
            chosen = ()
            for num_tokens, contexts in explicit:
                ragged = -num_tokens % self.unit
                if ragged and not enable_padding:
                    raise ValueError(
                        f"bucket ({num_tokens}, {contexts}) can never be replayed: this encoder's "
                        f"token counts are multiples of {self.unit} and enable_padding is false. "
                        f"Use {num_tokens + ragged} tokens, or set enable_padding: true."
                    )
                chosen += (Bucket(num_tokens + ragged, contexts),)
        # Explicit buckets mean what they say; the ladder is ours to refine.
        refine, short = explicit is None, self._short_segment_len
        if self._bakes_max_segment_len:
            chosen = tuple(v for b in chosen for v in bounded(b, unit=self.unit, refine=refine))
        elif short is not None and refine:
            chosen = tuple(v for b in chosen for v in short_and_long(b, short, unit=self.unit))
        return tuple(sorted(set(chosen)))

    def roomier(self, bucket: Bucket) -> Bucket | None:
        """See the base class."""
        return with_more_room(bucket, unit=self.unit)

    def _slack_segment(self, bucket: Bucket) -> int:
        """Tokens of a slack piece: short, because attention in it is wasted work."""
        piece = max(_MIN_SLACK_SEGMENT, -(-bucket.num_tokens // SLACK_SEGMENTS))
        return piece if bucket.max_segment_len is None else min(piece, bucket.max_segment_len)

    def num_segment_slots(self, bucket: Bucket) -> int:
        """Real segments, and the slack pieces of a bucket with next to nothing in it."""
        return bucket.max_segments + -(-bucket.num_tokens // self._slack_segment(bucket))

    def pad(self, bucket: Bucket, segment_lengths: AttentionLayout) -> AttentionLayout:
        """See the base class."""
        slack = bucket.num_tokens - sum(segment_lengths)
        whole, rest = divmod(slack, self._slack_segment(bucket))
        return (*segment_lengths, *[self._slack_segment(bucket)] * whole, *[rest] * (rest > 0))

    @cached_property
    def arena_specs(self) -> Mapping[str, EncoderGraphTensorSpec]:
        """Row inputs, and one int32 arena for all layout inputs."""
        layout = EncoderGraphTensorSpec((self._layout_width,), torch.int32)
        return {**self.row_specs, "layout": layout}

    def allocate_inputs(self, num_tokens: int, device: torch.device) -> Tensors:
        """See the base class; layout inputs are views of their arena."""
        return self._with_layout_views(super().allocate_inputs(num_tokens, device))

    def view_inputs(self, arena: Tensors, bucket: Bucket) -> Tensors:
        """See the base class."""
        return self._with_layout_views(super().view_inputs(arena, bucket))

    def _with_layout_views(self, inputs: Tensors) -> Tensors:
        start = 0
        for name, spec in self.layout_specs.items():
            columns = inputs["layout"][:, start : start + spec.shape[0]]
            inputs[name] = columns.view(spec.dtype)
            start += spec.shape[0]
        return inputs

    def place(
        self, inputs: Tensors, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> PackedPlacement:
        """See the base class."""
        num_tokens = sum([run.num_tokens for run in runs])
        spans = list(self._row_spans(items, runs))
        return PackedPlacement(
            num_tokens,
            tuple(
                [
                    LayoutPart(items[item].layout, first_segment, num_segments, tokens)
                    for item, first_segment, num_segments, _, _, tokens in runs
                ]
            ),
            [
                RowCopy(name, spec, inputs[name], spans, num_tokens)
                for name, spec in self.row_specs.items()
            ],
            inputs["layout"],
            self._layout_parts,
        )

    def clear(self, inputs: Tensors, first_token: int, end: int) -> None:
        """See the base class; a layout is written for all tokens."""
        for name, spec in self.row_specs.items():
            inputs[name][spec.rows(first_token) : spec.rows(end)].zero_()

    def _row_spans(
        self, items: Sequence[EncoderItem], runs: Sequence[SegmentRun]
    ) -> Iterator[RowSpan]:
        """What can be copied at once."""
        token = 0
        for item, first_segment, num_segments, item_token, _, num_tokens in runs:
            if not self._rowless:
                yield RowSpan(item, item_token, token, num_tokens)
                token += num_tokens
                continue
            first = item_token - first_segment * self._rowless
            for length in items[item].segment_lengths[first_segment:][:num_segments]:
                yield RowSpan(item, first, token, length - self._rowless)
                first += length - self._rowless
                token += length
