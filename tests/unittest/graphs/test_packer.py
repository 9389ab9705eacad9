# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The packer: every segment once, no bound broken, the cheapest cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrt_llm_ext.graphs.buckets import Bucket, EagerReason, Load, ladder
from tensorrt_llm_ext.graphs.layout import Eager, Replay, Step
from tensorrt_llm_ext.graphs.packer import WORTH_CUTTING, Packer

LADDER = ladder(256, 4, unit=4)


def packer(buckets: Sequence[Bucket] = LADDER, **kwargs) -> Packer:
    return Packer(buckets, **{"eager_token_budget": 256, **kwargs})


def summary(steps: Sequence[Step]) -> list[tuple]:
    """(bucket tokens or reason, segment lengths) per step."""
    return [
        (s.bucket.num_tokens if isinstance(s, Replay) else s.reason, s.segment_lengths)
        for s in steps
    ]


def covered(items: Sequence[Sequence[int]], steps: Sequence[Step]) -> None:
    """Every segment exactly once, and the offsets of each run are those of its segments."""
    seen = []
    item_starts = [0, *itertools.accumulate(sum(lengths) for lengths in items)]
    for step in steps:
        lengths = []
        for run in step.runs:
            own = list(items[run.item])
            part = own[run.first_segment : run.first_segment + run.num_segments]
            assert len(part) == run.num_segments > 0
            assert run.num_tokens == sum(part)
            assert run.item_token == sum(own[: run.first_segment])
            assert run.batch_token == item_starts[run.item] + run.item_token
            lengths += part
            seen += [(run.item, run.first_segment + i) for i in range(run.num_segments)]
        assert tuple(lengths) == step.segment_lengths
    assert sorted(seen) == [(i, j) for i, own in enumerate(items) for j in range(len(own))]


def no_bound_broken(steps: Sequence[Step], eager_budget: int, *, exact: bool = False) -> None:
    for step in steps:
        if isinstance(step, Replay):
            assert step.bucket.rejects(step.load, exact=exact) is None
        else:
            assert len(step.segment_lengths) == 1 or step.load.num_tokens <= eager_budget


items_of_segments = st.lists(
    st.lists(st.integers(1, 30).map(lambda n: 4 * n), max_size=6), max_size=6
)
bucket_lists = st.lists(
    st.builds(
        Bucket,
        st.integers(1, 40).map(lambda n: 4 * n),
        st.integers(1, 6),
        st.none() | st.integers(1, 20).map(lambda n: 4 * n),
    ),
    max_size=5,
    unique_by=lambda b: b[:2],  # None and a bound at one shape do not happen together
)


@given(items_of_segments, bucket_lists, st.integers(1, 200), st.booleans())
@settings(max_examples=200, deadline=None)
def test_covers_each_segment_once_within_bounds(items, buckets, eager_budget, padding):
    planner = packer(buckets, eager_token_budget=eager_budget, enable_padding=padding)
    steps = planner.plan(items)
    covered(items, steps)
    no_bound_broken(steps, eager_budget, exact=not padding)
    for step in steps:  # a segment is eager only where no bucket takes it
        if isinstance(step, Eager) and padding:
            for n in step.segment_lengths:
                assert all(b.rejects(Load(n, 1, n)) for b in buckets)


def cuts(n: int) -> Iterator[list[tuple[int, int]]]:
    """All ways to cut a sequence of n into consecutive groups."""
    for inner in itertools.product([False, True], repeat=max(0, n - 1)):
        borders = [0, *(i + 1 for i, cut in enumerate(inner) if cut), n]
        yield list(itertools.pairwise(borders))


def group_cost(group, buckets, cost, exact):
    load = Load(sum(group), len(group), max(group))
    fitting = [cost[b] for b in buckets if b.rejects(load, exact=exact) is None]
    if fitting:
        return (0, min(fitting))
    return (sum(group), 0.0) if len(group) == 1 else None


def brute_force(lengths, buckets, cost, exact=False):
    """Fewest tokens without a bucket, then the least time, over all cuts of both orders."""
    best = None
    for order in (list(lengths), sorted(lengths, reverse=True)):
        for cut in cuts(len(order)):
            costs = [group_cost(order[a:b], buckets, cost, exact) for a, b in cut]
            if None not in costs:
                total = (sum(c[0] for c in costs), sum(c[1] for c in costs))
                best = total if best is None else min(best, total)
    return best


@given(
    st.lists(st.integers(1, 20).map(lambda n: 4 * n), min_size=1, max_size=6),
    bucket_lists.filter(bool),
    st.booleans(),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_equals_brute_force(lengths, buckets, padding, data):
    cost = {b: float(data.draw(st.integers(1, 50))) for b in buckets}
    steps = packer(buckets, cost=cost, enable_padding=padding).plan([lengths])
    got = (
        sum(s.load.num_tokens for s in steps if isinstance(s, Eager)),
        sum(cost[s.bucket] for s in steps if isinstance(s, Replay)),
    )
    best = brute_force(lengths, buckets, cost, exact=not padding)
    one = group_cost(lengths, buckets, cost, not padding)
    assert got == (one if one and one <= (0, WORTH_CUTTING * best[1]) else best)


def test_optimal_over_all_groupings_of_equal_segments():
    """Equal segments: any grouping is a cut, so this optimum is the true one."""
    buckets = [Bucket(16, 1), Bucket(32, 2), Bucket(128, 8)]
    cost = {buckets[0]: 1.0, buckets[1]: 1.5, buckets[2]: 7.0}
    steps = packer(buckets, cost=cost).plan([(16,) * 5])
    assert sorted(s.bucket.num_tokens for s in steps) == [16, 32, 32]  # 4.0, not 5 nor 7


def test_sorting_by_length_pays():
    steps = packer([Bucket(64, 2)]).plan([(8,), (60,), (12,)])
    assert summary(steps) == [(64, (60,)), (64, (12, 8))]  # as given: three replays
    covered([(8,), (60,), (12,)], steps)


def test_given_order_is_kept_when_sorting_gains_nothing():
    (step,) = packer([Bucket(64, 4)]).plan([(8,), (32,)])
    assert step.segment_lengths == (8, 32)
    assert summary(packer([Bucket(64, 1)]).plan([(8,), (32,)])) == [(64, (8,)), (64, (32,))]


def test_measured_cost_decides():
    small, large = Bucket(64, 4), Bucket(128, 4)
    items = [(64,), (64,)]
    one = packer([small, large], cost={small: 1.0, large: 1.9}).plan(items)
    two = packer([small, large], cost={small: 1.0, large: 2.2}).plan(items)
    assert summary(one) == [(128, (64, 64))]
    assert summary(two) == [(64, (64,)), (64, (64,))]
    # A larger bucket that is measured to be faster serves the small load too.
    assert summary(packer([small, large], cost={small: 3.0, large: 1.0}).plan([(8,)])) == [
        (128, (8,))
    ]


@pytest.mark.parametrize(("large_ms", "replays"), [(2.11, 1), (2.13, 2)])
def test_one_replay_is_kept_where_two_are_hardly_cheaper(large_ms, replays):
    small, large = Bucket(64, 4), Bucket(128, 4)
    cost = {small: 1.0, large: large_ms}
    assert len(packer(list(cost), cost=cost).plan([(64,), (64,)])) == replays
    # Four of these would hold as many tokens for less, which only a search can rule out.
    cost[Bucket(32, 4)] = 0.1
    assert len(packer(list(cost), cost=cost).plan([(64,), (64,)])) == replays


def test_small_costs_count_next_to_eager_segments():
    """300 segments without a bucket must not drown the millisecond that a better cut saves."""
    small, large = Bucket(64, 4), Bucket(128, 4)
    items = [(256,)] * 300 + [(64,), (64,)]
    steps = packer([small, large], cost={small: 0.010, large: 0.011}).plan(items)
    assert [s.bucket for s in steps if isinstance(s, Replay)] == [large]
    steps = packer([small, large], cost={small: 0.005, large: 0.011}).plan(items)
    assert [s.bucket for s in steps if isinstance(s, Replay)] == [small, small]


def searches(planner: Packer, items: Sequence[Sequence[int]]) -> int:
    """Sequences that a new plan is searched in."""
    seen = []
    cut = planner._cut
    planner._cut = lambda segments: seen.append(segments) or cut(segments)  # type: ignore[method-assign]
    planner.plan(items)
    return len(seen)


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ((1.0, 1.5), 0),  # two small ones cost more
        ((1.0, 2.0), 0),  # as much
        ((1.0, 2.5), 2),  # less: both orders are tried
        ((3.0, 1.5), 0),  # the large one is cheaper than a small one
    ],
)
def test_one_bucket_that_nothing_can_beat_needs_no_search(costs, expected):
    small, large = Bucket(64, 4), Bucket(128, 4)
    planner = packer([small, large], cost=dict(zip((small, large), costs, strict=True)))
    assert searches(planner, [(20,), (48,), (40,)]) == expected


@pytest.mark.parametrize(
    ("buckets", "kwargs"),
    [
        ([Bucket(64, 4), Bucket(128, 2)], {}),  # too many segments
        ([Bucket(64, 4), Bucket(128, 4, 32)], {}),  # one too long
        ([Bucket(64, 4), Bucket(96, 4)], {}),  # too many tokens
        ([Bucket(64, 4), Bucket(128, 4)], {"enable_padding": False}),  # too few
    ],
)
def test_a_bucket_that_does_not_hold_all_is_not_taken_for_all(buckets, kwargs):
    items = [(20,), (48,), (40,)]
    planner = packer(buckets, **kwargs)
    assert searches(planner, items) == 2
    steps = planner.plan(items)
    covered(items, steps)
    no_bound_broken(steps, 256, exact=bool(kwargs))


def test_a_ladder_serves_small_batches_without_a_search():
    """Costs as they are measured: a floor of a replay, then so much a token."""
    buckets = ladder(4096, 64, unit=4)
    planner = packer(buckets, cost={b: 1.0 + b.num_tokens / 500 for b in buckets})
    for n in range(1, 17):
        assert searches(planner, [(4 * n,)] * 8 + [(n * n,)]) == 0


def test_two_buckets_of_odd_size_that_beat_a_large_one_are_found():
    """What nothing can beat is known in steps of tokens, which the sizes are no multiples of."""
    odd, large = Bucket(5462, 8), Bucket(16383, 8)
    planner = packer([odd, large], cost={odd: 1.0, large: 2.5})
    assert summary(planner.plan([(5462,), (5462,)])) == [(5462, (5462,)), (5462, (5462,))]
    assert summary(planner.plan([(5462,), (5463,)])) == [(16383, (5462, 5463))]


@pytest.mark.parametrize(
    ("sizes", "step", "steps"),
    [
        ((64, 128, 448, 2048), 64, 32),  # what all are multiples of
        ((64, 512 * 512), 513, 512),  # tokens are rounded, so that the table stays small
        ((64, 100_001), 196, 511),
        ((511,), 511, 1),
        ((512, 3), 2, 256),
    ],
)
def test_what_nothing_can_beat_is_kept_in_a_small_table(sizes, step, steps):
    planner = packer([Bucket(size, 4) for size in sizes])
    assert planner._floors[0] == step
    assert len(planner._floors[1]) == 1 + steps


def test_what_nothing_can_beat():
    small, large = Bucket(64, 4), Bucket(256, 4)
    planner = packer([small, large], cost={small: 1.0, large: 1.75})
    assert planner._floors == (64, [0.0, 1.0, 1.75, 1.75, 1.75])


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 9, 200])
def test_long_video_is_cut_at_frame_pairs(frames):
    steps = packer().plan([(64,) * frames])
    covered([(64,) * frames], steps)
    assert [len(s.segment_lengths) for s in steps].count(4) == frames // 4
    assert len(steps) == -(-frames // 4)
    assert all(isinstance(s, Replay) for s in steps)
    assert all(len(s.runs) == 1 for s in steps)  # one copy in, one copy out
    assert sum(s.load.num_tokens for s in steps) == 64 * frames


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], []),
        ([()], []),
        ([(8,)] * 4, [(64, (8,) * 4)]),  # cap
        ([(8,)] * 5, [(64, (8,) * 4), (64, (8,))]),  # cap + 1
        ([(256,)], [(256, (256,))]),  # budget
        ([(260,)], [(EagerReason.TOO_MANY_TOKENS, (260,))]),  # budget + 1
        ([(128, 128)], [(256, (128, 128))]),
        ([(128, 132)], [(192, (132,)), (128, (128,))]),
        (
            [(8,), (1000,), (12,)],
            [(64, (8, 12)), (EagerReason.TOO_MANY_TOKENS, (1000,))],
        ),
        ([(), (16,), ()], [(64, (16,))]),
    ],
)
def test_decisions(items, expected):
    steps = packer().plan(items)
    covered(items, steps)
    got = [(what, tuple(sorted(lengths))) for what, lengths in summary(steps)]
    assert sorted(got, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize(
    ("buckets", "padding", "length", "reason"),
    [
        ([], True, 8, EagerReason.OFF),
        ([Bucket(64, 4)], True, 68, EagerReason.TOO_MANY_TOKENS),
        ([Bucket(64, 4, 16)], True, 20, EagerReason.SEGMENT_TOO_LONG),
        ([Bucket(64, 1, 16)], True, 20, EagerReason.SEGMENT_TOO_LONG),
        ([Bucket(64, 4, 16), Bucket(128, 4, 16)], True, 72, EagerReason.SEGMENT_TOO_LONG),
        ([Bucket(64, 4)], False, 60, EagerReason.NO_EXACT_BUCKET),
        ([Bucket(32, 4), Bucket(64, 4)], False, 48, EagerReason.NO_EXACT_BUCKET),
        ([Bucket(64, 4)], False, 68, EagerReason.TOO_MANY_TOKENS),
        ([Bucket(64, 4), Bucket(128, 4, 16)], False, 60, EagerReason.NO_EXACT_BUCKET),
    ],
)
def test_reasons(buckets, padding, length, reason):
    (step,) = packer(buckets, enable_padding=padding).plan([(length,)])
    assert isinstance(step, Eager)
    assert step.reason is reason


def test_no_bucket_reason_is_the_callers():
    (step,) = packer([], no_bucket_reason=EagerReason.RELEASED).plan([(8,)])
    assert step.reason is EagerReason.RELEASED


def test_two_variants_of_one_size():
    """Few segments of any length, or many short ones: the packer takes the one that fits."""
    few, many = Bucket(256, 4, 256), Bucket(256, 32, 32)
    plan = packer([few, many]).plan
    assert [s.bucket for s in plan([(200,)])] == [few]
    assert [s.bucket for s in plan([(8,)] * 20)] == [many]
    assert {s.bucket for s in plan([(200,)] + [(8,)] * 20)} == {few, many}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([(32,), (32,)], [(64, (32, 32))]),  # together they are exact
        ([(64,)], [(64, (64,))]),
        ([(32,), (28,)], [(EagerReason.NO_EXACT_BUCKET, (32, 28))]),
        ([(60,), (32,), (32,)], [(64, (32, 32)), (EagerReason.NO_EXACT_BUCKET, (60,))]),
    ],
)
def test_without_padding_only_exact_sizes(items, expected):
    assert summary(packer(enable_padding=False).plan(items)) == expected


def test_a_bucket_for_every_token_comes_before_time():
    """5 and 6 together take less, but 3 would be left."""
    cost = {Bucket(8, 4): 10.0, Bucket(11, 4): 1.0, Bucket(10, 4): 2.0, Bucket(4, 4): 2.5}
    steps = packer(list(cost), cost=cost, enable_padding=False).plan([(3,), (5,), (6,), (4,)])
    assert summary(steps) == [(8, (3, 5)), (10, (6, 4))]


def test_eager_steps_are_cut_at_the_eager_budget():
    steps = packer([], eager_token_budget=100).plan([(40, 40, 40), (100,), (300,), (4,)])
    assert [s.segment_lengths for s in steps] == [(40, 40), (40,), (100,), (300,), (4,)]
    steps = packer([], eager_token_budget=100).plan([(60, 41, 60), (30, 10, 1)])
    assert [s.segment_lengths for s in steps] == [(60,), (41,), (60, 30, 10), (1,)]
    (step,) = packer([], eager_token_budget=100).plan([(60, 40)])
    assert step.segment_lengths == (60, 40)


def test_eager_steps_are_cut_where_the_reason_changes():
    planner = packer([Bucket(64, 4, 16)], eager_token_budget=1000)
    steps = planner.plan([(20,), (100,), (24,)])
    assert summary(steps) == [
        (EagerReason.SEGMENT_TOO_LONG, (20,)),
        (EagerReason.TOO_MANY_TOKENS, (100,)),
        (EagerReason.SEGMENT_TOO_LONG, (24,)),
    ]


def test_segments_of_one_item_that_are_no_neighbours_are_not_joined():
    steps = packer([Bucket(64, 2)]).plan([(8, 60, 12)])
    assert summary(steps) == [(64, (60,)), (64, (12, 8))]
    covered([(8, 60, 12)], steps)


def test_neighbours_of_different_items_are_not_joined():
    (step,) = packer().plan([(8, 8), (8, 8)])
    assert [(r.item, r.first_segment, r.num_segments) for r in step.runs] == [(0, 0, 2), (1, 0, 2)]
    assert [(r.item_token, r.batch_token) for r in step.runs] == [(0, 0), (0, 16)]


def test_plan_is_cached_by_layout():
    planner = packer()
    first = planner.plan([(8, 8)])
    assert planner.plan([[8, 8]]) is first
    assert planner.plan([(8,), (8,)]) is not first  # same segments, other items


@pytest.mark.parametrize(("others", "kept"), [(255, True), (256, False)])
def test_256_plans_are_kept(others, kept):
    planner = packer([])
    first = planner.plan([(4,)])
    for n in range(others):
        planner.plan([(8, 4 * (n + 1))])
    assert (planner.plan([(4,)]) is first) is kept
