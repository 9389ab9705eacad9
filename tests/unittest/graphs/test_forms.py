# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes with room for a few tokens more: tried in a bucket's place, invisible to who uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensorrt_llm_ext.graphs.buckets import Bucket

from .fakes import (
    FakeTower,
    SpyBackend,
    assert_outputs,
    captured_tower,
    close,
    graph_config,
    make_adapter,
    make_item,
    oracle,
)

BUCKETS = [(512, 4), (1024, 4)]


def times(faster: int) -> Any:
    """Replays of one number of tokens take half."""
    return lambda tokens: (tokens / (200 if tokens == faster else 100), 99.0)


def captured(faster: int = 520, **entry: Any) -> tuple[Any, SpyBackend]:
    backend = SpyBackend(accelerated=True, times=times(faster))
    return captured_tower(1024, backend, **{"buckets": BUCKETS, **entry}), backend


def test_a_few_tokens_more_are_captured_where_that_is_faster() -> None:
    tower, backend = captured()
    assert backend.captured == [1024, 512, 520]
    assert backend.alive == [1024, 520]
    lines = {line.num_tokens: line for line in tower._report.buckets}
    assert {n: line.variant for n, line in lines.items()} == {
        512: "default, 520 tokens",
        1024: "default",
    }
    assert lines[512].replay_ms == pytest.approx(2.6)
    assert tower._runner.buckets == (Bucket(512, 4), Bucket(1024, 4))


@pytest.mark.parametrize("segments", [(512,), (256, 200), (4,), (128,) * 4])
def test_what_is_replayed_there_is_what_the_bucket_serves(segments: tuple[int, ...]) -> None:
    tower, backend = captured()
    items = [make_item((n,), tag=i, seed=i) for i, n in enumerate(segments)]
    for _ in range(2):
        assert_outputs(tower, items, tower.encode(items))
    assert backend.replays
    assert tower.encoder_stats().eager == {}
    assert list(tower.encoder_stats().replays) == ["512x4"]
    assert_outputs(tower, items, tower.encode(items, eager=True))


def test_more_tokens_are_no_room_for_requests() -> None:
    tower, _ = captured()
    (step,) = tower.plan([(516,)])
    assert step.bucket == Bucket(1024, 4)


def test_what_nobody_asked_for_is_slack_with_segments_of_its_own() -> None:
    """Rows of no segment would keep whatever attention wrote there last."""
    tower, _ = captured()
    metadata = tower._runner._captured[Bucket(512, 4)].metadata
    tower.encode([make_item((400,))])
    assert (metadata.segment_lengths[0], sum(metadata.segment_lengths)) == (400, 520)
    tower._runner.time_segments(Bucket(512, 4), (300,))
    assert (metadata.segment_lengths[0], sum(metadata.segment_lengths)) == (300, 520)


def test_outputs_that_lie_behind_each_other_are_found() -> None:
    """Where the second starts goes by the tokens that are captured."""

    class Twice(FakeTower):
        def make_io_adapter(self) -> Any:
            spec = make_adapter().output_specs["tokens"]
            return make_adapter(output_specs={"tokens": spec, "again": spec})

        def encoder_forward(self, inputs: Any, metadata: Any) -> dict[str, torch.Tensor]:
            tokens = super().encoder_forward(inputs, metadata)["tokens"]
            return {"tokens": tokens, "again": tokens * 3}

    tower, backend = Twice(), SpyBackend(accelerated=True, times=times(520))
    tower.configure_encoder_cuda_graph(graph_config(buckets=BUCKETS))
    tower.setup_attn_metadata(max_num_tokens=1024)
    tower.capture_encoder_cuda_graphs(backend)
    item = make_item((500,))
    (out,) = tower.encode([item])
    assert backend.alive == [1024, 520]
    close({"tokens": out["tokens"]}, {"tokens": oracle(tower, item)["tokens"]})
    assert torch.equal(out["again"], out["tokens"] * 3)


def test_rows_beyond_the_bucket_are_cleared_too() -> None:
    """They are slack, which attention by a mask reads: 0 * NaN is NaN."""
    tower, _ = captured()
    spoilt, item = make_item((600,)), make_item((512,), seed=1)
    spoilt["x"] = torch.full_like(spoilt["x"], torch.nan)
    tower.encode([spoilt])
    assert_outputs(tower, [item], tower.encode([item]))


def test_the_self_check_and_timings_are_of_what_is_captured() -> None:
    tower, _ = captured(self_check=True)
    assert [line.kept for line in tower._report.buckets] == [True, True]
    assert tower._runner.time_segments(Bucket(512, 4), (300, 212)) == pytest.approx(2.6)


@pytest.mark.parametrize(
    ("faster", "entry"),
    [
        (504, {}),  # nothing has fewer
        (1032, {}),  # the buffers are for the largest bucket
        (520, {"enable_padding": False}),
        (264, {"buckets": [(256, 4), (1024, 4)]}),
    ],
)
def test_there_are_no_more_tokens(faster: int, entry: dict[str, Any]) -> None:
    tower, backend = captured(faster, **entry)
    assert faster not in backend.captured
    assert {line.variant for line in tower._report.buckets} == {"default"}


def test_the_buffers_may_be_no_larger_than_that() -> None:
    _, backend = captured(buckets=[(512, 4), (520, 4)])
    assert backend.captured == [520, 512, 520]


def test_each_is_warmed_up_and_recorded_with_slack_alone() -> None:
    """One segment of a whole bucket would keep a GPU busy for nothing."""
    seen: dict[int, set[tuple[int, ...]]] = {}

    class Watched(FakeTower):
        def encoder_forward(self, inputs: Any, metadata: Any) -> Any:
            lengths = getattr(metadata, "segment_lengths", ())
            seen.setdefault(len(inputs["x"]), set()).add(tuple(lengths))
            return super().encoder_forward(inputs, metadata)

    tower = Watched()
    tower.configure_encoder_cuda_graph(graph_config(buckets=BUCKETS))
    tower.setup_attn_metadata(max_num_tokens=1024)
    tower.capture_encoder_cuda_graphs(SpyBackend(accelerated=True, times=times(520)))
    assert (130,) * 4 in seen[520]
    assert (128,) * 4 in seen[512]


def test_only_where_times_mean_something() -> None:
    backend = SpyBackend(times=times(520))
    captured_tower(1024, backend, buckets=BUCKETS)
    assert backend.captured == [1024, 512]


def test_slower_ones_are_given_back() -> None:
    tower, backend = captured(faster=1)
    assert (backend.captured, backend.alive) == ([1024, 512, 520], [1024, 512])
    assert {line.variant for line in tower._report.buckets} == {"default"}


@pytest.mark.parametrize(
    "between", [{}, {"enable_padding": False}, {"buckets": [(512, 4)]}], ids=str
)
def test_the_choice_is_remembered(between: dict[str, Any]) -> None:
    """Starts of another configuration, which has no such form, neither take nor undo it."""
    captured(faster=1, buckets=[(512, 4)])
    captured()
    captured(faster=1, **between)
    tower, backend = captured(faster=512)  # not measured again
    assert backend.captured == [1024, 520]
    item = make_item((512,))
    assert_outputs(tower, [item], tower.encode([item]))


class TwoLibraries(SpyBackend):
    """Has another library up to 1024 tokens, which is faster there; notes what runs in which."""

    def __init__(self) -> None:
        super().__init__(accelerated=True)
        self.library = "none"
        self.metadata: dict[int, Any] = {}
        self.ran: list[tuple[int, str]] = []
        self.recorded: list[tuple[int, str]] = []
        self.runs: list[int] = []  # of each that is recorded, warm-ups included
        self.timed: list[tuple[int, ...]] = []

    def variants(self, num_tokens: int) -> tuple[str, ...]:
        return ("usual", "other") if num_tokens <= 1024 else ("usual",)

    @contextlib.contextmanager
    def in_variant(self, variant: str) -> Iterator[None]:
        self.library = variant
        yield
        self.library = "none"

    def capture(self, body: Any, *, warmup_steps: int) -> Any:
        self.ran.clear()
        graph = super().capture(body, warmup_steps=warmup_steps)
        self.recorded.append(self.ran[-1])
        self.runs.append(len(self.ran))
        graph.replay.recorded = self.ran[-1]
        return graph

    def time_ms(self, body: Any, *, repeats: int) -> float:
        super().time_ms(body, repeats=repeats)
        if not hasattr(body, "recorded"):
            return 99.0
        tokens, library = body.recorded
        self.timed.append(tuple(self.metadata[tokens].segment_lengths))
        return {"usual": 2.0, "other": 1.0}[library]


class Noting(FakeTower):
    """Tells its backend what it runs on, and with what."""

    def __init__(self, backend: TwoLibraries) -> None:
        super().__init__()
        self.backend = backend

    def encoder_forward(self, inputs: Any, metadata: Any) -> Any:
        if self.backend.library != "none":  # an eager run has metadata of its own
            self.backend.ran.append((len(inputs["x"]), self.backend.library))
            self.backend.metadata[len(inputs["x"])] = metadata
        return super().encoder_forward(inputs, metadata)


def noting(buckets: list[tuple[int, int]]) -> tuple[Noting, TwoLibraries]:
    backend = TwoLibraries()
    tower = Noting(backend)
    entry = {"prune_slower_than_eager": False, "warmup_steps": 3}
    tower.configure_encoder_cuda_graph(graph_config(buckets=buckets, **entry))
    tower.setup_attn_metadata(max_num_tokens=2048)
    tower.capture_encoder_cuda_graphs(backend)
    return tower, backend


def test_each_form_runs_in_the_library_that_its_shape_has() -> None:
    tower, backend = noting([(1024, 4), (2048, 4)])
    assert backend.recorded == [
        (2048, "usual"),
        (1024, "usual"),
        (1024, "other"),
        (1032, "usual"),  # the other is for fewer
    ]
    lines = {line.num_tokens: line.variant for line in tower._report.buckets}
    assert lines == {1024: "other", 2048: "usual"}
    backend.ran.clear()
    assert tower._runner.self_check(Bucket(1024, 4)) == []
    assert backend.ran == [(1024, "other")]  # what is compared with is not the usual one either


def test_each_shape_has_warm_ups_of_its_own_and_is_timed_with_the_same_work() -> None:
    _, backend = noting([(512, 2), (2048, 4)])
    forms = [(n, name) for n in (512, 520) for name in ("usual", "other")]
    assert backend.recorded == [(2048, "usual"), *forms]
    assert backend.runs == [3] * 5  # two, as one was eager, and what is recorded
    # Then the time of attention is taken.
    assert [n[:2] for n in backend.timed[:5]] == [(512, 512), *[(256, 256)] * 4]


@pytest.mark.parametrize(
    ("unit", "tokens", "roomier"),
    [
        (1, 257, 265),
        (1, 1040, 1048),
        (3, 300, 309),
        (4, 260, 268),
        (16, 512, 528),
        (4, 256, None),
        (4, 4096, 4104),
        (1, 4097, None),
    ],
)
def test_more_tokens_are_whole_merge_units(unit: int, tokens: int, roomier: int | None) -> None:
    adapter = make_adapter(unit=unit)
    found = adapter.roomier(Bucket(tokens, 3, 64))
    assert found == (None if roomier is None else Bucket(roomier, 3, 64))
    # The longest segment stays what it was: attention is shaped for that.
    found = adapter.roomier(Bucket(tokens, 3))
    assert found == (None if roomier is None else Bucket(roomier, 3, tokens))
