# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What the packer goes by: measured times, without what attention costs beyond the tokens.

Attention takes time for every pair of tokens that attend to each other, and these are the same
however a batch is cut and wherever it runs. A bucket is timed with segments of one length; left in,
their pairs would make a large bucket look dear to a batch of shorter ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .buckets import Bucket, Load
from .report import BucketReport, TowerReport
from .runner import MultimodalEncoderGraphRunner

_TIMINGS = 2


def attention_ns(runner: MultimodalEncoderGraphRunner[Any], buckets: Sequence[Bucket]) -> float:
    """Time of a pair of tokens that attend to each other, all layers.

    Args:
        runner: Has captured the buckets.
        buckets: One at least; the one for the longest segments tells most.

    Returns:
        Nanoseconds, from replays of the same bucket with its longest segment and with short ones; 0
        where these have as many pairs.
    """
    bucket = max(buckets, key=lambda b: (b.longest_segment, b.num_tokens))
    adapter = runner.adapter
    timed: list[tuple[int, ...]] = [(), (bucket.longest_segment,)]
    fewer, more = (adapter.attending_pairs(adapter.layout_of(bucket, n)) for n in timed)
    if fewer >= more:
        return 0.0
    # A long replay is timed once, and all costs hang on these: a host that is held up meanwhile
    # would make large buckets look free.
    short_ms, long_ms = (
        min(runner.time_segments(bucket, n) for _ in range(_TIMINGS)) for n in timed
    )
    return max(0.0, (long_ms - short_ms) * 1e6 / (more - fewer))


def timed_pairs(bucket: Bucket) -> int:
    """Pairs of tokens that attend to each other in what a bucket is timed with, slack left out."""
    return sum(length * length for length in bucket.even_segments)


def replay_times(report: TowerReport | None) -> dict[Bucket, float] | None:
    """Measured cost of the kept buckets.

    Args:
        report: Report of the capture.

    Returns:
        Milliseconds by bucket, attention between tokens left out; None where times say nothing.
    """
    if report is None or not report.accelerated:
        return None
    costs: dict[Bucket, float] = {}
    shortest: dict[int, float] = {}
    for line in _short_ones_first(report):
        if line.kept and line.replay_ms is not None:
            cost = _without_attention(line, line.replay_ms, report)
            # Never dearer than its twin for longer ones, whose attention wastes time on short ones.
            shortest.setdefault(line.num_tokens, cost)
            costs[line.bucket] = max(cost, shortest[line.num_tokens])
    return costs


def eager_times(report: TowerReport | None) -> Callable[[Load], float] | None:
    """Measured cost of eager runs.

    Args:
        report: Report of the capture.

    Returns:
        Load -> milliseconds, attention between tokens left out, linear between the measured sizes
        and beyond the last; None where times say nothing.
    """
    if report is None or not report.accelerated:
        return None
    times: dict[int, float] = {}
    for line in _short_ones_first(report):
        if line.eager_ms is not None:  # of one size, the first has the least to leave out
            cost = _without_attention(line, line.eager_ms, report)
            times.setdefault(line.num_tokens, cost)
    return _curve(times) if times else None


def _short_ones_first(report: TowerReport) -> list[BucketReport]:
    return sorted(report.buckets, key=lambda b: (b.num_tokens, b.bucket.longest_segment))


def _without_attention(line: BucketReport, ms: float, report: TowerReport) -> float:
    return max(0.0, ms - timed_pairs(line.bucket) * report.attention_ns / 1e6)


def _curve(values: Mapping[int, float]) -> Callable[[Load], float]:
    """Linear between what is known by tokens, in proportion to them beyond the last."""
    tokens, known = zip(*sorted(values.items()), strict=True)

    def at(load: Load) -> float:
        if load.num_tokens > tokens[-1]:
            return known[-1] * load.num_tokens / tokens[-1]
        after = bisect_left(tokens, load.num_tokens)
        if after == 0:
            return known[0]
        start, end = tokens[after - 1], tokens[after]
        share = (load.num_tokens - start) / (end - start)
        return known[after - 1] + share * (known[after] - known[after - 1])

    return at
