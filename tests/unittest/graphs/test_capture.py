# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Capture under limits: memory cap, buckets that lose to eager, what to do about a failure."""

from __future__ import annotations

import io
import logging
import shutil
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from tensorrt_llm_ext.graphs import memory as memory_module
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.capture import _line, _sorted, memory_cap
from tensorrt_llm_ext.graphs.captured import CaptureTimes
from tensorrt_llm_ext.graphs.report import BucketReport, TowerReport
from tensorrt_llm_ext.graphs.runner import CaptureError, MultimodalEncoderGraphRunner
from tensorrt_llm_ext.graphs.variants import cache_dir

from .fakes import FakeTower, SpyBackend, assert_outputs, captured_tower, graph_config, make_item

MIB = 1 << 20
SIZES = [64, 128, 192, 256]


def capture(backend: SpyBackend, **entry) -> tuple[FakeTower, TowerReport]:
    size = {} if "buckets" in entry else {"max_batch_size": 4}
    tower = captured_tower(256, backend, **size, **entry)
    return tower, tower.capture_encoder_cuda_graphs()


def kept(report: TowerReport) -> list[int]:
    return [b.num_tokens for b in report.buckets if b.kept]


# ---- memory cap ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "expected"),
    [
        (None, SIZES),
        (256 * MIB, SIZES),  # exactly what it takes
        (256 * MIB - 1, SIZES[:3]),
        (150 * MIB, SIZES[:2]),
        (128 * MIB, SIZES[:2]),
        (64 * MIB, SIZES[:1]),
        ("64MiB", SIZES[:1]),
    ],
)
def test_memory_cap_drops_the_largest_first(cap, expected, caplog):
    backend = SpyBackend(bytes_per_token=MIB)
    with caplog.at_level(logging.INFO):
        tower, report = capture(backend, max_graph_memory=cap)
    assert report.status == "captured"
    assert kept(report) == expected
    assert sorted(backend.alive) == expected
    assert [b.num_tokens for b in report.buckets] == SIZES  # every planned bucket has its line
    for b in report.buckets:
        if b.kept:
            assert b.reason == "ok"
        else:
            assert b.reason.startswith("max_graph_memory of ")
            assert (b.capture_ms, b.replay_ms, b.eager_ms) == (None, None, None)
            assert f"bucket {b.num_tokens}x4 dropped: max_graph_memory" in caplog.text
    assert report.graph_memory_bytes == expected[-1] * MIB
    items = [make_item((60,)), make_item((200, 4), tag=1)]
    assert_outputs(tower, items, tower.encode(items))


def test_share_of_the_cap_saves_captures():
    backend = SpyBackend(bytes_per_token=MIB)
    capture(backend, max_graph_memory=64 * MIB)
    assert backend.captured == [256, 192, 128, 64, 64]  # not one bucket less at a time


def test_cap_that_holds_only_the_smallest_is_used():
    """Memory that does not grow with the bucket makes the share an under-estimate."""

    class Overhead(SpyBackend):
        def memory_in_use(self, *, settled=True):
            return 10_000 + len(self.alive) * 10 * MIB

    _, report = capture(Overhead(), max_graph_memory=12 * MIB)
    assert kept(report) == [64]


@pytest.mark.parametrize("sizes", [SIZES, SIZES[:2]])
def test_cap_whose_share_is_below_the_smallest_tries_that_one(sizes):
    class Swelling(SpyBackend):
        def memory_in_use(self, *, settled=True):
            return len(self.alive) ** 2 * 4 * MIB

    backend = Swelling()
    _, report = capture(backend, buckets=[(n, 4) for n in sizes], max_graph_memory=7 * MIB)
    assert kept(report) == [64]
    assert backend.captured == [*sizes[::-1], 64]


@pytest.mark.parametrize("on_failure", ["eager", "raise"])
def test_cap_too_little_for_any_bucket(on_failure, caplog):
    what = r"max_graph_memory of 1,048,576 bytes is too little .* smallest, 64x4, took 67,108,864"
    entry = {"max_graph_memory": MIB, "on_capture_failure": on_failure}
    backend = SpyBackend(bytes_per_token=MIB)
    if on_failure == "raise":
        with pytest.raises(CaptureError, match=what):
            capture(backend, **entry)
        assert backend.alive == []
        return
    tower, report = capture(backend, **entry)
    assert (report.status, kept(report)) == ("eager", [])
    assert "too little for any bucket" in report.reason
    assert [b.num_tokens for b in report.buckets] == SIZES
    assert backend.alive == []
    items = [make_item((8,))]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"capture_failed": 1}


def test_cap_counts_the_buffers_where_the_driver_says_nothing():
    class Silent(SpyBackend):
        def memory_in_use(self, *, settled=True):
            return 0

    _, report = capture(Silent())
    assert report.graph_memory_bytes > 256 * 4 * 6


@pytest.fixture
def _no_container(monkeypatch, tmp_path):
    """No limit of a container hides the numbers that a test makes up."""
    monkeypatch.setattr(memory_module, "_CGROUP", tmp_path)


@pytest.mark.usefixtures("_no_container")
def test_memory_cap_setting(monkeypatch):
    memory = SimpleNamespace(available=8000 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    cpu = torch.device("cpu")
    assert memory_cap(None, cpu) is None
    assert memory_cap(5 * MIB, cpu) == 5 * MIB
    assert memory_cap(0.25, cpu) == 2000 * MIB
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 * MIB, 9000 * MIB))
    assert memory_cap(0.25, torch.device("cuda")) == 250 * MIB


@pytest.mark.usefixtures("_no_container")
def test_memory_cap_as_a_fraction_end_to_end(monkeypatch):
    memory = SimpleNamespace(available=1000 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    _, report = capture(SpyBackend(bytes_per_token=MIB), max_graph_memory=0.15)
    assert kept(report) == [64, 128]


# ---- buckets that lose to eager --------------------------------------------------------------


def lose_from(tokens):
    """Replay takes longer than eager from a size on; at 128 tokens a tie, within the noise."""
    return lambda n: (n / 100, n / (101 if n == 128 else 50 if n < tokens else 103))


@pytest.mark.parametrize(
    ("accelerated", "prune", "expected"),
    [
        (True, True, [64, 128]),
        (True, False, SIZES),
        (False, True, SIZES),  # timings of static buffers decide nothing
    ],
)
def test_prune_slower_than_eager(accelerated, prune, expected):
    backend = SpyBackend(accelerated=accelerated, times=lose_from(192), bytes_per_token=MIB)
    tower, report = capture(backend, prune_slower_than_eager=prune)
    assert kept(report) == expected
    assert sorted(backend.alive) == expected
    assert report.graph_memory_bytes == expected[-1] * MIB  # what is left, not what it was
    for b in report.buckets:
        assert (b.replay_ms, b.eager_ms) == lose_from(192)(b.num_tokens)
        slow = accelerated and b.num_tokens >= 192
        want = "ok" if not slow else "slower than eager" + ("" if prune else ", kept as asked")
        assert b.reason == want
    items = [make_item((192,))]
    assert_outputs(tower, items, tower.encode(items))
    reasons = tower.encoder_stats().eager
    assert reasons == ({"too_many_tokens": 1} if expected == [64, 128] else {})


@pytest.mark.parametrize(
    ("slow", "captured"),
    [(256, [256, 192, 128, 64, 192, 128, 64]), (192, [256, 192, 128, 64])],
)
def test_only_a_largest_bucket_that_goes_takes_memory_with_it(slow, captured):
    backend = SpyBackend(accelerated=True, times=lambda n: (n / 50, n / (100 if n == slow else 25)))
    _, report = capture(backend)
    assert kept(report) == [n for n in SIZES if n != slow]
    assert backend.captured == captured


def test_buckets_are_judged_once():
    """The second capture's times are those of the same graphs, with other noise."""

    def times(tokens: int) -> tuple[float, float]:
        again = len(backend.captured) > len(SIZES)
        return (tokens / 50, tokens / (100 if again or tokens == 256 else 25))

    backend = SpyBackend(accelerated=True, times=times)
    _, report = capture(backend)
    assert kept(report) == SIZES[:3]
    again = "slower than eager when it was captured again"  # nobody asked to keep it
    assert [b.reason for b in report.buckets] == [again, again, "ok", "slower than eager"]


@pytest.mark.parametrize(
    ("entry", "accelerated", "expected"),
    [
        ({}, True, [64, 192, 256]),
        ({"prune_slower_than_eager": False}, True, SIZES),
        ({"enable_padding": False}, True, SIZES),  # the larger one cannot stand in
        ({}, False, SIZES),
    ],
)
def test_a_bucket_goes_when_a_larger_one_is_as_fast(entry, accelerated, expected):
    times = {64: (1.0, 9.0), 128: (3.0, 9.0), 192: (3.0, 9.0), 256: (4.0, 9.0)}
    backend = SpyBackend(accelerated=accelerated, times=times.__getitem__)
    _, report = capture(backend, **entry)
    assert kept(report) == expected
    assert [b.reason for b in report.buckets if not b.kept] == ["192x4 is as fast"] * (
        expected != SIZES
    )


def test_a_bucket_that_goes_itself_replaces_none():
    times = {64: (1.0, 9.0), 128: (3.0, 9.0), 192: (3.0, 2.0), 256: (4.0, 9.0)}
    _, report = capture(SpyBackend(accelerated=True, times=times.__getitem__))
    assert kept(report) == [64, 128, 256]


# ---- buckets that a larger one replaces, at the next start -----------------------------------

REPLACED = {64: (1.0, 9.0), 128: (3.0, 9.0), 192: (3.0, 9.0), 256: (4.0, 9.0)}


def start(times=REPLACED, **entry) -> tuple[SpyBackend, FakeTower, TowerReport]:
    backend = SpyBackend(accelerated=entry.pop("accelerated", True), times=times.__getitem__)
    return backend, *capture(backend, **entry)


def test_a_replaced_bucket_is_not_captured_again():
    backend, _, first = start()
    assert backend.captured == [256, 192, 128, 64]
    assert first.buckets[1].reason == "192x4 is as fast"
    backend, tower, report = start()
    assert backend.captured == sorted(backend.alive, reverse=True) == [256, 192, 64]
    assert kept(report) == [64, 192, 256]
    assert report.buckets[1] == BucketReport(
        num_tokens=128,
        max_segments=4,
        capture_ms=None,
        replay_ms=None,
        eager_ms=None,
        kept=False,
        reason="192x4 is as fast, as found earlier",
    )
    items = [make_item((100,))]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().replays == {"192x4": 1}


def test_a_bucket_that_was_kept_once_comes_back_after_a_start_that_dropped_it():
    """Or a chance of timing at one of many starts would cost it for good."""
    clear = REPLACED | {128: (2.0, 9.0)}
    start(clear)
    _, _, report = start()
    assert kept(report) == [64, 192, 256]
    _, _, report = start(clear)
    assert kept(report) == SIZES


@pytest.mark.parametrize(
    "entry",
    [
        {"prune_slower_than_eager": False},
        {"enable_padding": False},
        {"search_seconds": 0},
        {"accelerated": False},
        {"buckets": [(64, 4), (128, 4), (256, 4)]},  # what replaces it is not asked for
    ],
)
def test_a_replaced_bucket_is_captured_where_nothing_may_or_can_stand_in(entry):
    start()
    backend, _, report = start(**entry)
    assert 128 in backend.captured
    assert 128 in kept(report) or entry == {"search_seconds": 0}


def test_a_replaced_bucket_is_captured_when_the_other_is_dropped(monkeypatch):
    start()
    slow = REPLACED | {192: (3.0, 1.0)}
    backend, _, report = start(slow)
    assert kept(report) == [64, 128, 256]
    backend, _, report = start()
    assert backend.captured == [256, 192, 64]  # that it was slower once says nothing
    differs = {192}
    monkeypatch.setattr(
        MultimodalEncoderGraphRunner,
        "self_check",
        lambda self, bucket: ["features"] * (bucket.num_tokens in differs),
    )
    _, _, report = start(self_check=True)
    assert kept(report) == [64, 128, 256]
    differs.clear()
    _, _, report = start(self_check=True)
    assert kept(report) == [64, 192, 256]


def test_only_what_another_replaces_is_remembered():
    slow = REPLACED | {64: (3.0, 1.0), 128: (2.0, 9.0)}
    for _ in range(2):
        backend, _, report = start(slow)
        assert backend.captured == [256, 192, 128, 64]
        assert kept(report) == [128, 192, 256]


def test_without_the_cache_or_computed_otherwise_it_is_captured_again(monkeypatch):
    start()
    with monkeypatch.context() as otherwise:
        otherwise.setattr(FakeTower, "fused_layers", False)
        assert start()[0].captured == [256, 192, 128, 64]
    assert start()[0].captured == [256, 192, 64]
    shutil.rmtree(cache_dir())
    assert start()[0].captured == [256, 192, 128, 64]


def test_a_capture_that_fails_remembers_nothing():
    backend = SpyBackend(accelerated=True, times=REPLACED.__getitem__, fail_at=3)
    capture(backend)
    assert start()[0].captured == [256, 192, 128, 64]


@pytest.mark.parametrize("accelerated", [True, False])
def test_what_first_runs_load_is_not_the_graphs_memory(accelerated, monkeypatch):
    """That of eager runs neither; but afterwards they leave no memory where the arenas come."""

    class Noting(SpyBackend):
        def run(self, body):
            events.append("where captures run:")
            super().run(body)

        def memory_in_use(self, *, settled=True):
            events.append("memory" if settled else "memory now")
            return super().memory_in_use(settled=settled)

    def noted(self, inputs, metadata):
        events.append(f"run {len(inputs['x'])}")
        return forward(self, inputs, metadata)

    events: list[str] = []
    forward = FakeTower.encoder_forward
    monkeypatch.setattr(FakeTower, "encoder_forward", noted)
    capture(Noting(accelerated=accelerated, times=lambda n: (1.0, 2.0)))
    rehearsal = ["where captures run:", "run 256"] * accelerated
    eager = ["run 256"] * accelerated
    expected = [*rehearsal, *eager, "memory", *rehearsal, "memory now"]
    assert events[: len(expected)] == expected


def test_what_is_not_used_goes_before_the_next_capture():
    """The driver keeps the memory of a graph that is gone for the next one."""

    class Watching(SpyBackend):
        def capture(self, body, *, warmup_steps):
            there.append(sorted(self.alive))
            return super().capture(body, warmup_steps=warmup_steps)

    there: list[list[int]] = []
    backend = Watching(accelerated=True, times=lambda n: (max(n, 192) / 100, 9.0))
    _, report = capture(backend)
    assert kept(report) == [192, 256]
    assert there == [[], [256], [192, 256], [192, 256]]


def test_all_pruned_gives_everything_back_and_says_so():
    backend = SpyBackend(accelerated=True, times=lambda n: (2.0, 1.0))
    tower, report = capture(backend)
    assert (report.status, report.reason) == (
        "eager",
        "every bucket was dropped, see their reasons",
    )
    assert [b.kept for b in report.buckets] == [False] * 4
    assert backend.alive == []
    assert report.graph_memory_bytes == 0
    items = [make_item((8,))]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"slower_than_eager": 1}


def test_measured_replay_times_reach_the_packer():
    """The smallest bucket measures badly, so the next one serves its loads."""
    times = {64: (9.0, 10.0), 128: (1.0, 2.0), 192: (2.0, 3.0), 256: (3.0, 4.0)}
    tower, _ = capture(SpyBackend(accelerated=True, times=times.__getitem__))
    (step,) = tower.plan([(8,)])
    assert step.bucket.num_tokens == 128
    tower, _ = capture(SpyBackend(accelerated=False, times=times.__getitem__))
    (step,) = tower.plan([(8,)])
    assert step.bucket.num_tokens == 64


def line(tokens, kept=True, ms=1.0, longest=None):
    return BucketReport(
        num_tokens=tokens,
        max_segments=2,
        max_segment_len=longest,
        replay_ms=ms,
        kept=kept,
        reason="",
        capture_ms=None,
        eager_ms=None,
    )


def test_a_line_says_what_was_measured():
    times = CaptureTimes(3.0, 2.0, 1.0, memory_bytes=7, variant="other")
    assert _line(Bucket(64, 2, 16), times, "why", kept=False) == BucketReport(
        num_tokens=64,
        max_segments=2,
        max_segment_len=16,
        capture_ms=3.0,
        replay_ms=2.0,
        eager_ms=1.0,
        memory_bytes=7,
        variant="other",
        kept=False,
        reason="why",
    )


def test_short_segments_come_first_in_the_report():
    few, many = line(64, longest=64), line(64, longest=16)
    assert _sorted([line(128), few, many]) == [many, few, line(128)]


# ---- failure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_at", [0, 2, 3])
def test_failure_goes_eager_with_a_warning(fail_at, caplog):
    backend = SpyBackend(fail_at=fail_at)
    tower, report = capture(backend)
    label = f"{SIZES[::-1][fail_at]}x4"
    assert report.status == "eager"
    assert f"capture of bucket {label} failed: RuntimeError: no memory" in report.reason
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert label in record.getMessage()
    assert "no memory for this one" in record.getMessage()
    assert backend.alive == []
    items = [make_item((8,)), make_item((300, 4), tag=1)]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"capture_failed": 3}  # cut at the eager budget


@pytest.mark.parametrize("accelerated", [True, False])
def test_whatever_an_encoder_raises_goes_eager(accelerated, monkeypatch):
    """In a rehearsal too: it is the capture that says which bucket failed."""

    def forward(*args):
        raise TypeError("a bug of the encoder")

    monkeypatch.setattr(FakeTower, "encoder_forward", forward)
    _, report = capture(SpyBackend(accelerated=accelerated))
    why = "capture of bucket 256x4 failed: TypeError: a bug of the encoder"
    assert (report.status, report.reason) == ("eager", why)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ("self_check", "check of bucket 256x4 failed: RuntimeError: an illegal address"),
        ("time_segments", "timing of attention failed: RuntimeError: an illegal address"),
    ],
)
def test_failure_of_what_is_captured_already_goes_eager_too(broken, what, monkeypatch):
    """Checks and timings replay: what is wrong with a graph may show there first."""

    def fail(*args):
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(MultimodalEncoderGraphRunner, broken, fail)
    backend = SpyBackend(accelerated=True, times=lambda n: (n / 50, 9.0))
    tower, report = capture(backend, self_check=broken == "self_check")
    assert (report.status, report.reason, report.buckets) == ("eager", what, [])
    assert backend.alive == []
    items = [make_item((8,))]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {"capture_failed": 1}


def test_failure_raises_when_asked_and_can_be_tried_again():
    backend = SpyBackend(fail_at=1)
    tower = FakeTower()
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=4, on_capture_failure="raise"))
    tower.setup_attn_metadata(max_num_tokens=256)
    with pytest.raises(CaptureError, match="bucket 192x4 failed"):
        tower.capture_encoder_cuda_graphs(backend)
    assert backend.alive == []
    assert tower.capture_encoder_cuda_graphs(SpyBackend()).status == "captured"


def test_progress_bar_only_on_a_terminal(capsys):
    capture(SpyBackend())
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    capture(SpyBackend())
    shown = sys.stderr.getvalue()
    assert "Capturing image encoder graphs: 64x4" in shown
    assert "4/4" in shown


def test_progress_counts_what_need_not_be_captured(monkeypatch):
    start()
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    start()
    assert "4/4" in terminal.getvalue()


def test_memory_of_each_bucket_is_in_the_report():
    """The largest comes first and brings the buffers; the small ones fit into what it left."""

    def times(tokens: int) -> tuple[float, float]:
        return tokens, 2 * tokens

    _, report = capture(SpyBackend(accelerated=True, times=times, bytes_per_token=MIB))
    sizes = {b.num_tokens: b.memory_bytes for b in report.buckets}
    assert sizes == {256: 256 * MIB, 192: 0, 128: 0, 64: 0}

    class Tidying(SpyBackend):
        def memory_in_use(self, *, settled=True):
            return 900 - 100 * len(self.alive)

    _, report = capture(Tidying(accelerated=True, times=times))
    assert [b.memory_bytes for b in report.buckets] == [0] * 4
    _, report = capture(SpyBackend(bytes_per_token=MIB))
    assert [b.memory_bytes for b in report.buckets] == [None] * 4
