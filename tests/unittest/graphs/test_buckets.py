# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The ladder of buckets, and the one place that says what fits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrt_llm_ext.graphs.buckets import (
    Bucket,
    EagerReason,
    Load,
    bounded,
    ladder,
    short_and_long,
)


def sizes(budget: int, *, unit: int = 4, segments: int = 8) -> list[int]:
    return [bucket.num_tokens for bucket in ladder(budget, segments, unit=unit)]


@pytest.mark.parametrize(
    ("budget", "unit", "expected"),
    [
        (4, 4, [4]),
        (7, 4, [4]),
        (60, 4, [60]),
        (64, 4, [64]),
        (65, 4, [64]),
        (68, 4, [64, 68]),
        (512, 4, [64, 128, 192, 256, 320, 384, 448, 512]),
        (1024, 4, [*range(64, 513, 64), 576, 640, 704, 768, 832, 896, 960, 1024]),
        (1300, 4, [*range(64, 1025, 64), 1152, 1280, 1300]),
        (2306, 4, [*range(64, 1025, 64), *range(1152, 2049, 128), 2304]),
        (200, 9, [63, 126, 189, 198]),
        (300, 100, [100, 200, 300]),
        (50, 1, [50]),
    ],
)
def test_ladder_sizes(budget, unit, expected):
    assert sizes(budget, unit=unit) == expected


@pytest.mark.parametrize(
    ("budget", "unit", "rowless", "expected"),
    [
        (300, 1, 10, [80, 144, 208, 272, 300]),
        (300, 1, 16, [80, 144, 208, 272, 300]),
        (300, 1, 17, [96, 160, 224, 288, 300]),
        (80, 1, 10, [80]),
        (79, 1, 10, [79]),
        (2100, 4, 12, [*range(80, 1041, 64), *range(1168, 2065, 128), 2100]),
        (200, 9, 9, [72, 144, 198]),
    ],
)
def test_a_round_number_of_rows_and_tokens_without_rows_fill_a_bucket(
    budget, unit, rowless, expected
):
    made = ladder(budget, 8, unit=unit, rowless_tokens=rowless)
    assert [bucket.num_tokens for bucket in made] == expected


@pytest.mark.parametrize(("budget", "unit"), [(3, 4), (0, 1), (99, 100), (-8, 4)])
def test_ladder_budget_too_small(budget, unit):
    with pytest.raises(ValueError, match=rf"budget of {budget} cannot hold .*max_num_tokens to"):
        ladder(budget, 1, unit=unit)


def test_ladder_segments_never_above_what_fits():
    assert [b.max_segments for b in ladder(192, 20, unit=4)] == [16, 20, 20]
    assert {b.max_segments for b in ladder(1024, 3, unit=4)} == {3}


@given(
    budget=st.one_of(st.integers(513, 20_000), st.sampled_from([1024, 4096, 8192, 16384])),
    unit=st.sampled_from([1, 4, 9, 16]),
)
@settings(deadline=None)
def test_ladder_padding_bound(budget, unit):
    """Every token count that the budget holds has a bucket, with bounded slack."""
    ladder_sizes = sizes(budget, unit=unit)
    assert ladder_sizes[-1] == budget - budget % unit
    assert all(size % unit == 0 for size in ladder_sizes)
    # The worst load of each bucket is one unit above the bucket before it.
    for below, size in pairwise([0, *ladder_sizes]):
        worst = below + unit
        if worst > 512:
            assert size - worst <= worst / 8, (below, size)
        else:
            assert size - worst < 64 + unit


@pytest.mark.parametrize("budget", [520, 1000, 4096, 5000])
def test_ladder_padding_bound_of_every_count(budget):
    ladder_sizes = sizes(budget)
    for tokens in range(516, budget - budget % 4 + 1, 4):
        slack = min(size for size in ladder_sizes if size >= tokens) - tokens
        assert slack <= tokens * 0.125, tokens


BOUNDED = Bucket(64, 4, 16)


@pytest.mark.parametrize(
    ("bucket", "load", "exact", "reason"),
    [
        (BOUNDED, Load(63, 4, 16), False, None),
        (BOUNDED, Load(64, 4, 16), False, None),
        (BOUNDED, Load(65, 4, 16), False, EagerReason.TOO_MANY_TOKENS),
        (BOUNDED, Load(64, 3, 16), False, None),
        (BOUNDED, Load(64, 5, 16), False, EagerReason.TOO_MANY_SEGMENTS),
        (BOUNDED, Load(64, 4, 15), False, None),
        (BOUNDED, Load(64, 4, 17), False, EagerReason.SEGMENT_TOO_LONG),
        (Bucket(64, 4), Load(64, 4, 64), False, None),
        (Bucket(64, 4), Load(63, 4, 63), True, EagerReason.NO_EXACT_BUCKET),
        (Bucket(64, 4), Load(64, 1, 64), True, None),
        (Bucket(64, 4), Load(65, 1, 65), True, EagerReason.TOO_MANY_TOKENS),
        (Bucket(64, 1), Load(4, 1, 4), False, None),
        (Bucket(64, 1), Load(8, 2, 4), False, EagerReason.TOO_MANY_SEGMENTS),
    ],
)
def test_rejects(bucket, load, exact, reason):
    assert bucket.rejects(load, exact=exact) is reason


def test_label():
    assert Bucket(4096, 8).label == "4096x8"


@pytest.mark.parametrize(
    ("bucket", "lengths"),
    [
        (Bucket(64, 4), (16,) * 4),
        (Bucket(64, 1), (64,)),
        (Bucket(64, 9), (16,) * 4),
        (Bucket(10, 4), (2,) * 4),  # the rest is slack
        (Bucket(3, 8), (1,) * 3),
        (Bucket(64, 8, 16), (16,) * 4),  # as few as hold it
        (Bucket(60, 8, 16), (15,) * 4),
        (Bucket(70, 8, 16), (14,) * 5),
        (Bucket(64, 2, 16), (16,) * 2),
        (Bucket(100, 3, 100), (33,) * 3),
        (Bucket(100, 1, 100), (100,)),
        (Bucket(100, 9, 100), (25,) * 4),  # four at least
        (Bucket(3, 8, 2), (1,) * 3),
        (Bucket(11, 8), (2,) * 5),
        (Bucket(2048, 64), (512,) * 4),
        (Bucket(2565, 64), (427,) * 6),
        (Bucket(2560, 64), (512,) * 5),  # what attention takes is not wanted in a time
        (Bucket(2560, 4), (640,) * 4),
        (Bucket(2560, 64, 1536), (512,) * 5),
    ],
)
def test_even_segments(bucket, lengths):
    assert bucket.even_segments == lengths


@pytest.mark.parametrize(
    ("bucket", "longest", "short"),
    [
        (Bucket(64, 4), 64, False),
        (Bucket(64, 4, 64), 64, False),
        (Bucket(64, 4, 16), 16, True),
        (Bucket(13, 1, 104), 13, False),  # no segment is longer than the bucket
    ],
)
def test_longest_segment(bucket, longest, short):
    assert bucket.longest_segment == longest
    assert bucket.for_short_segments is short


@pytest.mark.parametrize(
    ("bucket", "refine", "expected"),
    [
        (Bucket(1024, 16), True, [(1024, 16, 1024)]),
        (Bucket(1024, 17), True, [(1024, 8, 1024), (1024, 17, 588)]),
        (Bucket(1024, 22), True, [(1024, 8, 1024), (1024, 22, 472)]),  # 472.6
        (Bucket(1012, 64), True, [(1012, 8, 1012), (1012, 64, 180)]),  # 178 rounded up to units
        (Bucket(1024, 64), False, [(1024, 64, 1024)]),
    ],
)
def test_bounded(bucket, refine, expected):
    assert list(bounded(bucket, unit=4, refine=refine)) == expected


@pytest.mark.parametrize(
    ("bucket", "short", "expected"),
    [
        (Bucket(128, 8), 64, [(128, 8, None)]),
        (Bucket(132, 8), 64, [(132, 8, 64), (132, 8, 132)]),
        (Bucket(132, 8), 63, [(132, 8, 60), (132, 8, 132)]),  # rounded down to units
        (Bucket(512, 8), 64, [(512, 8, 64), (512, 8, 512)]),
        (Bucket(516, 8), 64, [(516, 8, None)]),  # eight short ones are 512 tokens at most
    ],
)
def test_short_and_long(bucket, short, expected):
    assert list(short_and_long(bucket, short, unit=4)) == expected
