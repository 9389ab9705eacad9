# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What ``encode`` does with a batch: made once per layout of its items, kept while it repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from .adapter import EncoderGraphIOAdapter, Tensors
from .cache import BoundedLRU
from .layout import Eager, EncoderItem, Step
from .packer import Packer
from .prepared import PreparedReplay
from .report import EncoderStats
from .runner import MultimodalEncoderGraphRunner

_CACHED_ITEMS = 4096  # of all plans together: a plan holds a few views an item


@dataclass(eq=False, slots=True)  # frozen takes three times as long to make
class BatchPlan:
    """Steps of a batch, and how its results are laid out.

    Attributes:
        steps: In order.
        counts: What a call adds to the counters.
        names: Of the outputs, those of one block together.
        blocks: Shape of the caller's tensor for each of the adapter's output blocks, [names, batch
            rows, *shape], and an empty tensor of its dtype and device.
        sizes: Rows of each item in each block, once for each of its names.
    """

    steps: tuple[PreparedReplay | Eager, ...]
    counts: EncoderStats
    names: tuple[str, ...]
    blocks: tuple[tuple[tuple[int, ...], torch.Tensor], ...]
    sizes: tuple[list[int], ...]

    @classmethod
    def of(
        cls,
        adapter: EncoderGraphIOAdapter,
        items: Sequence[EncoderItem],
        steps: Sequence[PreparedReplay | Eager],
        device: torch.device,
    ) -> BatchPlan:
        """Lays the results of a batch's steps out, as the adapter of the encoder has them."""
        tokens = [item.num_tokens for item in items]
        counts = EncoderStats()
        counts.record(len(items), [_plain(step) for step in steps])
        blocks = adapter.output_blocks
        return cls(
            tuple(steps),
            counts,
            tuple(name for block in blocks for name in block.names),
            tuple((block.shape(sum(tokens)), _empty(block.spec.dtype, device)) for block in blocks),
            tuple([block.spec.rows(n) for n in tokens] * len(block.names) for block in blocks),
        )

    @property
    def plain_steps(self) -> list[Step]:
        """The steps as they were planned."""
        return [_plain(step) for step in self.steps]

    @property
    def num_items(self) -> int:
        """Items of the batch."""
        return self.counts.items

    def allocate(self) -> list[torch.Tensor]:
        """Makes the caller's blocks.

        Returns:
            Tensors [names, batch rows, *shape], dtype of the block's spec, of any values.
        """
        return [like.new_empty(shape) for shape, like in self.blocks]

    def split(self, sinks: Sequence[torch.Tensor]) -> list[Tensors]:
        """The results of each item.

        Args:
            sinks: The filled blocks, [names, batch rows, *shape], dtype of the block's spec.

        Returns:
            Each item's by output name, [item rows, *shape], dtype of the spec.
        """
        columns: list[tuple[torch.Tensor, ...]] = []
        count = self.num_items
        for sink, sizes in zip(sinks, self.sizes, strict=True):
            # Unsafe only where gradients flow; it spares the bookkeeping of views.
            parts = sink.flatten(0, 1).unsafe_split_with_sizes(sizes)
            columns += [parts[at : at + count] for at in range(0, len(sizes), count or 1)]
        names = self.names
        return [dict(zip(names, parts)) for parts in zip(*columns)]  # noqa: B905 - made so above


@lru_cache
def _empty(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of no elements [0]: another one is made by it in half the time."""
    return torch.empty(0, dtype=dtype, device=device)


def _plain(step: PreparedReplay | Eager) -> Step:
    return step if isinstance(step, Eager) else step.step


class BatchPlanner:
    """Plans of batches under one packer, each kept by the layout of its items."""

    def __init__(
        self,
        packer: Packer,
        adapter: EncoderGraphIOAdapter,
        runner: MultimodalEncoderGraphRunner[Any] | None,
        device: torch.device,
    ) -> None:
        """Takes what cuts a batch, the adapter, the graphs there are, and where outputs go."""
        self.packer = packer
        self._device = device
        self._adapter = adapter
        self._runner = runner
        self._plans: BoundedLRU[BatchPlan] = BoundedLRU(
            _CACHED_ITEMS, lambda plan: 1 + plan.num_items
        )

    def plan(self, items: Sequence[EncoderItem]) -> BatchPlan:
        """The plan of a batch, the one that an earlier batch of the same layout had."""
        key = tuple([(item.segment_lengths, item.layout) for item in items])
        return self._plans.get(key, lambda: self._make(items))

    def _make(self, items: Sequence[EncoderItem]) -> BatchPlan:
        planned = self.packer.plan([item.segment_lengths for item in items])
        steps = [self._prepare(step, items) for step in planned]
        return BatchPlan.of(self._adapter, items, steps, self._device)

    def _prepare(self, step: Step, items: Sequence[EncoderItem]) -> PreparedReplay | Eager:
        if isinstance(step, Eager):
            return step
        if self._runner is None:
            raise ValueError(f"{step} is to be replayed, but there are no graphs")
        return self._runner.prepare(step, items)
