# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What is measured: batches in every arm, host time, staging of sound, and the sweep."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from tensorrt_llm_ext.graphs.staging import HeldInputs, Placement

from .arms import OWN, Subject, prepared, worst_error
from .floors import work_of
from .layouts import STAGED, Case, Shapes, audio_sweep, clip_batches, picture_batches, vision_sweep
from .timing import Clock, Deadline, Failures, Plan, Run, always, in_turns

_SWEEP_SECONDS = 1.5  # of one point
_SEEDS = {arm: seed for seed, arm in enumerate(("transformers", *OWN))}
_BACK_TO_BACK = 20


class Bench:
    """A subject and how it is measured."""

    def __init__(self, subject: Subject, clock: Clock, plan: Plan, deadline: Deadline) -> None:
        """Everything is captured already."""
        self.subject = subject
        self.clock = clock
        self.plan = plan
        self.deadline = deadline

    def in_turns(self, makers: dict[str, Callable[[int], Run]], failures: Failures) -> Any:
        """See ``timing.in_turns``."""
        return in_turns(self.clock, makers, self.plan, self.deadline, failures)


def measure_case(bench: Bench, case: Case) -> dict[str, Any]:
    """One batch in every arm, call by call in turns.

    Args:
        bench: The subject.
        case: The batch.

    Returns:
        Times, errors against fp32, floors, steps, and why an arm gave nothing.
    """
    subject = bench.subject
    items, failures = subject.items(case.shapes), Failures()
    work = work_of(subject.ours, case.shapes)
    with torch.no_grad():
        calls, compiling = prepared(subject, subject.arms, case, items, failures, bench.deadline)
        errors = {}
        with failures.of("fp32"):
            exact = subject.exact(items)
            for arm, call in calls.items():
                with failures.of(arm):
                    errors[arm] = worst_error(call.ask(), exact)
            del exact
        makers = {arm: always(call.run) for arm, call in calls.items() if arm not in failures}
        times = bench.in_turns(makers, failures)
    entry: dict[str, Any] = {
        "case": case.name,
        "items": len(items),
        "tokens": work.tokens,
        "segments": work.segments,
        "floor_flops_us": round(work.flops_us, 1),
        "floor_bytes_us": round(work.bytes_us, 1),
        "arms": {
            arm: {
                **t.summary(),
                "error": float(f"{errors[arm]:.3e}") if arm in errors else None,
                **({"steps": subject.steps(arm, items)} if arm in OWN else {}),
            }
            for arm, t in times.items()
        },
    }
    if compiling:
        entry["compiling"] = compiling
    if failures:
        entry["failed"] = dict(failures)
    return entry


def measure_host(bench: Bench) -> Iterator[dict[str, Any]]:
    """A layout seen before against a layout never seen; every arm gets layouts of its own.

    Args:
        bench: The subject.

    Yields:
        For a number of items: times of each arm, and host time beyond graph launches.
    """
    subject = bench.subject
    arms = [arm for arm in _SEEDS if arm in subject.arms]
    for count in (1, 4) if subject.audio else (1, 8, 16):
        for layout in ("repeated", "new"):
            if bench.deadline.over():
                return
            failures = Failures()
            makers = {arm: _layouts(subject, arm, count, layout == "new") for arm in arms}
            with torch.no_grad():
                times = bench.in_turns(makers, failures)
            found = {arm: t.summary() for arm, t in times.items()}
            for summary in found.values():
                if "launch_us" in summary:
                    beyond = summary["host_us"] - summary["launch_us"]
                    summary["beyond_launch_us"] = round(beyond, 1)
            yield {"items": count, "layout": layout, "arms": found, "failed": dict(failures)}


def _layouts(subject: Subject, arm: str, count: int, new: bool) -> Callable[[int], Run]:
    if subject.audio:
        batches = clip_batches((300 if subject.tiny else 3000,) * count, _SEEDS[arm])
    else:
        batches = picture_batches(count, _SEEDS[arm], len(_SEEDS), tiny=subject.tiny)
    if not new:
        batches = itertools.repeat(next(batches))

    def make(round_: int) -> Run:
        return subject.call(arm, subject.items(next(batches))).run

    return make


def measure_staging(bench: Bench) -> Iterator[dict[str, Any]]:
    """Clips into the arena, against transformers' padded chunks; the encoder does not run.

    Args:
        bench: An audio tower.

    Yields:
        For a list of lengths, repeated or changed every time: times of both.
    """
    for name, frames in STAGED.items():
        for lengths in ("repeated", "changed"):
            if bench.deadline.over():
                return
            failures = Failures()
            makers: dict[str, Callable[[int], Run]] = {}
            for seed, (arm, make_stage) in enumerate(
                {"transformers": _chunk_and_pad, "ours": _fill}.items()
            ):
                batches = clip_batches(frames, seed)
                if lengths == "repeated":
                    batches = itertools.repeat(frames)
                makers[arm] = _staging(make_stage(bench.subject), batches)
            with torch.no_grad():
                times = bench.in_turns(makers, failures)
                found = {arm: t.summary() for arm, t in times.items()}
                for arm in found if lengths == "repeated" else ():
                    device_us = bench.clock.back_to_back(makers[arm](0), _BACK_TO_BACK)
                    if device_us is not None:
                        found[arm]["back_to_back_us"] = device_us
            yield {"clips": name, "lengths": lengths, "arms": found, "failed": dict(failures)}


def _staging(stage: Callable[[Shapes], Run], batches: Iterator[Shapes]) -> Callable[[int], Run]:
    return lambda round_: stage(next(batches))


def _fill(subject: Subject) -> Callable[[Shapes], Run]:
    """Ours: into buffers that are there; where clips of these lengths go is worked out once."""
    tower, adapter = subject.ours, subject.ours.make_io_adapter()
    arenas: dict[int, tuple[Any, HeldInputs]] = {}  # by tokens: one, where a step holds all clips
    placements: dict[Shapes, list[Placement]] = {}

    def stage(frames: Shapes) -> Run:
        items = [tower.pack_item(item) for item in subject.items(frames)]
        steps = tower.plan([item.segment_lengths for item in items], eager=True)
        for step in steps:
            size = step.load.num_tokens
            if size not in arenas:
                inputs = adapter.allocate_inputs(size, subject.device)
                arenas[size] = (inputs, HeldInputs(inputs, partial(adapter.clear, inputs)))
        used = [arenas[step.load.num_tokens] for step in steps]

        def run() -> None:
            if frames not in placements:
                placements[frames] = [
                    adapter.place(inputs, items, step.runs)
                    for (inputs, _), step in zip(used, steps, strict=True)
                ]
            for (_, held), placement in zip(used, placements[frames], strict=True):
                held.stage(placement, placement.num_tokens, items)

        return run

    return stage


def _chunk_and_pad(subject: Subject) -> Callable[[Shapes], Run]:
    """transformers: a new padded tensor every time."""
    from published_towers import clips_of
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import chunk_and_pad_features

    def stage(frames: Shapes) -> Run:
        features, lengths = clips_of(subject.items(frames), subject.dtype)
        return lambda: chunk_and_pad_features(features, lengths, subject.ours.config.n_window)

    return stage


def measure_sweep(bench: Bench) -> Iterator[dict[str, Any]]:
    """Ours against its own eager run over many batches.

    Args:
        bench: The subject.

    Yields:
        A point: medians of both and their ratio. Where ours seems slower, from a second look with
        three times the rounds.
    """
    subject = bench.subject
    if subject.audio:
        geometry = subject.ours.geometry
        points = audio_sweep(geometry.chunk_tokens, geometry.window_chunks, tiny=subject.tiny)
    else:
        points = vision_sweep(tiny=subject.tiny)
    rounds = max(3, bench.plan.rounds // 3)
    first = Plan(bench.plan.warmup, rounds, min(5, rounds), _SWEEP_SECONDS)
    second = Plan(1, 3 * rounds, rounds, 3 * _SWEEP_SECONDS)
    for point in points:
        if bench.deadline.over():
            return
        items, failures = subject.items(point.shapes), Failures()
        makers = {arm: always(subject.call(arm, items).run) for arm in ("eager", "ours")}
        with torch.no_grad():
            for plan in (first, second):
                times = in_turns(bench.clock, makers, plan, bench.deadline, failures)
                medians = {arm: statistics.median(t.wall) for arm, t in times.items()}
                if failures or medians["ours"] <= medians["eager"]:
                    break
        yield {
            "tokens": point.tokens,
            "segments": point.segments,
            "items": len(items),
            **{f"{arm}_us": round(median, 1) for arm, median in medians.items()},
            "ratio": None if failures else round(medians["ours"] / medians["eager"], 4),
            "steps": subject.steps("ours", items),
            "failed": dict(failures),
        }
