# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Clocks: one call at a time, arms in turns. Nothing here profiles."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[], Any]


class Deadline:
    """The time that a run may take."""

    def __init__(self, seconds: float | None) -> None:
        """Starts now; None never ends."""
        self._end = None if seconds is None else time.perf_counter() + seconds

    def left(self) -> float:
        """Seconds, infinite without a limit, never negative."""
        return float("inf") if self._end is None else max(0.0, self._end - time.perf_counter())

    def over(self, needed: float = 0.0) -> bool:
        """Whether less than a number of seconds is left."""
        return self.left() <= needed


class LaunchClock:
    """Host time inside ``CUDAGraph.replay``: what a launch costs whoever asks for it.

    Has to be on before anything is captured, because graphs are called by a bound method.
    """

    def __init__(self) -> None:
        """Nothing has been launched."""
        self.seconds = 0.0
        self.launches = 0

    def reset(self) -> None:
        """Starts over."""
        self.seconds, self.launches = 0.0, 0

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Counts the replays of this process."""
        plain = torch.cuda.CUDAGraph.replay
        clock = self

        def replay(graph: torch.cuda.CUDAGraph) -> None:
            start = time.perf_counter()
            plain(graph)
            clock.seconds += time.perf_counter() - start
            clock.launches += 1

        setattr(torch.cuda.CUDAGraph, "replay", replay)  # noqa: B010 - mypy: a method
        try:
            yield
        finally:
            setattr(torch.cuda.CUDAGraph, "replay", plain)  # noqa: B010


@dataclass
class Times:
    """Samples of one arm, microseconds.

    Attributes:
        wall: From the call to an idle device, which was idle before.
        host: Until the call returned.
        launch: Of that, inside graph launches.
    """

    wall: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    launch: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Median, minimum, spread (tenth to ninetieth percentile over the median) and host time."""
        low, high = _percentile(self.wall, 0.1), _percentile(self.wall, 0.9)
        median = statistics.median(self.wall)
        found = {
            "median_us": median,
            "min_us": min(self.wall),
            "p10_us": low,
            "p90_us": high,
            "spread": (high - low) / median,
            "host_us": statistics.median(self.host),
        }
        if any(self.launch):
            found["launch_us"] = statistics.median(self.launch)
        return {
            **{key: round(value, 1 if key.endswith("_us") else 3) for key, value in found.items()},
            "samples": len(self.wall),
        }


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Clock:
    """Times calls on one device."""

    def __init__(self, device: torch.device, launches: LaunchClock) -> None:
        """``launches`` is installed already."""
        self.device = device
        self._launches = launches

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def time(self, run: Run, into: Times) -> None:
        """One call on an idle device."""
        self.synchronize()
        self._launches.reset()
        start = time.perf_counter()
        out = run()  # kept: freeing it is not part of the call
        submitted = time.perf_counter()
        self.synchronize()
        done = time.perf_counter()
        del out
        into.wall.append((done - start) * 1e6)
        into.host.append((submitted - start) * 1e6)
        into.launch.append(self._launches.seconds * 1e6)

    def back_to_back(self, run: Run, count: int) -> float | None:
        """Device microseconds of one call among many; None without a CUDA device."""
        if self.device.type != "cuda":
            return None
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            run()
        end.record()
        self.synchronize()
        return round(start.elapsed_time(end) * 1e3 / count, 1)


@dataclass(frozen=True)
class Plan:
    """How often.

    Attributes:
        warmup: Rounds that are not counted.
        rounds: Counted at most.
        enough: Rounds after which ``seconds`` ends the counting.
        seconds: Of one comparison.
    """

    warmup: int = 3
    rounds: int = 30
    enough: int = 9
    seconds: float = 6.0

    @classmethod
    def quick(cls) -> Plan:
        """To see whether it works, or for a first look."""
        return cls(warmup=1, rounds=5, enough=3, seconds=2.0)


def always(run: Run) -> Callable[[int], Run]:
    """For ``in_turns``: the same call in every round."""
    return lambda round_: run


class Failures(dict[str, str]):
    """Why arms gave no result, by arm."""

    @contextlib.contextmanager
    def of(self, arm: str) -> Iterator[None]:
        """Takes down whatever the block raises, in one line."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a rival's failure is its result, whatever it is
            lines = str(error).strip().splitlines() or [""]
            self[arm] = f"{type(error).__name__}: {lines[0][:300]}"


def in_turns(
    clock: Clock,
    makers: Mapping[str, Callable[[int], Run]],
    plan: Plan,
    deadline: Deadline,
    failures: Failures,
) -> dict[str, Times]:
    """Times arms call by call, another one first in each round.

    Args:
        clock: Of the device.
        makers: Arm -> (round -> what to call in it); making is not timed.
        plan: How often.
        deadline: Ends the rounds too.
        failures: Gets the arms that raise; they take no further part.

    Returns:
        Samples of the arms that did not fail.
    """
    times = {arm: Times() for arm in makers}
    names = list(makers)
    gc.collect()
    gc.disable()  # a collection costs milliseconds, and hits whoever is on
    start = time.perf_counter()
    try:
        for round_ in range(plan.warmup + plan.rounds):
            counted = round_ - plan.warmup
            late = time.perf_counter() - start > plan.seconds or deadline.over()
            if counted >= plan.enough and late:
                break
            turn = round_ % len(names) if names else 0
            for arm in names[turn:] + names[:turn]:
                if arm in failures:
                    continue
                with failures.of(arm):
                    run = makers[arm](round_)
                    clock.time(run, times[arm] if counted >= 0 else Times())
    finally:
        gc.enable()
    return {arm: t for arm, t in times.items() if arm not in failures and t.wall}
