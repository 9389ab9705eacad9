# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The packer: cuts a batch of items at segment borders into the cheapest replays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby
from math import gcd
from typing import NamedTuple

from .buckets import Bucket, EagerReason, Load
from .cache import BoundedLRU
from .captured import WORTH_EAGER
from .layout import Eager, Replay, SegmentRun, Step

# Without measurements a replay costs its tokens plus this many, so that one larger replay beats
# two smaller ones of the same total.
_TOKENS_PER_REPLAY = 256
_CACHED_PLANS = 256
WORTH_CUTTING = 1.06
"""One replay is kept unless several cost less by more than this factor. Costs are of replays that
were timed alone, and a busy device lowers its clock: three of 5632 tokens in a row took 9 % longer
than three times one (H200), where one of 16384 had that in its time already."""
_FLOOR_STEPS = 512


class _Segment(NamedTuple):
    item: int
    ordinal: int  # within the item
    num_tokens: int
    item_token: int
    batch_token: int


_Group = tuple[Bucket | None, Sequence[_Segment]]


class Packer:
    """Plans the steps for a batch.

    Segments keep their order or are sorted by length, whichever costs less; within that order
    the cut into groups is optimal for the given cost per bucket (dynamic programming), but one
    replay is kept where several are not clearly cheaper. With a cost of eager runs, a batch that is
    cheaper without graphs goes without.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        cost: Mapping[Bucket, float] | None = None,
        eager_cost: Callable[[Load], float] | None = None,
        enable_padding: bool = True,
        eager_token_budget: int | None = None,
        no_bucket_reason: EagerReason = EagerReason.OFF,
    ) -> None:
        """Prepares the look-up of the cheapest bucket.

        Args:
            buckets: Captured buckets; empty means everything runs eagerly.
            cost: Time per bucket in any one unit; by default a model in tokens.
            eager_cost: Time of an eager run of a load, in the same unit; by default no batch that
                fits goes eager.
            enable_padding: Off: a group is replayed only at its exact number of tokens.
            eager_token_budget: Most tokens in one eager step (a longer segment runs alone); by
                default no limit.
            no_bucket_reason: Reason given when there are no buckets at all.
        """
        self._buckets = sorted(buckets)
        self._cost = cost or {b: b.num_tokens + _TOKENS_PER_REPLAY for b in self._buckets}
        by_cost = sorted(self._buckets, key=lambda b: self._cost[b])
        self._by_cost = [(self._cost[b], b.num_tokens, b.max_segments, b) for b in by_cost]
        self._bounds = sorted(
            (b.max_segment_len, i) for i, b in enumerate(by_cost) if b.max_segment_len is not None
        )
        self._eager_cost = eager_cost
        self._exact = not enable_padding
        self._eager_token_budget = eager_token_budget
        self._no_bucket_reason = no_bucket_reason
        self._plans: BoundedLRU[tuple[Step, ...]] = BoundedLRU(_CACHED_PLANS, lambda plan: 1)

    def plan(self, items: Sequence[Sequence[int]]) -> tuple[Step, ...]:
        """Cuts the batch.

        Args:
            items: Segment lengths (tokens before any merger) per item.

        Returns:
            Steps that cover every segment exactly once; cached by layout.
        """
        return self._plans.get(tuple(map(tuple, items)), lambda: self._make_plan(items))

    def _make_plan(self, items: Sequence[Sequence[int]]) -> tuple[Step, ...]:
        segments = _flatten(items)
        if not segments:
            return ()
        if not self._buckets:
            return self._eager_steps([(s, self._no_bucket_reason) for s in segments])
        steps: list[Step] = []
        leftovers: list[tuple[_Segment, EagerReason]] = []
        for bucket, group in self._cheapest(segments):
            if bucket is None:
                leftovers += [(segment, self._why_not(segment)) for segment in group]
            else:
                steps.append(Replay(*_runs(group), bucket))
        plan = (*steps, *self._eager_steps(leftovers))
        if self._eager_cost is None:
            return plan
        eager = self._within_budget(segments)
        eager_time = sum(self._eager_cost(_load(group)) for group in eager)
        if eager_time >= WORTH_EAGER * self._time(plan, self._eager_cost):
            return plan
        return tuple(Eager(*_runs(group), EagerReason.SLOWER_THAN_EAGER) for group in eager)

    def _cheapest(self, segments: Sequence[_Segment]) -> list[_Group]:
        """The cheapest groups, or one group where several are not clearly cheaper."""
        one = self._one_bucket(_load(segments))
        if one is None:
            return self._best_cut(segments)[1]
        bucket, time, floor = one
        if time > WORTH_CUTTING * floor:
            cost, groups = self._best_cut(segments)
            if time > WORTH_CUTTING * cost:
                return groups
        return [(bucket, segments)]

    def _one_bucket(self, load: Load) -> tuple[Bucket, float, float] | None:
        """The cheapest bucket that holds all, its time, and the least that any number could take.

        The last leaves all bounds but the tokens aside.
        """
        for time, size, _, bucket in self._by_cost:
            if size < load.num_tokens:
                continue  # as ``rejects`` would say, which takes longer
            if bucket.rejects(load, exact=self._exact) is None:
                step, floors = self._floors
                return bucket, time, floors[-(-load.num_tokens // step)]
        return None

    @cached_property
    def _floors(self) -> tuple[int, list[float]]:
        """What tokens cost at least, in any number of buckets whose other bounds are none.

        A step in tokens, and the least time for so many steps, up to the largest bucket. Sizes are
        rounded up to steps, which can only lower it.
        """
        sizes = [bucket.num_tokens for bucket in self._buckets]
        step = max(gcd(*sizes), 1 + max(sizes) // _FLOOR_STEPS)
        steps = [-(-size // step) for size in sizes]
        times = [self._cost[bucket] for bucket in self._buckets]
        floors = [0.0]
        for covered in range(1, 1 + max(steps)):
            pairs = zip(steps, times, strict=True)
            floors.append(min(time + floors[max(covered - n, 0)] for n, time in pairs))
        return step, floors

    def _best_cut(self, segments: Sequence[_Segment]) -> tuple[float, list[_Group]]:
        by_length = sorted(segments, key=lambda s: -s.num_tokens)
        (without, time), groups = self._cut(segments)
        if by_length != segments:
            sorted_cost, sorted_groups = self._cut(by_length)
            if sorted_cost < (without, time):
                (without, time), groups = sorted_cost, sorted_groups
        return time, groups

    def _time(self, steps: Sequence[Step], eager_cost: Callable[[Load], float]) -> float:
        return sum(
            self._cost[s.bucket] if isinstance(s, Replay) else eager_cost(s.load) for s in steps
        )

    def _cut(self, segments: Sequence[_Segment]) -> tuple[tuple[int, float], list[_Group]]:
        """Optimal cut of the sequence into consecutive groups: best[i] covers the first i.

        Costs are (tokens without a bucket, time): here eager is the last resort.
        """
        best: list[tuple[int, float]] = [(0, 0.0)]
        choice: list[tuple[int, Bucket | None]] = [(0, None)]
        tokens = [0, *accumulate(segment.num_tokens for segment in segments)]
        floors = [0] * len(self._by_cost)  # first segment that a bucket's bound allows
        exact = self._exact
        for end, segment in enumerate(segments, start=1):
            without, time = best[-1]
            without += segment.num_tokens
            pick: tuple[int, Bucket | None] = (end - 1, None)
            for longest, i in self._bounds:
                if longest >= segment.num_tokens:
                    break
                floors[i] = end
            total, reached = tokens[end], end
            for i, (bucket_time, size, max_segments, fitting) in enumerate(self._by_cost):
                # The longest group in this bucket that ends here: what comes before it is cheapest.
                # ``Bucket.rejects``, but by bisection: this loop is the host time of a new layout.
                start = bisect_left(tokens, total - size)
                if start < end - max_segments:
                    start = end - max_segments
                if start < floors[i]:
                    start = floors[i]
                # Without padding only the exact size; else a cheaper bucket may hold as much.
                if total - tokens[start] != size if exact else start >= reached:
                    continue
                reached = start
                before, so_far = best[start]
                if before < without or (before == without and so_far + bucket_time < time):
                    without, time, pick = before, so_far + bucket_time, (start, fitting)
                if start == 0:
                    break  # the others cost more
            best.append((without, time))
            choice.append(pick)
        groups: list[_Group] = []
        end = len(segments)
        while end:
            start, bucket = choice[end]
            groups.append((bucket, segments[start:end]))
            end = start
        return best[-1], groups[::-1]

    def _why_not(self, segment: _Segment) -> EagerReason:
        load = Load(segment.num_tokens, 1, segment.num_tokens)
        reasons = [b.rejects(load, exact=self._exact) for b in self._buckets]
        known = [reason for reason in reasons if reason is not None]
        # The largest bucket comes closest, except that an inexact match anywhere says more.
        return EagerReason.NO_EXACT_BUCKET if EagerReason.NO_EXACT_BUCKET in known else known[-1]

    def _eager_steps(self, segments: Sequence[tuple[_Segment, EagerReason]]) -> tuple[Step, ...]:
        in_order = sorted(segments, key=lambda pair: pair[0].batch_token)
        return tuple(
            Eager(*_runs(group), reason)
            for reason, pairs in groupby(in_order, key=lambda pair: pair[1])
            for group in self._within_budget([segment for segment, _ in pairs])
        )

    def _within_budget(self, segments: Sequence[_Segment]) -> list[Sequence[_Segment]]:
        """Cuts a sequence where the tokens of one eager step end."""
        budget = self._eager_token_budget
        groups: list[Sequence[_Segment]] = []
        first = tokens = 0
        for at, segment in enumerate(segments):
            tokens += segment.num_tokens
            if budget is not None and tokens > budget and at > first:
                groups.append(segments[first:at])
                first, tokens = at, segment.num_tokens
        return [*groups, segments[first:]]


def _load(group: Sequence[_Segment]) -> Load:
    lengths = [segment.num_tokens for segment in group]
    return Load(sum(lengths), len(lengths), max(lengths))


def _flatten(items: Sequence[Sequence[int]]) -> list[_Segment]:
    segments = []
    batch_token = 0
    for item, lengths in enumerate(items):
        item_token = 0
        for ordinal, num_tokens in enumerate(lengths):
            segments.append(_Segment(item, ordinal, num_tokens, item_token, batch_token))
            item_token += num_tokens
            batch_token += num_tokens
    return segments


def _runs(group: Sequence[_Segment]) -> tuple[tuple[SegmentRun, ...], tuple[int, ...]]:
    """Joins neighbours of one item, so that a run is one copy in and one copy out."""
    starts: list[_Segment] = []
    counts: list[int] = []
    tokens: list[int] = []
    following: tuple[int, int] | None = None  # item and ordinal that would go on with the run
    for segment in group:
        item, ordinal, num_tokens, _, _ = segment
        if (item, ordinal) == following:
            counts[-1] += 1
            tokens[-1] += num_tokens
        else:
            starts.append(segment)
            counts.append(1)
            tokens.append(num_tokens)
        following = (item, ordinal + 1)
    runs = [
        SegmentRun(s.item, s.ordinal, count, s.item_token, s.batch_token, num_tokens)
        for s, count, num_tokens in zip(starts, counts, tokens, strict=True)
    ]
    return tuple(runs), tuple([segment.num_tokens for segment in group])
