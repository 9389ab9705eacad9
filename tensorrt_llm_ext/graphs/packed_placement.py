# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Staging of packed inputs: rows that come with the items, and layouts that the host builds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ..ops.host_copy import copy_from_host
from .cache import BoundedLRU
from .layout import EncoderItem
from .staging import Placement

if TYPE_CHECKING:
    from .adapter import EncoderGraphTensorSpec

LAYOUT_CACHE_BYTES = 64 << 20

BuildLayout = Callable[[Hashable, int, int], Mapping[str, np.ndarray]]


class LayoutPart(NamedTuple):
    """Consecutive segments of an item, as far as its layout goes.

    Attributes:
        layout: Of the item.
        first_segment: Of the part.
        num_segments: In the part.
        num_tokens: In the part.
    """

    layout: Hashable
    first_segment: int
    num_segments: int
    num_tokens: int


class LayoutParts:
    """Layout rows of parts of items, as the host built them."""

    def __init__(self, specs: Mapping[str, EncoderGraphTensorSpec], build: BuildLayout) -> None:
        """Takes the layout inputs, one axis of 4-byte elements each, and what makes them."""
        self._build = build
        self._inputs = [
            (name, spec.shape, np.dtype(str(spec.dtype).removeprefix("torch.")))
            for name, spec in specs.items()
        ]
        self._kept: BoundedLRU[np.ndarray] = BoundedLRU(
            LAYOUT_CACHE_BYTES, lambda rows: rows.nbytes
        )

    def rows(self, parts: Sequence[LayoutPart]) -> list[np.ndarray]:
        """Layout inputs of parts, side by side.

        Args:
            parts: The parts.

        Returns:
            For each, int32 [tokens, widths of all layout inputs], floats as their bits.

        Raises:
            ValueError: What was built does not fit the specs.
        """
        return [self._kept.get(part, partial(self._packed, part)) for part in parts]

    def _packed(self, part: LayoutPart) -> np.ndarray:
        layout, first_segment, num_segments, num_tokens = part
        built = self._build(layout, first_segment, num_segments)
        columns = []
        for name, shape, dtype in self._inputs:
            array = built[name]
            if array.shape != (num_tokens, *shape) or array.dtype != dtype:
                raise ValueError(
                    f"build_layout made {name!r} as {array.dtype} {list(array.shape)} for layout "
                    f"{layout!r}; its spec and the segments need {dtype} {[num_tokens, *shape]}"
                )
            columns.append(np.ascontiguousarray(array).view(np.int32))
        return np.concatenate(columns, axis=1)


class RowSpan(NamedTuple):
    """Tokens that are copied from one item in one piece.

    Attributes:
        item: Index of the item in the batch.
        item_token: First of them within the rows of the item.
        token: First of them within the step.
        num_tokens: How many.
    """

    item: int
    item_token: int
    token: int
    num_tokens: int


class RowCopy:
    """The copy of one row input."""

    def __init__(
        self,
        name: str,
        spec: EncoderGraphTensorSpec,
        static: torch.Tensor,
        spans: Sequence[RowSpan],
        num_tokens: int,
    ) -> None:
        """Prepares the places.

        Args:
            name: Of the input.
            spec: Of the input.
            static: The static input [rows, *shape], dtype of the spec.
            spans: What comes from where, in the order of the step.
            num_tokens: Tokens of the step, those without rows included.
        """
        self._name = name
        self._static = static
        self._end = spec.rows(num_tokens)
        # Item, first row, rows and their shape.
        self._sources: list[tuple[int, int, int, tuple[int, ...]]] = []
        self._places: list[tuple[int, int]] = []
        self.gaps: list[tuple[int, int]] = []  # rows inside the step that nothing is copied to
        each, end = spec.tokens_per_row, 0
        for item, item_token, token, count in spans:
            rows, start = count // each, token // each
            if start > end:
                self.gaps.append((end, start))
            end = start + rows
            self._sources.append((item, item_token // each, rows, (rows, *spec.shape)))
            self._places.append((start, end))
        if self._end > end:
            self.gaps.append((end, self._end))

    @cached_property
    def _joined(self) -> torch.Tensor:
        return self._static[: self._end]

    @cached_property
    def _targets(self) -> list[torch.Tensor]:
        return [self._static[start:end] for start, end in self._places]

    def clear_gaps(self) -> None:
        """Zeroes them."""
        for start, end in self.gaps:
            self._static[start:end].zero_()

    def copy(self, items: Sequence[EncoderItem]) -> None:
        """Copies the rows of the items, in one call; from pinned memory straight to their place."""
        name, sources, alike = self._name, [], not self.gaps
        dtype, device = self._static.dtype, self._static.get_device()
        for item, at, rows, shape in self._sources:
            source = items[item].rows[name]
            if at or source.shape != shape:  # a part of the item, or one that is not what it says
                source = source[at : at + rows]
                if source.shape != shape:
                    raise RuntimeError(
                        f"rows {name!r} of item {item} have size "
                        f"{list(items[item].rows[name].shape)}; its segments need "
                        f"{list(shape)} from row {at} on"
                    )
            if source.dtype is not dtype or source.get_device() != device:
                alike = False
            sources.append(source)
        if len(sources) == 1:
            self._targets[0].copy_(sources[0], non_blocking=True)
        elif alike:
            # One kernel that spreads well; the multi-tensor copy gives 64k elements to a block.
            torch.cat(sources, out=self._joined)
        else:
            torch._foreach_copy_(self._targets, sources, non_blocking=True)


class PackedPlacement(Placement):
    """A step in packed inputs."""

    def __init__(
        self,
        num_tokens: int,
        parts: tuple[LayoutPart, ...],
        copies: Sequence[RowCopy],
        layout: torch.Tensor,
        known: LayoutParts,
    ) -> None:
        """Describes the step.

        Args:
            num_tokens: Of the step.
            parts: Its parts, end to end.
            copies: Of the row inputs.
            layout: Layout of the bucket's tokens, int32 [tokens, width]: zeros behind the step.
            known: Layout rows by part.
        """
        self.num_tokens = num_tokens
        self.layout = (parts, len(layout), *(tuple(copy.gaps) for copy in copies))
        self._parts = parts
        self._copies = copies
        self._rows = layout
        self._known = known

    def write_layout(self) -> None:
        """See the base class."""
        for copy in self._copies:
            copy.clear_gaps()
        tokens, width = self._rows.shape
        if width:
            slack = np.zeros((tokens - self.num_tokens, width), dtype=np.int32)
            copy_from_host([*self._known.rows(self._parts), slack], self._rows)

    def write_rows(self, items: Sequence[EncoderItem]) -> None:
        """See the base class."""
        for copy in self._copies:
            copy.copy(items)
