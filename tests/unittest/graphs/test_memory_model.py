# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Storages as they come and go, and what torch's allocator takes from the driver for them."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorrt_llm_ext.graphs.memory_model import (
    CachingAllocator,
    MemoryEvent,
    memory_events,
    peak_bytes,
)

KIB = 1 << 10
MIB = 1 << 20


def events_of(body) -> list[MemoryEvent]:
    with FakeTensorMode():
        return memory_events(body)


def make(kib: float) -> torch.Tensor:
    return torch.zeros(int(kib * KIB), dtype=torch.uint8)


# ---- what comes and goes ---------------------------------------------------------------------


def test_intermediates_come_and_go_in_order() -> None:
    def body() -> torch.Tensor:
        a = make(4)  # 4
        b = a + 1  # 4 + 4
        del a
        return torch.cat([b, b])  # 4 + 8

    events = events_of(body)
    assert events == [(1, 4 * KIB), (2, 4 * KIB), (1, 0), (3, 8 * KIB), (2, 0), (3, 0)]
    assert peak_bytes(events) == 12 * KIB


def test_views_and_writes_take_nothing() -> None:
    def body() -> torch.Tensor:
        a = make(4)
        view = a.view(4, KIB)[1:].transpose(0, 1)
        a += 1
        view.zero_()
        del a  # the view keeps the storage
        return view

    assert events_of(body) == [(1, 4 * KIB), (1, 0)]


def test_what_was_there_before_is_not_counted() -> None:
    with FakeTensorMode():
        given = make(64)
        out = make(64)
        events = memory_events(lambda: out.copy_(given + 1))
    assert events == [(1, 64 * KIB), (1, 0)]


def test_what_lives_on_does_not_go() -> None:
    kept = []
    events = events_of(lambda: kept.append(make(4)))
    assert events == [(1, 4 * KIB)]
    assert kept[0].numel() == 4 * KIB


def test_two_results_on_one_storage_come_once() -> None:
    library = torch.library.Library("memory_model_test", "FRAGMENT")
    library.define("twins(Tensor x) -> (Tensor, Tensor)")

    def twins(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        return y, y.view(-1)

    library.impl("twins", twins, "CPU")
    given = make(4)
    events = memory_events(lambda: torch.ops.memory_model_test.twins(given))
    assert events == [(1, 4 * KIB), (1, 0)]


def test_nothing_takes_nothing() -> None:
    assert events_of(lambda: torch.empty(0)) == []


# ---- the allocator ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([1], 2 * MIB),
        ([MIB], 2 * MIB),
        ([MIB, MIB], 2 * MIB),
        ([MIB, MIB, 1], 4 * MIB),
        ([MIB + 1], 20 * MIB),
        ([9 * MIB, 9 * MIB], 20 * MIB),
        ([10 * MIB - 512], 20 * MIB),
        ([10 * MIB], 10 * MIB),
        ([10 * MIB + 1], 12 * MIB),
        # 19 of 20 MiB: the last one would fit, but small requests have segments of their own.
        ([9 * MIB, 10 * MIB - 512, 512 * KIB], 22 * MIB),
        ([15 * MIB, 4 * MIB], 16 * MIB + 20 * MIB),
    ],
)
def test_segments(sizes: list[int], reserved: int) -> None:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    assert allocator.reserved_bytes == reserved


def test_what_is_left_of_a_block_serves_the_next() -> None:
    allocator = CachingAllocator()
    allocator.allocate(19 * MIB)  # a segment of its own: 20 MiB
    allocator.allocate(2 * MIB)
    assert allocator.reserved_bytes == 20 * MIB + 20 * MIB
    allocator = CachingAllocator()
    block = allocator.allocate(24 * MIB)
    allocator.free(block)
    allocator.allocate(20 * MIB)  # leaves 4
    allocator.allocate(3 * MIB)
    assert allocator.reserved_bytes == 24 * MIB


def test_freed_neighbours_are_joined() -> None:
    allocator = CachingAllocator()
    whole = allocator.allocate(40 * MIB)
    allocator.free(whole)
    first, middle, last = (allocator.allocate(12 * MIB) for _ in range(3))
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(first)
    allocator.free(last)
    allocator.allocate(24 * MIB)  # not in one piece while the middle is taken
    assert allocator.reserved_bytes == 64 * MIB
    allocator.free(middle)
    allocator.allocate(40 * MIB)
    assert allocator.reserved_bytes == 64 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    allocator = CachingAllocator()
    large, small = allocator.allocate(30 * MIB), allocator.allocate(14 * MIB)
    allocator.free(large)
    allocator.free(small)
    allocator.allocate(14 * MIB)
    allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 44 * MIB


def test_nothing_overlaps_and_nothing_is_lost() -> None:
    """Random requests: taken plus free is reserved, and all is whole again at the end."""
    rng = random.Random(0)
    allocator = CachingAllocator()
    held = []
    for _ in range(2000):
        if held and rng.random() < 0.5:
            allocator.free(held.pop(rng.randrange(len(held))))
        else:
            held.append(allocator.allocate(rng.choice([300, 5000, MIB, 3 * MIB, 33 * MIB])))
        free = sum(b.size for b in allocator._free)
        assert free + sum(b.size for b in held) == allocator.reserved_bytes
        assert not any(b.after and b.after.free for b in allocator._free)
    for block in held:
        allocator.free(block)
    assert all(b.before is b.after is None for b in allocator._free)


def test_a_request_that_a_block_fits_leaves_nothing() -> None:
    allocator = CachingAllocator()
    allocator.allocate(16 * MIB)
    assert allocator._free == []


def test_play_reuses_what_went() -> None:
    events = [MemoryEvent(1, 16 * MIB), MemoryEvent(1, 0), MemoryEvent(2, 16 * MIB)]
    assert CachingAllocator().play(events) == 16 * MIB


def test_play_says_what_was_added_and_frees_what_lived_on() -> None:
    allocator = CachingAllocator()
    events = [MemoryEvent(1, 16 * MIB), MemoryEvent(2, 12 * MIB), MemoryEvent(1, 0)]
    assert allocator.play(events) == 28 * MIB
    assert allocator.play(events) == 0
    assert allocator.play([MemoryEvent(1, 30 * MIB)]) == 30 * MIB
