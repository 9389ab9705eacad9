# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Measured eager times: when a batch goes without graphs although they would fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.graphs import capture as capture_module
from tensorrt_llm_ext.graphs.buckets import Bucket, EagerReason, Load
from tensorrt_llm_ext.graphs.captured import WORTH_EAGER, CaptureTimes
from tensorrt_llm_ext.graphs.costs import attention_ns, eager_times, replay_times
from tensorrt_llm_ext.graphs.layout import Eager, Replay
from tensorrt_llm_ext.graphs.packer import Packer
from tensorrt_llm_ext.graphs.report import BucketReport, TowerReport
from tensorrt_llm_ext.towers.audio_adapter import ChunkedAudioIOAdapter, ChunkGeometry

from .fakes import SpyBackend, assert_outputs, captured_tower, make_adapter, make_item

BUCKETS = [Bucket(64, 4), Bucket(128, 4)]
COST = {BUCKETS[0]: 1.0, BUCKETS[1]: 1.8}


def report_of(eager_ms: dict[int, float | None], accelerated: bool = True) -> TowerReport:
    lines = [
        BucketReport(
            num_tokens=tokens,
            max_segments=4,
            max_segment_len=None,
            capture_ms=1.0,
            replay_ms=1.0,
            eager_ms=ms,
            kept=True,
            reason="ok",
        )
        for tokens, ms in eager_ms.items()
    ]
    return TowerReport(modality="image", status="captured", accelerated=accelerated, buckets=lines)


@pytest.mark.parametrize(
    ("eager_ms", "lengths", "eager"),
    [
        (3.0, [128, 128], True),  # two replays cost 3.6
        (3.6, [128, 128], False),  # a tie goes to the graphs
        (3.53, [128, 128], False),  # not worth it: below 2 %
        (3.52, [128, 128], True),
        (1.7, [64, 32], True),  # one replay costs 1.8
        (1.9, [64, 32], False),
    ],
)
def test_whole_batch_goes_eager_where_that_is_cheaper(eager_ms, lengths, eager):
    packer = Packer(BUCKETS, cost=COST, eager_cost=lambda load: eager_ms)
    steps = packer.plan([[n] for n in lengths])
    if eager:
        assert [type(s) for s in steps] == [Eager]
        assert steps[0].reason is EagerReason.SLOWER_THAN_EAGER
        assert steps[0].load.num_tokens == sum(lengths)
    else:
        assert {type(s) for s in steps} == {Replay}


def test_exactly_the_factor_is_not_enough():
    assert not CaptureTimes(0.0, 1.0, WORTH_EAGER).slower_than_eager
    packer = Packer([BUCKETS[0]], cost={BUCKETS[0]: 1.0}, eager_cost=lambda load: WORTH_EAGER)
    assert isinstance(packer.plan([[64]])[0], Replay)


def test_eager_budget_counts_the_steps_it_takes():
    """Cut by the budget into two eager steps, eager is no longer the cheaper way."""
    cost = {"cost": COST, "eager_cost": lambda load: 2.0}
    assert isinstance(Packer(BUCKETS, **cost).plan([[128], [128]])[0], Eager)
    steps = Packer(BUCKETS, **cost, eager_token_budget=128).plan([[128], [128]])
    assert [type(s) for s in steps] == [Replay, Replay]


def test_leftovers_without_a_bucket_are_counted_on_both_sides():
    """A segment that must run eagerly takes the rest along where that is cheaper."""
    packer = Packer(BUCKETS, cost=COST, eager_cost=lambda load: 5.0)
    (step,) = packer.plan([[256], [64]])  # 5 for all against 5 + 1
    assert step.reason is EagerReason.SLOWER_THAN_EAGER
    packer = Packer(BUCKETS, cost=COST, eager_cost=lambda load: load.num_tokens / 10)
    steps = packer.plan([[256], [64]])  # 32 against 25.6 + 1
    assert [type(s) for s in steps] == [Replay, Eager]
    assert steps[1].reason is EagerReason.TOO_MANY_TOKENS


def test_eager_times_interpolate_and_extrapolate():
    at = eager_times(report_of({64: 2.0, 128: 4.0, 256: 5.0, 512: None}))
    assert at is not None
    loads = [Load(n, 1, n) for n in (4, 64, 96, 192, 256, 512)]
    assert [at(load) for load in loads] == [2.0, 2.0, 3.0, 4.5, 5.0, 10.0]
    assert eager_times(report_of({64: 2.0}, accelerated=False)) is None
    assert eager_times(report_of({64: None})) is None
    assert eager_times(None) is None


# ---- what attention costs is left out --------------------------------------------------------

MS_PER_TOKEN, NS_PER_PAIR = 1.75e-3, 0.3  # Qwen3-VL-8B on an H200


def true_ms(lengths: Sequence[int], padding: int = 0) -> float:
    pairs = sum(n * n for n in lengths) + padding * 64
    return 0.5 + (sum(lengths) + padding) * MS_PER_TOKEN + pairs * NS_PER_PAIR / 1e6


def twins(tokens: int, max_segments: int = 64) -> list[BucketReport]:
    """A size in both shapes, timed as a capture would."""
    lines = []
    for bound in (512, tokens):
        bucket = Bucket(tokens, max_segments, bound)
        ms = true_ms(bucket.even_segments)
        lines.append(
            BucketReport(
                num_tokens=tokens,
                max_segments=max_segments,
                max_segment_len=bound,
                replay_ms=ms,
                eager_ms=ms + 0.2,
                kept=True,
                reason="ok",
            )
        )
    return lines


SIZES = (2048, 2560, 4096, 6656, 10240, 16384)


def measured(attention_ns: float = NS_PER_PAIR, max_segments: int = 64) -> TowerReport:
    return TowerReport(
        modality="image",
        status="captured",
        accelerated=True,
        attention_ns=attention_ns,
        buckets=[line for tokens in SIZES for line in twins(tokens, max_segments)],
    )


def planned(lengths: list[int], report: TowerReport) -> list[int]:
    costs = replay_times(report)
    assert costs is not None
    steps = Packer(list(costs), cost=costs).plan([[n] for n in lengths])
    return [step.bucket.num_tokens for step in steps if isinstance(step, Replay)]


def test_replay_times():
    lines = twins(2048) + twins(2560) + twins(4096)
    lines[1].kept = False
    lines[2].replay_ms = None
    report = TowerReport(modality="image", status="captured", accelerated=True, buckets=lines)
    assert replay_times(report) == {line.bucket: line.replay_ms for line in (lines[0], *lines[3:])}
    assert replay_times(report.model_copy(update={"accelerated": False})) is None
    assert replay_times(None) is None


def test_costs_grow_with_the_tokens_alone():
    costs = replay_times(measured())
    assert costs is not None
    for tokens in SIZES:
        expected = pytest.approx(0.5 + tokens * MS_PER_TOKEN)
        assert costs[Bucket(tokens, 64, 512)] == expected
        assert costs[Bucket(tokens, 64, tokens)] == expected


@pytest.mark.parametrize("lengths", [[2500] * 4, [625] * 16, [1600] * 4, [4096] * 4, [1024] * 16])
def test_middling_segments_go_together(lengths):
    """Large buckets were timed with longer ones, which does not make them dear."""
    smallest = min(n for n in SIZES if n >= sum(lengths))
    assert planned(lengths, measured()) == [smallest]


def test_without_it_they_would_not():
    """Buckets for few segments are timed with long ones: there is nothing else to fill them."""
    assert planned([2500] * 4, measured(max_segments=4)) == [10240]
    assert len(planned([2500] * 4, measured(attention_ns=0.0, max_segments=4))) > 1


def test_a_twin_for_long_segments_is_never_the_cheaper_one():
    """Times are noisy, and its attention wastes time on short segments."""
    report = measured()
    for line in report.buckets:
        if line.max_segment_len == line.num_tokens:
            line.replay_ms -= 0.3
    costs = replay_times(report)
    assert costs is not None
    assert all(costs[Bucket(n, 64, n)] == costs[Bucket(n, 64, 512)] for n in SIZES)
    packer = Packer(list(costs), cost=costs)
    (step,) = packer.plan([[256]] * 8)
    assert step.bucket == Bucket(2048, 64, 512)


def test_twins_are_told_apart_by_their_segments():
    """Of two shapes with bounds the one for few long segments comes first in the report."""
    few, many = twins(2048)[::-1]
    few.max_segments, few.replay_ms, few.eager_ms = 8, 3.0, 9.0
    report = TowerReport(
        modality="image", status="captured", accelerated=True, attention_ns=0.1, buckets=[few, many]
    )
    assert few.bucket < many.bucket
    costs, at = replay_times(report), eager_times(report)
    assert costs is not None
    assert at is not None
    assert costs[few.bucket] == costs[many.bucket] > 3.0
    assert at(Load(2048, 1, 2048)) == pytest.approx(many.eager_ms - 2048 * 512 * 0.1 / 1e6)


def test_eager_times_are_those_of_short_segments_where_there_are_two():
    """A run that the host holds up hides attention: there is nothing to take off."""
    report = measured()
    for line in report.buckets:
        line.eager_ms = max(line.eager_ms, 10.0)
    at = eager_times(report)
    assert at is not None
    for n in (2048, 2560, 4096):
        attention_ms = n * 512 * NS_PER_PAIR / 1e6  # of what it was timed with
        assert at(Load(n, 1, n)) == pytest.approx(10.0 - attention_ms)
    assert at(Load(16384, 1, 16384)) == pytest.approx(0.7 + 16384 * MS_PER_TOKEN)


class Timed:
    """A runner whose replays take what their layout takes."""

    def __init__(self, per_pair: float = NS_PER_PAIR, adapter: Any = None) -> None:
        self.adapter = adapter or make_adapter()
        self.per_pair = per_pair
        self.buckets: list[Bucket] = []

    def time_segments(self, bucket: Bucket, segments: tuple[int, ...]) -> float:
        layout = self.adapter.layout_of(bucket, segments)
        assert sum(layout) == bucket.num_tokens
        assert len(layout) <= self.adapter.num_segment_slots(bucket)
        self.buckets.append(bucket)
        return bucket.num_tokens * MS_PER_TOKEN + self.per_pair * sum(n * n for n in layout) / 1e6


@pytest.mark.parametrize(
    "buckets",
    [
        [Bucket(4096, 8), Bucket(16384, 8)],
        [Bucket(16384, 64, 512), Bucket(16384, 8, 16384), Bucket(8192, 64, 8192)],
        [Bucket(16384, 1)],
        # Of the largest size only the shape for short ones was kept, which tells nothing.
        [Bucket(16384, 64, 16384), Bucket(20480, 64, 512)],
    ],
)
def test_what_attention_takes_is_told_by_the_bucket_for_the_longest_segments(buckets):
    runner: Any = Timed()
    assert attention_ns(runner, buckets) == pytest.approx(NS_PER_PAIR)
    assert {(b.num_tokens, b.longest_segment) for b in runner.buckets} == {(16384, 16384)}


@pytest.mark.parametrize("held_up", [0, 1, 2, 3])
def test_a_host_that_was_held_up_once_changes_nothing(held_up):
    """Buckets of 16384 tokens would seem to take no time without attention: all would go there."""
    runner: Any = Timed()
    delays = [1000.0 * (i == held_up) for i in range(4)]
    plain = runner.time_segments
    runner.time_segments = lambda *args: plain(*args) + delays.pop(0)
    assert attention_ns(runner, [Bucket(16384, 64)]) == pytest.approx(NS_PER_PAIR)
    assert delays == []


@pytest.mark.parametrize("chunks", [1, 4, 8, 24])
def test_layouts_fill_a_bucket_whose_bound_lies_above_its_tokens(chunks):
    """An audio bucket of a few chunks holds less than a window; kernels go by the offsets."""
    geometry = ChunkGeometry(8, 100, 8, mask_short_clips=True)
    adapter = ChunkedAudioIOAdapter(
        geometry, out_width=4, dtype=torch.float32, bakes_max_segment_len=True
    )
    (bucket,) = adapter.buckets(
        explicit=[(chunks * 13, chunks)], max_segments=None, token_budget=999, enable_padding=True
    )
    assert bucket.max_segment_len == 104
    runner: Any = Timed(adapter=adapter)
    attention_ns(runner, [bucket])


def test_attention_of_one_length_tells_nothing():
    runner: Any = Timed()
    assert attention_ns(runner, [Bucket(64, 4), Bucket(128, 4, 16)]) == 0.0
    # Slack of the smaller one is cut into shorter pieces, but it is not the one to ask.
    assert attention_ns(runner, [Bucket(1152, 64, 512), Bucket(16384, 64, 512)]) == 0.0
    assert runner.buckets == []
    runner = Timed(per_pair=-1.0)  # noise
    assert attention_ns(runner, [Bucket(4096, 8)]) == 0.0


@pytest.mark.parametrize("accelerated", [True, False])
def test_a_capture_reports_it(accelerated, monkeypatch):
    monkeypatch.setattr(capture_module, "attention_ns", lambda runner, buckets: 0.25)
    backend = SpyBackend(accelerated=accelerated, times=lambda n: (1.0, 2.0))
    report = captured_tower(64, backend, max_batch_size=4).capture_encoder_cuda_graphs()
    assert report.attention_ns == (0.25 if accelerated else 0.0)


@pytest.mark.parametrize(("prune", "eager"), [(True, {"slower_than_eager": 1}), (False, {})])
def test_prune_off_keeps_replaying(prune, eager):
    """Each bucket wins against its own eager run, two of them lose against one eager run."""
    backend = SpyBackend(accelerated=True, times=lambda n: (1.0, 1.1))
    tower = captured_tower(64, backend, max_batch_size=4, prune_slower_than_eager=prune)
    tower.setup_attn_metadata(max_num_tokens=128)
    # Beyond the only bucket, eager is taken to grow with the tokens: 2.2 against 2.0 replayed.
    items = [make_item((64,)), make_item((64,), tag=1)]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == {}
    tower._report.buckets[0].eager_ms = 0.9  # 1.8 against 2.0
    tower._planners.clear()
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().eager == eager
