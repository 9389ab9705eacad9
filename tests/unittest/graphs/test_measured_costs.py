# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Measured eager times: when a batch goes without graphs although they would fit."""

from __future__ import annotations

import pytest

from tensorrt_llm_ext.graphs.buckets import Bucket, EagerReason, Load
from tensorrt_llm_ext.graphs.capture import eager_times
from tensorrt_llm_ext.graphs.captured import WORTH_EAGER, CaptureTimes
from tensorrt_llm_ext.graphs.layout import Eager, Replay
from tensorrt_llm_ext.graphs.packer import Packer
from tensorrt_llm_ext.graphs.report import BucketReport, TowerReport

from .fakes import SpyBackend, assert_outputs, captured_tower, make_item

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


def test_the_better_of_two_eager_times_of_a_size_counts():
    report = report_of({64: 2.0, 128: 4.0})
    report.buckets += [b.model_copy(update={"eager_ms": 3.0}) for b in report.buckets]
    at = eager_times(report)
    assert at is not None
    assert [at(Load(n, 1, n)) for n in (64, 128)] == [2.0, 3.0]


def test_eager_times_of_short_segments_stand_in_for_long_ones():
    report = report_of({64: 2.0, 128: 4.0})
    for bucket in report.buckets:
        bucket.max_segment_len = 16
    at = eager_times(report)
    assert at is not None
    assert [at(Load(128, 8, n)) for n in (16, 128)] == [4.0, 4.0]


def test_eager_times_of_long_segments_are_not_those_of_short_ones():
    report = report_of({64: 1.0, 128: 2.0, 256: 9.0})
    short = [b.model_copy(update={"max_segment_len": 32}) for b in report.buckets[1:]]
    for bucket, ms in zip(short, (1.5, 3.0), strict=True):
        bucket.eager_ms = ms
    for bucket in report.buckets[1:]:
        bucket.max_segment_len = bucket.num_tokens
    report.buckets += short
    at = eager_times(report)
    assert at is not None
    assert [at(Load(256, 8, n)) for n in (8, 32, 33, 256)] == [3.0, 3.0, 9.0, 9.0]
    assert [at(Load(n, 8, 8)) for n in (64, 127, 192, 512)] == [1.0, 1.984375, 2.25, 6.0]
    assert at(Load(512, 2, 256)) == 18.0
    assert [at(Load(128, 8, n)) for n in (8, 128)] == [1.5, 2.0]  # the smallest with both


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
