# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Buckets: the fixed shapes an encoder is captured at, and the one place that says what fits."""

from __future__ import annotations

import enum
from typing import NamedTuple

_FINE_STEP = 64  # tokens between buckets up to _FINE_LIMIT
_FINE_LIMIT = 512
_ALIGNED = 16  # tokens
_STEPS_PER_OCTAVE = 8  # above it; bounds the padding at 1/8 of the real tokens
_FEW_SEGMENTS = 8
_FEWEST_SEGMENTS = 4
_EVEN_SEGMENT = 512  # tokens
_MORE_TOKENS = 8
_ROWS_MATTER = range(257, 4097)  # tokens; fewer never, more hardly ever took less with more (H200)
SLACK_SEGMENTS = 4
"""Pieces that the slack of a bucket is cut into, at most."""


class EagerReason(str, enum.Enum):
    """Why segments ran eagerly instead of in a captured graph (values are metric labels)."""

    OFF = "graphs_off"
    REQUESTED = "requested"
    CAPTURE_FAILED = "capture_failed"
    RELEASED = "released"
    WEIGHTS_MOVED = "weights_moved"
    SLOWER_THAN_EAGER = "slower_than_eager"
    TOO_MANY_TOKENS = "too_many_tokens"
    TOO_MANY_SEGMENTS = "too_many_segments"
    SEGMENT_TOO_LONG = "segment_too_long"
    NO_EXACT_BUCKET = "no_exact_bucket"


class Load(NamedTuple):
    """What a group of segments asks of a bucket.

    Attributes:
        num_tokens: Encoder rows before any merger, all segments together.
        num_segments: Number of segments.
        longest_segment: Rows of the longest one.
    """

    num_tokens: int
    num_segments: int
    longest_segment: int


class Bucket(NamedTuple):
    """A captured shape.

    Attributes:
        num_tokens: Encoder rows (before any merger) that it serves.
        max_segments: Most real segments it serves; any number up to it can be replayed.
        max_segment_len: Longest segment baked into the capture by the attention backend, or that
            its attention is shaped for; ``None`` when it takes any.
    """

    num_tokens: int
    max_segments: int
    max_segment_len: int | None = None

    @property
    def label(self) -> str:
        """Short name for reports and metrics, for example ``4096x8``."""
        return f"{self.num_tokens}x{self.max_segments}"

    @property
    def longest_segment(self) -> int:
        """Rows of the longest segment that it can replay; a bound may lie above its tokens."""
        return min(self.num_tokens, self.max_segment_len or self.num_tokens)

    @property
    def for_short_segments(self) -> bool:
        """Whether it is bounded to segments that are shorter than itself."""
        return self.longest_segment < self.num_tokens

    @property
    def even_segments(self) -> tuple[int, ...]:
        """Lengths that fill it evenly, but for a rest: four, or more that are not long.

        Attention within one long segment takes a multiple of the time and adds nothing to what a
        timing says: what it takes is left out of the costs, which can be done the better the less
        it is (``costs``). Tiny segments waste its time.
        """
        longest = min(self.longest_segment, _EVEN_SEGMENT)
        few = max(_FEWEST_SEGMENTS, -(-self.num_tokens // longest))
        few = min(few, self.max_segments, self.num_tokens)
        size = min(self.longest_segment, self.num_tokens // few)
        return (size,) * min(self.max_segments, self.num_tokens // size)

    def rejects(self, load: Load, *, exact: bool = False) -> EagerReason | None:
        """Checks every bound that is baked into the capture.

        Args:
            load: What is to be replayed.
            exact: Padding is off: the token count has to be the captured one.

        Returns:
            The bound that is broken, or ``None`` when the bucket can replay the load.
        """
        if load.num_tokens > self.num_tokens:
            return EagerReason.TOO_MANY_TOKENS
        if load.num_segments > self.max_segments:
            return EagerReason.TOO_MANY_SEGMENTS
        if self.max_segment_len is not None and load.longest_segment > self.max_segment_len:
            return EagerReason.SEGMENT_TOO_LONG
        if exact and load.num_tokens != self.num_tokens:
            return EagerReason.NO_EXACT_BUCKET
        return None


def with_more_room(bucket: Bucket, *, unit: int) -> Bucket | None:
    """A shape of 8 tokens more that may be faster than a bucket, where that happens.

    Libraries choose kernels for matrix products by their rows, and not evenly: on an H200,
    Qwen3-VL-8B takes 6 % less time for 1928 tokens than for 1920, and 13 % more for 1032 than for
    1024.

    Args:
        bucket: The bucket.
        unit: Rows that a merger joins into one.

    Returns:
        The shape, for segments no longer than the bucket's: attention stays shaped for those.
    """
    if bucket.num_tokens not in _ROWS_MATTER:
        return None
    more = _MORE_TOKENS + -_MORE_TOKENS % unit
    return Bucket(bucket.num_tokens + more, bucket.max_segments, bucket.longest_segment)


def ladder(
    token_budget: int, max_segments: int, *, unit: int, rowless_tokens: int = 0
) -> tuple[Bucket, ...]:
    """Buckets for a budget: 64-token steps up to 512, then eight per octave.

    Above 512 tokens the slack is at most 12.5 % of the tokens asked for. The last bucket is the
    budget itself, so that nothing inside the budget is left without one.

    Pictures have a round number of rows more often than not. With tokens of its own behind them,
    such a segment would be a few tokens too long for every step of the ladder, so all of them are
    longer by as much: RADIO's 1034 tokens take 6 % less in 1040 than in 1152 (H200).

    Args:
        token_budget: Most encoder rows (before any merger) in one replay.
        max_segments: Most segments in one replay.
        unit: Rows that a merger joins into one; every segment is a multiple of it.
        rowless_tokens: Tokens of every segment without input rows.

    Returns:
        Buckets in ascending order.

    Raises:
        ValueError: The budget cannot hold one segment of ``unit`` rows.
    """
    top = token_budget - token_budget % unit
    if top < unit:
        raise ValueError(
            f"a token budget of {token_budget} cannot hold one segment: the smallest has {unit} "
            f"tokens (rows before the merger). Set max_num_tokens to {unit} or more."
        )
    sizes = []
    size, longer = _FINE_STEP, rowless_tokens + -rowless_tokens % _ALIGNED
    while size + longer < top:
        sizes.append(size + longer - (size + longer) % unit)
        size += (
            _FINE_STEP
            if size < _FINE_LIMIT
            else (1 << (size.bit_length() - 1)) // _STEPS_PER_OCTAVE
        )
    sizes.append(top)
    return tuple(Bucket(size, min(max_segments, size // unit)) for size in sorted({*sizes} - {0}))


def bounded(bucket: Bucket, *, unit: int, refine: bool) -> tuple[Bucket, ...]:
    """A bucket for attention that bakes its longest segment.

    Such attention launches a block per segment slot and stretch of the longest segment, and the
    idle ones cost time: 64 slots of unbounded length 4 % (H200). So there are two shapes instead,
    few segments of any length and many short ones.

    Args:
        bucket: What is wanted.
        unit: Rows that a merger joins into one.
        refine: Whether one may become two.

    Returns:
        Buckets with ``max_segment_len``.
    """
    size, many = bucket.num_tokens, bucket.max_segments
    if not refine or many <= 2 * _FEW_SEGMENTS:
        return (bucket._replace(max_segment_len=size),)
    # As many idle blocks in one as in the other.
    short = size * (_FEW_SEGMENTS + SLACK_SEGMENTS) // (many + SLACK_SEGMENTS)
    return (
        Bucket(size, _FEW_SEGMENTS, size),
        Bucket(size, many, short + -short % unit),
    )


def short_and_long(bucket: Bucket, short: int, *, unit: int) -> tuple[Bucket, ...]:
    """A bucket for attention that has a shape of its own for short segments.

    Args:
        bucket: What is wanted.
        short: Tokens up to which a segment is short.
        unit: Rows that a merger joins into one.

    Returns:
        The bucket alone, or once for short segments and once for any. Short ones that are too few
        to fill it go into a smaller one.
    """
    bound = short - short % unit
    if bucket.num_tokens <= 2 * short or bucket.max_segments * bound < bucket.num_tokens:
        return (bucket,)
    return (
        bucket._replace(max_segment_len=bound),
        bucket._replace(max_segment_len=bucket.num_tokens),
    )
