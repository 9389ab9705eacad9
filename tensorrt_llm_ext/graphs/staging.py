# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Staging of a step: what its layout decides is made once, and written only where it differs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch

from .layout import EncoderItem

_UNKNOWN = object()


class Placement(abc.ABC):
    """Where a step lies in static inputs; made once per layout, filled with every batch of it.

    Attributes:
        layout: Names what ``write_layout`` writes: equal ones write the same.
        num_tokens: Tokens of the step. Rows after theirs are slack.
    """

    layout: Hashable
    num_tokens: int

    @abc.abstractmethod
    def write_layout(self) -> None:
        """Writes what does not come with the items into the step's part of the inputs."""

    @abc.abstractmethod
    def write_rows(self, items: Sequence[EncoderItem]) -> None:
        """Copies the rows of the items, which are laid out as those it was made for.

        Raises:
            RuntimeError: An item's rows are not as many, or not of the size, that its segments
                say.
        """


class HeldInputs:
    """What a runner's static inputs hold, so that a step writes only what they do not.

    Rows are copied for every step, the layout where it is another one, and slack is cleared where
    somebody wrote since it was. Tensors count the writes to them: after any that is not from here,
    and after a step that failed half-way, nothing is taken for granted.
    """

    def __init__(
        self, inputs: Mapping[str, torch.Tensor], clear: Callable[[int, int], None]
    ) -> None:
        """Knows nothing yet.

        Args:
            inputs: The inputs of the largest bucket, by name: [rows, *shape], dtype of the spec.
            clear: (first token, end) -> zeroes the rows of these tokens in all of them.
        """
        self._tensors = list({t.untyped_storage()._cdata: t for t in inputs.values()}.values())
        self._clear = clear
        self._writes: list[int] = []
        self._layout: Hashable = _UNKNOWN
        self._clean = (0, 0)  # tokens whose rows are zeros: first, end

    def stage(self, placement: Placement, num_tokens: int, items: Sequence[EncoderItem]) -> None:
        """Brings a step into the inputs.

        Args:
            placement: Of the step.
            num_tokens: Of what is captured: rows behind the step's, up to these, will be zeros.
            items: The batch.
        """
        if self._writes != self._count_writes():
            self._layout, self._clean = _UNKNOWN, (0, 0)
        self._clear_slack(placement.num_tokens, num_tokens)
        if self._layout != placement.layout:
            placement.write_layout()
            self._layout = placement.layout
        placement.write_rows(items)
        self._writes = self._count_writes()

    def _clear_slack(self, used: int, size: int) -> None:
        first, end = self._clean
        if used < min(first, size):
            self._clear(used, min(first, size))
        if max(end, used) < size:
            self._clear(max(end, used), size)
        # Rows between the bucket's end and a clean part further on are still what they were.
        self._clean = (used, size if first > size else max(end, size))

    def _count_writes(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]
