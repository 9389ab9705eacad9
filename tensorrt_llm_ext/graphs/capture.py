# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture of one encoder under its limits: memory cap, buckets that lose to eager."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..llmapi.mm_config import MultimodalEncoderCudaGraphConfig
from .backends import GraphBackend
from .buckets import Bucket, Load
from .captured import CaptureTimes
from .costs import attention_ns, timed_pairs
from .memory import free_memory
from .report import BucketReport, TowerReport
from .runner import CaptureError, MultimodalEncoderGraphRunner

logger = logging.getLogger(__name__)

AS_FAST = 1.03
"""A larger bucket replaces one whose replay is not faster by more than this factor."""


def capture_within_limits(
    runner: MultimodalEncoderGraphRunner[Any],
    backend: GraphBackend,
    buckets: Sequence[Bucket],
    config: MultimodalEncoderCudaGraphConfig,
    report: TowerReport,
    device: torch.device,
) -> None:
    """Captures buckets, drops what the limits rule out, and writes the report.

    A set that takes more than ``max_graph_memory``, or whose largest bucket loses to the eager run,
    is released and captured again without: memory goes with the largest bucket.

    Args:
        runner: Runner without graphs.
        backend: Its backend.
        buckets: Planned shapes.
        config: The tower's entry.
        report: Receives a line per planned bucket, ascending, and the memory taken.
        device: The tower's device.

    Raises:
        CaptureError: A bucket failed, or its check, or not even the smallest fits the cap.
    """
    cap = memory_cap(config.max_graph_memory, device)
    if backend.accelerated:
        # Kernels and workspaces that a first run loads for good are not the graphs' memory. What
        # fails here fails in the capture, which says where.
        with contextlib.suppress(Exception):
            runner.rehearse(buckets)
    before = backend.memory_in_use()
    if backend.accelerated:
        # The allocator then has what warm-ups take. Eager runs would leave it, on the stream that
        # the arenas are made on, with blocks that an arena takes a part of.
        with contextlib.suppress(Exception):
            runner.rehearse([max(buckets)], eager=False)
    remaining = sorted(buckets)
    out: list[BucketReport] = []
    judged = False
    while True:
        judge = None if judged else _Judge(runner, config, report.modality)
        times, losers = _capture_all(runner, backend, remaining, report.modality, judge)
        taken = _taken(runner, backend, before)
        if cap is not None and taken > cap:
            runner.release()
            keep = _within(cap / taken, remaining)
            reason = f"max_graph_memory of {cap:,} bytes"
            out += [_line(b, None, reason) for b in remaining[len(keep) :]]
            if not keep:
                report.buckets = _sorted(out)
                raise CaptureError(
                    f"{reason} is too little for any bucket: the smallest, {remaining[0].label}, "
                    f"took {taken:,}"
                )
            remaining = keep
            continue
        judged = True
        out += [_line(b, times.get(b), reason, kept=False) for b, reason in losers.items()]
        keep = [b for b in remaining if b not in losers]
        if keep and keep[-1].num_tokens < remaining[-1].num_tokens:
            runner.release()  # memory goes with the largest bucket
            remaining = keep
            continue
        break
    if keep and backend.accelerated:
        with _all_or_none(runner, "timing of attention"):
            report.attention_ns = attention_ns(runner, keep)
    slower = (
        "slower than eager when it was captured again"
        if config.prune_slower_than_eager
        else "slower than eager, kept as asked"
    )
    reasons = {b: slower if times[b].slower_than_eager else "ok" for b in keep}
    report.buckets = _sorted([*out, *(_line(b, times[b], reasons[b]) for b in keep)])
    if not keep:
        runner.release()
        report.status, report.reason = "eager", "every bucket was dropped, see their reasons"
    report.graph_memory_bytes = _taken(runner, backend, before)
    for line in report.buckets:
        if not line.kept:
            label = line.bucket.label
            logger.info("encoder %s: bucket %s dropped: %s", report.modality, label, line.reason)


@contextlib.contextmanager
def _all_or_none(runner: MultimodalEncoderGraphRunner[Any], what: str) -> Iterator[None]:
    """What fails with graphs that are captured already fails the capture."""
    try:
        yield
    except Exception as error:  # whatever the encoder raises must not take the engine down
        runner.release()
        raise CaptureError(f"{what} failed: {type(error).__name__}: {error}") from error


def _within(share: float, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Buckets up to a share of the largest, which their memory goes with; one is tried anyway."""
    limit = buckets[-1].num_tokens * share
    return [b for b in buckets[:-1] if b.num_tokens <= limit] or list(buckets[:-1][:1])


class _Judge:
    """Which buckets must not be used, told as each is captured, the largest first.

    Those go at once: the driver keeps the memory of a graph that is gone for the next one.
    """

    def __init__(
        self,
        runner: MultimodalEncoderGraphRunner[Any],
        config: MultimodalEncoderCudaGraphConfig,
        modality: str,
    ) -> None:
        self._runner = runner
        self._config = config
        self._modality = modality
        self._kept: dict[Bucket, CaptureTimes] = {}

    @property
    def _replaces(self) -> bool:
        """Whether a larger bucket may stand in for one."""
        return self._config.prune_slower_than_eager and self._config.enable_padding

    def why_skip(self, bucket: Bucket) -> str:
        """Why a bucket need not even be captured; empty where it has to be."""
        if not self._replaces:
            return ""
        as_fast = self._runner.choices.replacement(bucket, self._kept)
        return f"{_as_fast(as_fast, bucket)}, as found earlier" if as_fast else ""

    def why_not(self, bucket: Bucket, times: CaptureTimes) -> str:
        """Why a bucket must not be used; empty where it may."""
        prune = self._config.prune_slower_than_eager
        if self._config.self_check and (wrong := self._runner.self_check(bucket)):
            logger.error(
                "encoder %s: bucket %s is dropped: a replay does not equal the eager run in %s",
                self._modality,
                bucket.label,
                ", ".join(wrong),
            )
            return f"self-check failed: {', '.join(wrong)}"
        if prune and times.slower_than_eager:
            return "slower than eager"
        if self._replaces and times.accelerated:
            as_fast = self._overtaking(bucket, times)
            self._runner.choices.note_replacement(bucket, as_fast)
            if as_fast is not None:
                return _as_fast(as_fast, bucket)
        self._kept[bucket] = times
        return ""

    def _overtaking(self, bucket: Bucket, times: CaptureTimes) -> Bucket | None:
        """A bucket that replaces one at no cost: time does not grow evenly with the tokens."""
        load = Load(bucket.num_tokens, bucket.max_segments, bucket.longest_segment)
        timed = self._runner.time_segments
        for other, its in self._kept.items():
            if other.rejects(load) is not None or its.replay_ms > AS_FAST * times.replay_ms:
                continue
            if timed_pairs(other) < timed_pairs(bucket):  # explicit ones: it had less to do
                same_ms = timed(other, bucket.even_segments)
                if same_ms > AS_FAST * times.replay_ms:
                    continue
            if not bucket.for_short_segments or other.for_short_segments:
                return other
            # They were timed with few segments, and this one is for as many as it has room for.
            size = min(bucket.longest_segment, max(1, bucket.num_tokens // bucket.max_segments))
            many = (size,) * min(bucket.max_segments, bucket.num_tokens)
            if timed(other, many) <= AS_FAST * timed(bucket, many):
                return other
        return None


def _as_fast(other: Bucket, bucket: Bucket) -> str:
    twin = other.label == bucket.label
    return f"{other.label}{' for longer segments' if twin else ''} is as fast"


def _sorted(lines: Sequence[BucketReport]) -> list[BucketReport]:
    return sorted(lines, key=lambda b: (b.num_tokens, b.max_segments, b.max_segment_len or 0))


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
    return int(setting * free_memory(device))


def _capture_all(
    runner: MultimodalEncoderGraphRunner[Any],
    backend: GraphBackend,
    buckets: Sequence[Bucket],
    modality: str,
    judge: _Judge | None,
) -> tuple[dict[Bucket, CaptureTimes], dict[Bucket, str]]:
    """Times of the captured buckets, and those the judge refused, with reasons: they are gone."""
    from tqdm import tqdm  # here, so that importing the towers needs torch, numpy and pydantic only

    times: dict[Bucket, CaptureTimes] = {}
    losers: dict[Bucket, str] = {}
    before = backend.memory_in_use(settled=False)
    progress = tqdm(total=len(buckets), disable=not sys.stderr.isatty(), unit="bucket")
    with progress:
        for bucket in sorted(buckets, reverse=True):
            reason = judge.why_skip(bucket) if judge and backend.accelerated else ""
            if reason:
                losers[bucket] = reason
                progress.update()
                continue
            ((_, took),) = runner.capture([bucket])
            if backend.accelerated:
                now = backend.memory_in_use(settled=False)
                took, before = took._replace(memory_bytes=max(now - before, 0)), now
            times[bucket] = took
            with _all_or_none(runner, f"check of bucket {bucket.label}"):
                reason = judge.why_not(bucket, took) if judge else ""
            if reason:
                runner.drop(bucket)
                losers[bucket] = reason
            progress.set_description(f"Capturing {modality} encoder graphs: {bucket.label}")
            progress.update()
            logger.debug("captured %s bucket %s in %.1f ms", modality, bucket, took.capture_ms)
    return times, losers


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
        memory_bytes=times and times.memory_bytes,
        variant=times.variant if times else "",
        kept=times is not None if kept is None else kept,
        reason=reason,
    )
