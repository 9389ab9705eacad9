# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The rule of admission, without a model."""

from __future__ import annotations

import dataclasses
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tensorrt_llm_ext.engine.encode_queue import EncodeJob
from tensorrt_llm_ext.engine.errors import RequestError
from tensorrt_llm_ext.engine.scheduler import Limits, Request, Scheduler

LIMITS = Limits(
    max_batch_size=4,
    max_num_tokens=100,
    max_seq_len=80,
    kv_tokens=200,
    encoder_items=3,
    encoder_rows=64,
)


def make(number: int, prompt: int = 10, new: int = 10, rows: tuple[int, ...] = ()) -> Request:
    return with_media(number, prompt, new, image=rows)


def with_media(number: int, prompt: int = 10, new: int = 10, **rows: tuple[int, ...]) -> Request:
    """Items of so many rows each, by tower."""
    items = {
        tower: [SimpleNamespace(tower=tower, num_rows=n) for n in its]
        for tower, its in rows.items()
    }
    media: Any = SimpleNamespace(token_ids=[0] * prompt, items=items)
    unused: Any = None
    job = EncodeJob(items)  # type: ignore[arg-type]
    return Request(number, media, unused, new, unused, unused, job)


def admit(*requests: Request, **limits: int) -> tuple[Scheduler, list[int]]:
    scheduler = Scheduler(dataclasses.replace(LIMITS, **limits))
    for request in requests:
        scheduler.add(request)
    return scheduler, [request.id for request in scheduler.admit()]


def test_batch_size() -> None:
    scheduler, ids = admit(*map(make, range(6)))
    assert ids == [0, 1, 2, 3]
    assert scheduler.admit() == []
    scheduler.start(scheduler.admitted[:2])
    scheduler.remove(scheduler.running[1])
    assert [request.id for request in scheduler.admit()] == [4]
    assert [request.id for request in scheduler.admitted] == [2, 3, 4]
    scheduler.start(scheduler.admitted[:])
    assert [request.id for request in scheduler.running] == [0, 2, 3, 4]
    assert scheduler.admitted == []


def test_padded_kv_tokens() -> None:
    assert LIMITS.cost([]) == 0
    assert LIMITS.cost([make(0, 10, 5), make(1, 30, 2)]) == 64
    # 20 + 20 fit, 3 * 70 does not, and what stands behind it waits too.
    assert admit(make(0), make(1), make(2, 60, 10), make(3))[1] == [0, 1]
    assert admit(make(0), make(1), make(2, 60, 6), make(3))[1] == [0, 1, 2]


def test_prompt_tokens_of_a_step() -> None:
    scheduler, ids = admit(make(0, 40), make(1, 40), make(2, 40), kv_tokens=10_000)
    assert ids == [0, 1]
    assert (
        scheduler.admit() == []
    )  # those whose media are not encoded yet are read in some later step
    scheduler.start(scheduler.admitted[:])
    assert [request.id for request in scheduler.admit()] == [2]


def test_encoder_budget_of_a_step() -> None:
    assert admit(make(0, rows=(40,)), make(1, rows=(24,)), make(2, rows=(4,)))[1] == [0, 1]
    assert admit(make(0, rows=(8, 8)), make(1, rows=(8, 8)), make(2))[1] == [0]
    # A single request above the budget goes alone, or it would wait for ever.
    assert admit(make(0, rows=(500,)), make(1, rows=(4,)))[1] == [0]
    assert admit(make(0), make(1, rows=(500,)), make(2))[1] == [0]
    # Text needs no encoder.
    assert admit(make(0, rows=(500,)), make(1))[1] == [0, 1]


def test_media_that_are_encoded_leave_room() -> None:
    scheduler, ids = admit(make(0, rows=(60, 4, 4)), make(1, rows=(60,)), make(2, rows=(4,)))
    assert ids == [0]
    assert scheduler.admit() == []
    scheduler.admitted[0].job.take(Counter(), Counter(), (3, 60))
    assert scheduler.admitted[0].job.loads == {"image": (2, 8)}
    assert scheduler.admit() == []  # 68 rows
    scheduler.admitted[0].job.take(Counter(), Counter(), (1, 60))
    assert [request.id for request in scheduler.admit()] == [1]


def test_each_tower_has_the_budget_for_itself() -> None:
    both = [with_media(i, image=(30,), audio=(30,)) for i in range(3)]
    assert admit(*both)[1] == [0, 1]  # 60 rows each; 90 would be above 64
    clips = [with_media(i, audio=(6, 7)) for i in range(2)]
    assert admit(*clips)[1] == [0]  # 4 clips; 3 are allowed
    assert admit(with_media(0, image=(20, 20)), with_media(1, audio=(20, 20)))[1] == [0, 1]


@pytest.mark.parametrize(
    ("prompt", "wanted", "limits", "new"),
    [
        (79, 5, {}, 1),
        (70, 30, {}, 10),
        (70, None, {}, 10),
        (40, None, {"kv_tokens": 50}, 10),
        (10, 5, {}, 5),
        (40, 10, {"kv_tokens": 50}, 10),
    ],
)
def test_new_tokens(prompt: int, wanted: int | None, limits: dict[str, int], new: int) -> None:
    assert dataclasses.replace(LIMITS, **limits).new_tokens(prompt, wanted) == new


@pytest.mark.parametrize(
    ("prompt", "wanted", "limits", "message"),
    [
        (80, 1, {}, "has 80 tokens; .* max_seq_len 80"),
        (61, 1, {"max_num_tokens": 60}, "max_num_tokens is 60"),
        (40, 11, {"kv_tokens": 50}, "holds 50; ask for max_tokens <= 10"),
        (51, 1, {"kv_tokens": 50}, "max_tokens <= 0"),
        (50, None, {"kv_tokens": 50}, "max_tokens <= 0"),
    ],
)
def test_hopeless(prompt: int, wanted: int | None, limits: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        dataclasses.replace(LIMITS, **limits).new_tokens(prompt, wanted)


def test_remove_from_queue_and_batch() -> None:
    scheduler, _ = admit(make(0), make(1), max_batch_size=1)
    assert not scheduler.idle
    for request in (scheduler.waiting[0], scheduler.admitted[0]):
        scheduler.remove(request)
        scheduler.remove(request)
    assert scheduler.idle
