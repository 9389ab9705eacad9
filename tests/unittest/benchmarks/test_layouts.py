# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The batches that are measured are those that were asked for."""

from __future__ import annotations

import itertools
import math

import pytest
from encoder_bench import layouts
from encoder_bench.layouts import frames_of, grids_of
from encoder_bench.timing import Plan


def patches(shapes: layouts.Shapes) -> int:
    return sum(math.prod(grid) for grid in grids_of(shapes))


def test_pictures() -> None:
    cases = {case.name: case for case in layouts.vision_cases(2)}
    assert {name: (len(c.shapes), patches(c.shapes)) for name, c in cases.items()} == {
        "1x64": (1, 64),
        "1x256": (1, 256),
        "1x1024": (1, 1024),
        "1x4096": (1, 4096),
        "8x256": (8, 2048),
        "32x256": (32, 8192),
        "64x256": (64, 16384),
        "128x256": (128, 32768),
        "mixed16": (16, 7840),
        "video8": (1, 4 * 576),  # frames in pairs
    }
    assert len(set(cases["mixed16"].shapes)) == 16
    assert [name for name, case in cases.items() if case.compiled] == ["1x256", "1x1024", "8x256"]
    assert {c.name: c for c in layouts.vision_cases(1)}["video8"].shapes == ((8, 24, 24),)


def test_tiny_pictures_can_be_merged() -> None:
    for case, tiny in zip(layouts.vision_cases(2), layouts.vision_cases(2, tiny=True), strict=True):
        assert (case.name, case.compiled) == (tiny.name, tiny.compiled)
        assert len(case.shapes) == len(tiny.shapes)
        assert patches(tiny.shapes) <= patches(case.shapes) / 8
        assert all(h % 2 == w % 2 == 0 and h and w for _, h, w in grids_of(tiny.shapes))


def test_clips() -> None:
    cases = {case.name: case for case in layouts.audio_cases()}
    assert {name: case.shapes for name, case in cases.items()} == {
        "1s": (100,),
        "30s": (3000,),
        "4x30s": (3000,) * 4,
        "6000": (6000,),
        "3001": (3001,),
        "6001": (6001,),
        "4x3001": (3001,) * 4,
    }
    assert sum(case.compiled for case in cases.values()) == 3
    assert set(layouts.STAGED) == {"3000", "6000", "3001", "6001", "4x3001"}
    budget = layouts.audio_budget(13)
    assert budget.max_num_tokens == 13 * budget.max_batch_size
    longest = max(sum(-(-n // 100) for n in frames_of(c.shapes)) for c in cases.values())
    assert longest <= budget.max_batch_size  # one replay


def test_sweep_of_pictures() -> None:
    points = layouts.vision_sweep()
    assert len(points) == 40
    assert len({(p.tokens, p.segments) for p in points}) == 40
    for point in points:
        assert patches(point.shapes) == point.tokens
        assert len(point.shapes) == point.segments
        sizes = [math.prod(grid) for grid in grids_of(point.shapes)]
        assert max(sizes) - min(sizes) <= 4
        assert all(h % 2 == w % 2 == 0 for _, h, w in grids_of(point.shapes))
    assert max(p.tokens for p in points) == layouts.vision_budget().max_num_tokens


def test_sweep_of_clips() -> None:
    points = layouts.audio_sweep(13, 8)
    assert len(points) == 40
    for point in points:
        chunks = [-(-frames // 100) for frames in frames_of(point.shapes)]
        assert 13 * sum(chunks) == point.tokens
        assert sum(-(-n // 8) for n in chunks) == point.segments
    assert {len(p.shapes) for p in points} == {1, 2, 3, 4}
    assert any(frames % 100 for p in points for frames in frames_of(p.shapes))


@pytest.mark.parametrize("count", [1, 8, 16])
def test_new_layouts_are_new(count: int) -> None:
    rounds = Plan().warmup + Plan().rounds
    shares = [
        list(itertools.islice(layouts.picture_batches(count, share, 4), rounds))
        for share in range(4)
    ]
    assert len({batch for share in shares for batch in share}) == 4 * rounds
    for batch in itertools.chain(*shares):
        assert len(batch) == count
        assert max(math.prod(grid) for grid in grids_of(batch)) <= 256


@pytest.mark.parametrize("frames", [(3000,), (3001,), (3001,) * 4])
def test_new_lengths_take_as_many_chunks(frames: tuple[int, ...]) -> None:
    batches = list(itertools.islice(layouts.clip_batches(frames, 0), 20))
    assert len(set(batches)) > 10
    for batch in batches:
        assert [-(-n // 100) for n in frames_of(batch)] == [-(-n // 100) for n in frames]


def test_names_on_the_command_line() -> None:
    names = layouts.layout_names()
    assert len(set(names)) == len(names) == 17
