# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks: arms take turns, failures are results, a time budget ends the rounds."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from encoder_bench.timing import (
    Clock,
    Deadline,
    Failures,
    LaunchClock,
    Plan,
    Run,
    Times,
    always,
    in_turns,
)

FOREVER = Deadline(None)


@pytest.fixture
def clock() -> Clock:
    return Clock(torch.device("cpu"), LaunchClock())


def test_summary() -> None:
    wall = [float(n) for n in (5, 1, 2, 3, 4, 10, 6, 7, 8, 9)]
    summary = Times(wall, host=[2.0, 1.0, 3.0], launch=[0.0, 0.5, 1.0]).summary()
    assert summary == {
        "median_us": 5.5,
        "min_us": 1.0,
        "p10_us": 2.0,
        "p90_us": 10.0,
        "spread": 1.455,
        "host_us": 2.0,
        "launch_us": 0.5,
        "samples": 10,
    }
    assert "launch_us" not in Times([1.0], [1.0], [0.0]).summary()


def test_a_time_lasts_from_the_call_to_its_end(clock: Clock) -> None:
    times = Times()
    clock.time(lambda: time.sleep(0.02), times)
    assert 20e3 <= times.host[0] <= times.wall[0]


def test_arms_take_turns_and_each_leads(clock: Clock) -> None:
    order: list[str] = []
    makers = {name: always(lambda name=name: order.append(name)) for name in "abc"}
    times = in_turns(clock, makers, Plan(warmup=1, rounds=3), FOREVER, Failures())
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert {name: len(t.wall) for name, t in times.items()} == dict.fromkeys("abc", 3)
    assert gc.isenabled()


def test_making_a_call_is_told_its_round_and_not_timed(clock: Clock) -> None:
    rounds: list[int] = []

    def make(round_: int) -> Run:
        rounds.append(round_)
        time.sleep(0.02)
        return lambda: None

    times = in_turns(clock, {"a": make}, Plan(warmup=1, rounds=2), FOREVER, Failures())
    assert rounds == [0, 1, 2]
    assert max(times["a"].wall) < 20e3


@pytest.mark.parametrize("round_", [0, 1])
def test_a_failing_arm_is_out_and_the_rest_goes_on(clock: Clock, round_: int) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        if calls[-1] == round_:
            raise ZeroDivisionError("first line\nsecond line")

    failures = Failures()
    makers = {"bad": always(fail), "good": always(lambda: None)}
    times = in_turns(clock, makers, Plan(warmup=0, rounds=4), FOREVER, failures)
    assert failures == {"bad": "ZeroDivisionError: first line"}
    assert len(calls) == round_ + 1
    assert list(times) == ["good"]
    assert len(times["good"].wall) == 4
    assert gc.isenabled()


def test_rounds_end_when_the_seconds_are_spent_but_not_before_enough(clock: Clock) -> None:
    makers = {"a": always(lambda: time.sleep(0.01))}
    plan = Plan(warmup=0, rounds=30, enough=4, seconds=0.02)
    assert len(in_turns(clock, makers, plan, FOREVER, Failures())["a"].wall) == 4
    unhurried = Plan(warmup=0, rounds=6, enough=4, seconds=60)
    over = Deadline(0.0)
    assert len(in_turns(clock, makers, unhurried, over, Failures())["a"].wall) == 4
    assert len(in_turns(clock, makers, unhurried, FOREVER, Failures())["a"].wall) == 6


def test_deadline() -> None:
    assert not FOREVER.over(1e9)
    assert Deadline(0.0).over()
    soon = Deadline(60.0)
    assert not soon.over(30)
    assert soon.over(61)
    assert 59 < soon.left() <= 60


def test_launches_are_clocked(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[object] = []

    def launch(graph: object) -> None:
        launched.append(graph)
        time.sleep(0.01)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", launch)
    clock = LaunchClock()
    with clock.installed():
        torch.cuda.CUDAGraph.replay("graph")  # type: ignore[arg-type]
    assert (launched, clock.launches) == (["graph"], 1)
    assert clock.seconds >= 0.01
    assert torch.cuda.CUDAGraph.replay is launch
    clock.reset()
    assert (clock.seconds, clock.launches) == (0.0, 0)
