# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Items, segments and the steps a batch is cut into.

    items -> segments -> packer -> [Replay(bucket) | Eager(reason)]* -> gather -> outputs per item

A segment is a run of tokens that attend only to each other (one picture, one video frame pair).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from .buckets import Bucket, EagerReason, Load

AttentionLayout = Any
"""How the tokens of a step attend: what an adapter describes and a metadata provider understands.

Segment lengths, ``tuple[int, ...]``, unless an encoder has more than one layout (windows inside
segments) and brings adapter and provider of its own. Nothing else looks inside.
"""


@dataclass(eq=False, slots=True)  # frozen would treble the time of making one
class EncoderItem:
    """One picture, video or clip, checked and ready to be packed.

    Attributes:
        segment_lengths: Tokens (rows before any merger) of each segment, in order.
        rows: Input tensors [tokens / tokens_per_row, *shape] by name, on any device, any strides,
            of a dtype that converts to the one of the adapter's spec.
        layout: What the host-built per-token inputs (positions and the like) depend on. Plans are
            kept by it: items of the same segments and layout differ in the values of their rows
            alone.
    """

    segment_lengths: tuple[int, ...]
    rows: Mapping[str, torch.Tensor]
    layout: Hashable

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole item, before any merger."""
        return sum(self.segment_lengths)


class SegmentRun(NamedTuple):
    """Consecutive segments of one item, side by side in a step.

    Attributes:
        item: Index of the item in the batch.
        first_segment: Index of the run's first segment within the item.
        num_segments: Segments in the run.
        item_token: First token of the run within the item.
        batch_token: First token of the run within the batch (items laid end to end).
        num_tokens: Tokens in the run.
    """

    item: int
    first_segment: int
    num_segments: int
    item_token: int
    batch_token: int
    num_tokens: int


def joined_runs(runs: Sequence[SegmentRun]) -> list[tuple[int, int, int]]:
    """(first token in the step, first token in the batch, tokens), neighbours joined."""
    starts: list[tuple[int, int]] = []
    counts: list[int] = []
    source = 0
    end: int | None = None
    for _, _, _, _, batch_token, num_tokens in runs:
        if batch_token == end:
            counts[-1] += num_tokens
        else:
            starts.append((source, batch_token))
            counts.append(num_tokens)
        source += num_tokens
        end = batch_token + num_tokens
    return [(at, to, count) for (at, to), count in zip(starts, counts, strict=True)]


@dataclass(frozen=True)
class _Step:
    runs: tuple[SegmentRun, ...]
    segment_lengths: tuple[int, ...]

    @property
    def load(self) -> Load:
        """Tokens, segments and longest segment of the step."""
        return Load(sum(self.segment_lengths), len(self.segment_lengths), max(self.segment_lengths))


@dataclass(frozen=True)
class Replay(_Step):
    """Replay the graph captured at ``bucket``."""

    bucket: Bucket

    def check(self, *, exact: bool) -> None:
        """Raises ValueError where the step breaks a bound of its bucket.

        Args:
            exact: Padding is off: the token count has to be the captured one.
        """
        broken = self.bucket.rejects(self.load, exact=exact)
        if broken is not None:
            raise ValueError(
                f"{self.load} does not fit bucket {tuple(self.bucket)}: {broken.value}"
            )


@dataclass(frozen=True)
class Eager(_Step):
    """Run the encoder without a graph, and why."""

    reason: EagerReason


Step = Replay | Eager
