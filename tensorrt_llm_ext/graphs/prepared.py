# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A step that its bucket can replay: what depends on the layout alone is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .adapter import EncoderGraphIOAdapter
from .captured import CapturedBucket
from .layout import AttentionLayout, EncoderItem, Replay, joined_runs
from .staging import Placement


class BlockCopy(NamedTuple):
    """Rows of all outputs of one spec on their way to the caller.

    Attributes:
        block: Index of the outputs' block.
        source: Where they come from, [names, rows, *shape], dtype of the spec: a view of the static
            outputs.
        rows: Where they go in the caller's block: first, end; None where they are all of it.
    """

    block: int
    source: torch.Tensor
    rows: tuple[int, int] | None


@dataclass(eq=False, slots=True)  # frozen takes three times as long to make
class PreparedReplay:
    """A step for any batch of items with the same segments and layouts.

    Attributes:
        step: What is replayed.
        captured: Its graph.
        placement: Of its rows in the static inputs.
        attention: Attention layout that fills what is captured.
        copies: Of its results.
        label: Shown by profilers.
    """

    step: Replay
    captured: CapturedBucket[Any]
    placement: Placement
    attention: AttentionLayout
    copies: tuple[BlockCopy, ...]
    label: str

    @classmethod
    def of(
        cls,
        step: Replay,
        captured: CapturedBucket[Any],
        adapter: EncoderGraphIOAdapter,
        items: Sequence[EncoderItem],
    ) -> PreparedReplay:
        """Prepares a step that fits its bucket.

        Args:
            step: What is to be replayed.
            captured: The graph of its bucket.
            adapter: Of the encoder.
            items: A batch that the step's runs point into.
        """
        batch_tokens = sum(item.num_tokens for item in items)
        return cls(
            step,
            captured,
            adapter.place(captured.inputs, items, step.runs),
            adapter.pad(captured.shape, adapter.segment_lengths(items, step.runs)),
            tuple(_block_copies(step, captured, adapter, batch_tokens)),
            f"encoder replay {step.bucket.label}",
        )

    def collect(self, sinks: Sequence[torch.Tensor]) -> None:
        """Copies the results to the caller.

        Args:
            sinks: The caller's blocks, [names, batch rows, *shape] each, dtype of the spec.
        """
        for block, source, rows in self.copies:
            sink = sinks[block]
            (sink if rows is None else sink[:, rows[0] : rows[1]]).copy_(source)


def _block_copies(
    step: Replay,
    captured: CapturedBucket[Any],
    adapter: EncoderGraphIOAdapter,
    batch_tokens: int,
) -> Iterator[BlockCopy]:
    joined, blocks = joined_runs(step.runs), adapter.output_blocks
    results = captured.results(blocks)
    for index, (block, result) in enumerate(zip(blocks, results, strict=True)):
        for source, target, num_tokens in joined:
            rows, at, to = (block.spec.rows(n) for n in (num_tokens, source, target))
            part = None if num_tokens == batch_tokens else (to, to + rows)
            yield BlockCopy(index, result[:, at : at + rows], part)
