# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture of one encoder under its limits: memory cap, buckets that lose to eager."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..llmapi.mm_config import MultimodalEncoderCudaGraphConfig
from .backends import GraphBackend
from .buckets import Bucket
from .captured import CaptureTimes
from .report import BucketReport, TowerReport
from .runner import CaptureError, MultimodalEncoderGraphRunner

logger = logging.getLogger(__name__)


def capture_within_limits(
    runner: MultimodalEncoderGraphRunner[Any],
    backend: GraphBackend,
    buckets: Sequence[Bucket],
    config: MultimodalEncoderCudaGraphConfig,
    report: TowerReport,
    device: torch.device,
) -> None:
    """Captures buckets, drops what the limits rule out, and writes the report.

    A set that takes more than ``max_graph_memory`` is released and captured again without its
    largest buckets, which cost most of the memory and gain least from a graph.

    Args:
        runner: Runner without graphs.
        backend: Its backend.
        buckets: Planned shapes.
        config: The tower's entry.
        report: Receives a line per planned bucket, ascending, and the memory taken.
        device: The tower's device.

    Raises:
        CaptureError: A bucket failed, or not even the smallest fits the cap.
    """
    cap = memory_cap(config.max_graph_memory, device)
    before = backend.memory_in_use()
    remaining = sorted(buckets)
    dropped: list[tuple[Bucket, str]] = []
    while True:
        times = _capture_all(runner, remaining, report.modality)
        taken = _taken(runner, backend, before)
        if cap is None or taken <= cap:
            break
        runner.release()
        # Memory goes with the largest bucket: keep those within the cap's share of it, and try
        # the smallest in any case.
        limit = remaining[-1].num_tokens * cap / taken
        keep = [b for b in remaining[:-1] if b.num_tokens <= limit] or remaining[:-1][:1]
        dropped += [(b, f"max_graph_memory of {cap:,} bytes") for b in remaining[len(keep) :]]
        if not keep:
            report.buckets = [_line(b, None, reason) for b, reason in sorted(dropped)]
            raise CaptureError(
                f"max_graph_memory of {cap:,} bytes is too little for any bucket: the smallest, "
                f"{remaining[0].label}, took {taken:,}"
            )
        remaining = keep
    lines = [_line(bucket, None, reason) for bucket, reason in dropped]
    for bucket, t in times.items():
        if config.self_check and (wrong := runner.self_check(bucket)):
            logger.error(
                "encoder %s: bucket %s is dropped: a replay does not equal the eager run in %s",
                report.modality,
                bucket.label,
                ", ".join(wrong),
            )
            runner.drop(bucket)
            lines.append(_line(bucket, t, f"self-check failed: {', '.join(wrong)}", kept=False))
            continue
        slower = t.replay_ms >= t.eager_ms and backend.accelerated
        if slower and config.prune_slower_than_eager:
            runner.drop(bucket)
            lines.append(_line(bucket, t, "slower than eager", kept=False))
        else:
            lines.append(_line(bucket, t, "slower than eager, kept as asked" if slower else "ok"))
    report.buckets = sorted(lines, key=lambda b: (b.num_tokens, b.max_segments))
    if not runner.buckets:
        runner.release()
        report.status, report.reason = "eager", "every bucket was dropped, see their reasons"
    report.graph_memory_bytes = _taken(runner, backend, before)
    for line in report.buckets:
        if not line.kept:
            label = f"{line.num_tokens}x{line.max_segments}"
            logger.info("encoder %s: bucket %s dropped: %s", report.modality, label, line.reason)


def _taken(runner: MultimodalEncoderGraphRunner[Any], backend: GraphBackend, before: int) -> int:
    return max(backend.memory_in_use() - before, runner.static_bytes)


def memory_cap(setting: int | float | None, device: torch.device) -> int | None:
    """Bytes that ``max_graph_memory`` allows.

    Args:
        setting: Bytes, or a fraction of the memory that is free now.
        device: The tower's device.

    Returns:
        Bytes, or None for no cap.
    """
    if setting is None or isinstance(setting, int):
        return setting
    if device.type == "cuda":
        return int(setting * torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(setting * psutil.virtual_memory().available)


def _capture_all(
    runner: MultimodalEncoderGraphRunner[Any],
    buckets: Sequence[Bucket],
    modality: str,
) -> dict[Bucket, CaptureTimes]:
    from tqdm import tqdm  # here, so that importing the towers needs torch, numpy and pydantic only

    times: dict[Bucket, CaptureTimes] = {}
    progress = tqdm(total=len(buckets), disable=not sys.stderr.isatty(), unit="bucket")
    with progress:
        for bucket, took in runner.capture(buckets):
            times[bucket] = took
            progress.set_description(f"Capturing {modality} encoder graphs: {bucket.label}")
            progress.update()
            logger.debug("captured %s bucket %s in %.1f ms", modality, bucket, took.capture_ms)
    return times


def replay_times(report: TowerReport | None) -> dict[Bucket, float] | None:
    """Measured cost of the kept buckets.

    Args:
        report: Report of the capture.

    Returns:
        Milliseconds by bucket; None where replay times say nothing.
    """
    if report is None or not report.accelerated:
        return None
    return {
        Bucket(b.num_tokens, b.max_segments, b.max_segment_len): b.replay_ms
        for b in report.buckets
        if b.kept and b.replay_ms is not None
    }


def eager_times(report: TowerReport | None) -> Callable[[int], float] | None:
    """Measured cost of eager runs.

    Args:
        report: Report of the capture.

    Returns:
        Tokens -> milliseconds, linear between the measured buckets and beyond the last; None where
        times say nothing.
    """
    if report is None or not report.accelerated:
        return None
    measured: dict[int, float] = {}
    for b in report.buckets:
        if b.eager_ms is not None:
            measured[b.num_tokens] = min(b.eager_ms, measured.get(b.num_tokens, b.eager_ms))
    if not measured:
        return None
    tokens, times = zip(*sorted(measured.items()), strict=True)

    def at(num_tokens: int) -> float:
        if num_tokens > tokens[-1]:
            return times[-1] * num_tokens / tokens[-1]
        return float(np.interp(num_tokens, tokens, times))

    return at


def _line(
    bucket: Bucket, times: CaptureTimes | None, reason: str, kept: bool | None = None
) -> BucketReport:
    return BucketReport(
        num_tokens=bucket.num_tokens,
        max_segments=bucket.max_segments,
        max_segment_len=bucket.max_segment_len,
        capture_ms=times and times.capture_ms,
        replay_ms=times and times.replay_ms,
        eager_ms=times and times.eager_ms,
        kept=times is not None if kept is None else kept,
        reason=reason,
    )
