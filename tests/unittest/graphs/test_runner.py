# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The runner: captures, checks every baked bound, replays, gives the memory back."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from tensorrt_llm_ext.graphs.adapter import EncoderGraphTensorSpec
from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.layout import Replay
from tensorrt_llm_ext.graphs.packer import Packer
from tensorrt_llm_ext.graphs.rehearsal import WarmUps
from tensorrt_llm_ext.graphs.runner import CaptureError, MultimodalEncoderGraphRunner
from tensorrt_llm_ext.graphs.variants import VariantChoices
from tensorrt_llm_ext.ops.attention import BlockMaskAttention, SegmentAttention
from tensorrt_llm_ext.ops.packed_metadata import make_metadata
from tensorrt_llm_ext.towers.metadata import PackedMetadataProvider

from .fakes import (
    CPU,
    IN,
    OUT,
    UNIT,
    WIDTH,
    FakeTower,
    SpyBackend,
    captured_tower,
    close,
    make_adapter,
    make_item,
    oracle,
)

BUCKETS = (Bucket(32, 2), Bucket(64, 4), Bucket(128, 4))


class Provider(PackedMetadataProvider):
    """Notes what was built."""

    def __init__(self, attention=None):
        super().__init__(attention or BlockMaskAttention(), CPU)
        self.built = []

    def build(self, bucket, num_segments):
        metadata = super().build(bucket, num_segments)
        self.built.append((bucket, num_segments, metadata))
        return metadata


def eager_metadata(lengths):
    metadata = make_metadata(
        SegmentAttention(),
        num_tokens=sum(lengths),
        max_segments=len(lengths),
        max_segment_len=max(lengths),
        device=CPU,
    )
    metadata.refresh(lengths)
    return metadata


class Bench:
    """A tower's forward in a runner, and batches for it."""

    def __init__(self, buckets=BUCKETS, *, backend=None, provider=None, capture=True, **kwargs):
        self.tower = FakeTower()
        self.backend = backend or SpyBackend()
        self.provider = provider or Provider()
        self.adapter = kwargs.pop("adapter", None) or make_adapter()
        self.inputs, self.calls = {}, []
        self.function = kwargs.pop("encoder_fn", self.tower.encoder_forward)
        self.runner = MultimodalEncoderGraphRunner(
            choices=VariantChoices("test", 0.0),
            encoder_fn=self.forward,
            metadata_provider=self.provider,
            adapter=self.adapter,
            backend=self.backend,
            device=CPU,
            eager_metadata=eager_metadata,
            **kwargs,
        )
        self.times = list(self.runner.capture(buckets)) if capture else []

    def forward(self, inputs, metadata):
        self.calls.append(inputs["x"].shape[0])
        self.inputs[inputs["x"].shape[0]] = inputs
        return self.function(inputs, metadata)

    def pack(self, items):
        return [self.tower.pack_item(item) for item in items]

    def sinks(self, tokens, value=-1.0):
        return [torch.full(b.shape(tokens), value) for b in self.adapter.output_blocks]

    def named(self, sinks):
        blocks = zip(self.adapter.output_blocks, sinks, strict=True)
        return {name: t for block, sink in blocks for name, t in block.named(sink).items()}

    def run(self, step, items, sinks, **kwargs):
        packed = self.pack(items)
        self.runner.replay(self.runner.prepare(step, packed), packed, lambda: sinks, **kwargs)

    def steps(self, items, buckets):
        planner = Packer(buckets, eager_token_budget=10_000)
        return planner.plan([item["segments"] for item in items])

    def step(self, items, bucket):
        """One step for all items, fit or not."""
        lengths = [item["segments"] for item in items]
        everything = Bucket(10_000, 10_000)
        (step,) = Packer([everything], eager_token_budget=1).plan(lengths)
        return Replay(step.runs, step.segment_lengths, bucket)

    def replay(self, items, bucket, **kwargs):
        sinks = self.sinks(sum(len(item["x"]) for item in items))
        self.run(self.step(items, bucket), items, sinks, **kwargs)
        return self.named(sinks)


def expected(bench, items):
    outs = [oracle(bench.tower, item) for item in items]
    return {name: torch.cat([out[name] for out in outs]) for name in outs[0]}


# ---- capture ---------------------------------------------------------------------------------


def test_largest_first_in_one_arena():
    bench = Bench()
    assert bench.backend.captured == [128, 64, 32]
    assert bench.runner.buckets == BUCKETS
    assert [bucket for bucket, _ in bench.times] == list(reversed(BUCKETS))
    for name in ("x", "layout", "position", "gain"):
        assert len({bench.inputs[n][name].data_ptr() for n in (32, 64, 128)}) == 1, name
    per_token = 4 * (IN + 3 + WIDTH) + 4 * OUT // UNIT
    assert bench.runner.static_bytes == 128 * per_token


def test_capture_again_skips_what_there_is():
    bench = Bench()
    assert list(bench.runner.capture(BUCKETS)) == []
    more = [Bucket(128, 2), Bucket(96, 2)]  # no larger than the buffers
    assert [b for b, _ in bench.runner.capture([*BUCKETS, *more])] == more
    items = [make_item((40, 44))]
    close(bench.replay(items, Bucket(96, 2)), expected(bench, items))


def test_capture_beyond_the_arena_is_refused():
    bench = Bench()
    with pytest.raises(ValueError, match=r"256x4 exceeds the 128 tokens .* call release\(\)"):
        list(bench.runner.capture([Bucket(256, 4), Bucket(96, 2)]))
    assert bench.runner.buckets == BUCKETS  # nothing was lost
    bench.runner.release()
    list(bench.runner.capture([Bucket(256, 4)]))
    items = [make_item((200,))]
    close(bench.replay(items, Bucket(256, 4)), expected(bench, items))


def test_nothing_to_capture_takes_no_memory():
    bench = Bench(())
    assert bench.runner.static_bytes == 0
    assert bench.runner.buckets == ()


def test_metadata_is_sized_from_its_bucket():
    bench = Bench((Bucket(64, 4), Bucket(128, 4, 48)))
    for bucket, slots, metadata in bench.provider.built:
        assert slots == bench.adapter.num_segment_slots(bucket)
        assert metadata.cu_seqlens.shape == (slots + 1,)
        assert metadata.max_segment_len == (bucket.max_segment_len or bucket.num_tokens)


def test_rehearsal_runs_every_form_once():
    """Each loads libraries and workspaces of its own, which are not the graphs' memory."""
    ran = []

    class TwoForms(SpyBackend):
        def variants(self, num_tokens):
            return ("one", "other") if num_tokens <= 64 else ("one",)

        @contextlib.contextmanager
        def in_variant(self, variant):
            ran.append((variant, len(bench.calls)))
            yield

    class Counting(Provider):
        def refresh_in_place(self, metadata, layout):
            filled.append(metadata)
            super().refresh_in_place(metadata, layout)

    filled = []
    bench = Bench(backend=TwoForms(), provider=Counting(), capture=False)
    bench.runner.rehearse(BUCKETS)
    assert ran == [("one", 0), ("one", 1), ("other", 2)]
    assert bench.calls == [128, 128, 64]  # the second with the attention of eager runs
    assert filled == [metadata for *_, metadata in bench.provider.built[:2]]  # no eager one, no 32
    bench = Bench(backend=TwoForms(), provider=Provider(SegmentAttention()), capture=False)
    bench.runner.rehearse(BUCKETS)
    assert bench.calls == [128, 128, 64]  # eager runs are elsewhere, whatever their attention


def test_rehearsal_runs_where_captures_do_and_once_where_eager_runs_do():
    """Each stream that multiplies matrices has workspaces of its own."""

    class Noting(SpyBackend):
        def run(self, body):
            start = len(bench.calls)
            super().run(body)
            on_capture_stream.extend(range(start, len(bench.calls)))

        @contextlib.contextmanager
        def session(self):
            start = len(bench.calls)
            with super().session():
                yield
            in_session.update(range(start, len(bench.calls)))

    on_capture_stream: list[int] = []
    in_session: set[int] = set()
    bench = Bench(backend=Noting(), provider=Provider(SegmentAttention()), capture=False)
    bench.runner.rehearse([Bucket(128, 4)])
    assert (on_capture_stream, len(bench.calls)) == ([0], 2)
    bench.runner.rehearse([Bucket(128, 4)], eager=False)
    assert (on_capture_stream, len(bench.calls)) == ([0, 2], 3)
    assert in_session == {0, 1, 2}


def test_rehearsal_has_inputs_of_one_bucket_at_a_time(monkeypatch):
    """Two at a time leave a block in the allocator that the arena takes instead of room it has."""
    bench = Bench(capture=False)
    made: list[tuple[int, weakref.ref[torch.Tensor]]] = []
    allocate = bench.adapter.allocate_inputs

    def noted(num_tokens, device):
        assert [ref() for _, ref in made] == [None] * len(made)
        inputs = allocate(num_tokens, device)
        made.append((num_tokens, weakref.ref(next(iter(inputs.values())))))
        return inputs

    monkeypatch.setattr(bench.adapter, "allocate_inputs", noted)
    bench.runner.rehearse([Bucket(64, 4), Bucket(128, 4, 48)])  # two forms, the larger runs twice
    assert [num_tokens for num_tokens, _ in made][:1] == [128]
    assert len(made) == len({num_tokens for num_tokens, _ in made})


def test_a_prepared_step_ends_with_its_graph():
    bench = Bench()
    items = [make_item((40,))]
    packed = bench.pack(items)
    (step,) = bench.steps(items, [Bucket(64, 4)])
    prepared = bench.runner.prepare(step, packed)
    bench.runner.drop(Bucket(64, 4))
    with pytest.raises(ValueError, match="64x4 is not captured"):
        bench.runner.replay(prepared, packed, lambda: bench.sinks(40))


def test_release_waits_for_replays_first():
    class Noting(SpyBackend):
        def synchronize(self):
            waited.append(list(self.alive))

    waited = []
    Bench(backend=Noting()).runner.release()
    assert waited == [[128, 64, 32]]


def test_times_of_a_capture():
    class Noting(SpyBackend):
        def time_ms(self, body, *, repeats):
            asked.append(repeats)
            return super().time_ms(body, repeats=repeats)

    asked = []
    ((_, times),) = Bench([Bucket(32, 2)], backend=Noting()).times
    assert asked[0] == 1  # the eager run is a warm-up too
    assert 0 < times.capture_ms < 60_000


def test_rehearsal_has_slack_in_short_segments():
    seen = []

    def forward(inputs, metadata):
        seen.append(list(metadata.segment_lengths))
        return FakeTower.encoder_forward(bench.tower, inputs, metadata)

    bench = Bench(encoder_fn=forward, capture=False)
    bench.runner.rehearse([Bucket(128, 1)])
    assert seen == [[64, 64], [128]]  # the second as eager runs are timed


def test_warm_ups_have_short_segments_and_timings_fill_the_bucket_evenly():
    """One segment of a whole bucket keeps a GPU busy for long, and the warm-ups would for nothing.

    What segments take beyond their tokens is known of even ones, and the packer leaves it out.
    """
    seen = []

    class Watching(SpyBackend):
        def time_ms(self, body, *, repeats):
            built = bench.provider.built
            seen.append(("timed", list(built[-1][2].segment_lengths) if built else None))
            return super().time_ms(body, repeats=repeats)

    def forward(inputs, metadata):
        seen.append(("ran", list(metadata.segment_lengths)))
        return FakeTower.encoder_forward(bench.tower, inputs, metadata)

    bench = Bench(backend=Watching(), encoder_fn=forward, capture=False)
    list(bench.runner.capture([Bucket(128, 1)]))
    eager = [("timed", None), ("ran", [128])]  # with metadata of its own
    assert seen == eager + [("ran", [64, 64])] * 2 + [("timed", [128])]


@pytest.mark.parametrize(("padding", "tried"), [(True, [1024, 512, 520]), (False, [1024, 512])])
def test_more_room_than_the_bucket_is_padding(padding, tried):
    backend = SpyBackend(accelerated=True, times=lambda tokens: (1.0, 99.0))
    captured_tower(1024, backend, buckets=[(512, 4), (1024, 4)], enable_padding=padding)
    assert backend.captured == tried


def test_a_layout_is_timed_in_the_graph():
    seen = []

    class Watching(SpyBackend):
        def time_ms(self, body, *, repeats):
            lengths = [tuple(m.segment_lengths) for _, _, m in bench.provider.built[-1:]]
            seen.append((body, *lengths))
            return super().time_ms(body, repeats=repeats)

    bench = Bench(backend=Watching(), capture=False)
    list(bench.runner.capture([Bucket(64, 4)]))
    seen.clear()
    assert bench.runner.time_segments(Bucket(64, 4), (48, 16)) > 0
    ((body, layout),) = seen
    assert layout == (48, 16)
    assert body == bench.runner._captured[Bucket(64, 4)].graph.replay


@pytest.mark.parametrize(("warmup_steps", "runs"), [(1, 2), (2, 2), (4, 4)])
def test_warm_up_runs(warmup_steps, runs):
    """The timed eager run is one of them, but never the only one: its attention may be another."""
    bench = Bench([Bucket(32, 2)], warmup_steps=warmup_steps)
    assert len(bench.calls) == runs + 1  # to record


@pytest.mark.parametrize(("warmup_steps", "runs"), [(1, 2), (2, 2), (4, 4)])
def test_the_second_bucket_of_a_size_needs_no_warm_up_of_its_own(warmup_steps, runs):
    """Its products have run. Its timed eager run and the recording are all there is."""
    bench = Bench([Bucket(64, 4), Bucket(64, 2), Bucket(32, 2)], warmup_steps=warmup_steps)
    assert Counter(bench.calls) == {64: runs + 1 + 2, 32: runs + 1}


@pytest.mark.parametrize("eager_ms", [15.0, 1.0])
def test_the_same_eager_run_is_timed_once(eager_ms):
    """Buckets of a size for long and for short segments are timed with the same ones."""

    class Noting(SpyBackend):
        def time_ms(self, body, *, repeats):
            timed.append("replay" if body in self._replay_tokens else "eager")
            return super().time_ms(body, repeats=repeats)

    timed = []
    backend = Noting(accelerated=True, times=lambda n: (10.0, eager_ms))
    buckets = [Bucket(64, 4, 64), Bucket(64, 4, 16), Bucket(64, 2), Bucket(32, 2, 16)]
    again = ["replay"] * (eager_ms < 10.0)  # both are close enough to be timed again
    first, same = ["eager", "replay", *again, "eager"], ["replay", *again]
    bench = Bench(buckets, backend=backend)
    assert timed == [*first, *same, *first, *first]  # other segments, another size
    assert {times.eager_ms for _, times in bench.times} == {eager_ms}
    assert len(bench.calls) == 4 + 1 + 3 + 4


def test_the_time_of_an_eager_run_is_the_one_that_was_settled():
    """The first may have had to wait for memory."""
    waits = iter([15.0, 12.0])

    class Waiting(SpyBackend):
        def time_ms(self, body, *, repeats):
            replay_ms = super().time_ms(body, repeats=repeats)
            return replay_ms if body in self._replay_tokens else next(waits)

    backend = Waiting(accelerated=True, times=lambda n: (10.0, 0.0))
    bench = Bench([Bucket(64, 4, 64), Bucket(64, 4, 16)], backend=backend)
    assert [times.eager_ms for _, times in bench.times] == [12.0, 12.0]


def test_eager_runs_of_two_sizes_are_two_though_their_layouts_are_the_same():
    class Alike(tuple):
        def __eq__(self, other):
            return True

        __hash__ = tuple.__hash__

    adapter = make_adapter()
    layout_of = adapter.layout_of
    adapter.layout_of = lambda *args: Alike(layout_of(*args))
    bench = Bench([Bucket(64, 4), Bucket(32, 4)], adapter=adapter)
    assert Counter(bench.calls) == {64: 3, 32: 3}


def test_an_eager_run_is_timed_again_after_a_release():
    bench = Bench([Bucket(64, 4)])
    bench.runner.release()
    bench.calls.clear()
    list(bench.runner.capture([Bucket(64, 4)]))
    assert bench.calls == [64, 64]  # timed, recorded: what is loaded stays, so no warm-up


def test_the_second_bucket_of_a_size_has_a_warm_up_when_its_attention_is_another():
    class TwoForms(Provider):
        def build(self, bucket, num_segments):
            metadata = super().build(bucket, num_segments)
            if bucket.max_segments == 2:
                metadata.attention = Other()
            return metadata

    @dataclass(frozen=True)
    class Other(BlockMaskAttention):
        pass

    buckets = [Bucket(64, 4), Bucket(64, 2), Bucket(32, 4), Bucket(32, 2)]
    bench = Bench(buckets, provider=TwoForms())
    assert Counter(bench.calls) == {64: 3 + 3, 32: 3 + 2}  # known from 64 tokens


def test_no_variant_is_captured_that_has_not_run_at_this_size():
    warm_ups = WarmUps(2)
    assert [warm_ups.due(64, "tall", "one") for _ in range(2)] == [1, 0]
    assert [warm_ups.due(64, "tall", "other") for _ in range(2)] == [1, 0]
    assert [warm_ups.due(32, "tall", "other") for _ in range(2)] == [1, 0]
    assert [warm_ups.due(32, "low", "other") for _ in range(2)] == [1, 0]
    assert [warm_ups.due(64, "low", "other") for _ in range(2)] == [0, 0]
    assert [warm_ups.due(64, "low", "one") for _ in range(2)] == [1, 0]
    asked = WarmUps(5)
    assert [asked.due(64, form, "one") for form in ("tall", "low", "low")] == [4, 1, 0]


@pytest.mark.parametrize(
    "bucket",
    [
        Bucket(64, 2, 16),  # cannot be filled by two segments: slack fills it
        Bucket(996, 200, 20),  # uneven: 996 / 200
        Bucket(4, 4),
        Bucket(100, 3),
        Bucket(64, 64),
    ],
)
def test_capture_layout_keeps_the_buckets_own_bounds(bucket):
    bench = Bench([bucket])
    assert bench.runner.buckets == (bucket,)


def test_times_come_from_the_backend():
    bench = Bench(backend=SpyBackend(accelerated=True, times=lambda n: (n / 10, n / 5)))
    assert {b.num_tokens: (t.replay_ms, t.eager_ms) for b, t in bench.times} == {
        n: (n / 10, n / 5) for n in (32, 64, 128)
    }
    assert all(t.capture_ms > 0 for _, t in bench.times)


def test_timed_eager_run_is_what_eager_requests_get():
    """With metadata of an exact layout, not with the spare slots and the loose bound of a graph."""
    seen = []
    tower = FakeTower()

    def forward(inputs, metadata):
        seen.append((type(metadata.attention), metadata.max_segments, metadata.max_segment_len))
        return tower.encoder_forward(inputs, metadata)

    Bench([Bucket(64, 4)], encoder_fn=forward)
    assert seen == [(SegmentAttention, 4, 16)] + [(BlockMaskAttention, 4 + 1, 64)] * 2


# ---- replay ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("segments", [(32,), (4,), (12, 20), (4, 4), (28, 4)])
def test_replay_equals_the_oracle_and_the_uncaptured_run(bucket, segments):
    bench = Bench()
    items = [make_item((128,), seed=9)]
    bench.replay(items, BUCKETS[-1])  # dirty buffers
    items = [make_item(segments, tag=1)]
    replayed = bench.replay(items, bucket)
    close(replayed, expected(bench, items))
    uncaptured = bench.replay(items, bucket, uncaptured=True)
    assert all(torch.equal(replayed[n], uncaptured[n]) for n in replayed)
    full = Bench(provider=Provider(SegmentAttention()))  # uncaptured only: it bakes the layout
    per_segment = full.replay(items, bucket, uncaptured=True)
    close(per_segment, expected(bench, items))


def test_uncaptured_run_leaves_the_graph_alone_and_replay_the_function():
    bench = Bench()
    calls, replays = len(bench.calls), bench.backend.replays
    items = [make_item((8,))]
    bench.replay(items, Bucket(32, 2))
    assert (len(bench.calls) - calls, bench.backend.replays - replays) == (0, 1)
    bench.replay(items, Bucket(32, 2), uncaptured=True)
    assert (len(bench.calls) - calls, bench.backend.replays - replays) == (1, 1)


@pytest.mark.parametrize("value", [1e30, float("nan"), float("inf")])
def test_poisoned_arena_does_not_reach_the_request(value):
    clean, dirty = Bench(), Bench()
    items = [make_item((8, 4)), make_item((4,), tag=2)]
    for name, tensor in dirty.inputs[128].items():
        if name != "layout":
            tensor.fill_(value if tensor.is_floating_point() else 2**30)
    want, got = clean.replay(items, Bucket(128, 4)), dirty.replay(items, Bucket(128, 4))
    for name in want:
        assert torch.isfinite(got[name]).all()
        assert torch.equal(got[name], want[name])
    assert not dirty.inputs[128]["x"][16:].any()
    assert not dirty.inputs[128]["layout"][16:].any()


def test_rows_that_want_gradients_leave_no_trace_in_the_buffers():
    bench = Bench()
    item = make_item((8,))
    with torch.enable_grad():
        wanting = {**item, "x": item["x"].clone().requires_grad_()}
        got = bench.replay([wanting], Bucket(32, 2))
        close(got, expected(bench, [item]))
        assert not any(t.requires_grad for t in (*got.values(), *bench.inputs[32].values()))


def test_result_does_not_depend_on_the_batch_mates():
    bench = Bench()
    mine, other = make_item((8, 4)), make_item((12,), tag=3)
    alone = bench.replay([mine], Bucket(64, 4))
    together = bench.replay([other, mine], Bucket(64, 4))
    close({"features": together["features"][3:], "tokens": together["tokens"][12:]}, alone)


def test_second_video_reads_its_own_rows():
    """Items of several segments, cut over several replays out of order."""
    bench = Bench()
    items = [make_item((20,) * 6), make_item((8,), tag=1), make_item((32, 32, 32), tag=2)]
    steps = bench.steps(items, BUCKETS)
    assert len(steps) > 2
    tokens = sum(len(item["x"]) for item in items)
    sinks = bench.sinks(tokens, float("nan"))
    for step in steps:
        bench.run(step, items, sinks)
    close(bench.named(sinks), expected(bench, items))


def test_outputs_are_the_callers_own():
    bench = Bench()
    first = bench.replay([make_item((16,))], Bucket(32, 2))
    before = {name: tensor.clone() for name, tensor in first.items()}
    bench.replay([make_item((32,), tag=5)], Bucket(32, 2))
    bench.replay([make_item((128,), tag=6)], Bucket(128, 4))
    bench.runner.release()
    assert all(torch.equal(first[name], before[name]) for name in first)


def test_weights_written_in_place_are_seen():
    bench = Bench()
    items = [make_item((16,))]
    before = bench.replay(items, Bucket(32, 2))
    with torch.no_grad():
        bench.tower.merger.weight.mul_(2)
    after = bench.replay(items, Bucket(32, 2))
    assert not torch.equal(before["features"], after["features"])
    close(after, expected(bench, items))


# ---- bounds ----------------------------------------------------------------------------------

BOUNDED = (Bucket(32, 2, 16), Bucket(64, 3, 24))


@pytest.mark.parametrize(
    ("bucket", "segments", "what"),
    [
        (BOUNDED[0], (16, 16), None),
        (BOUNDED[0], (16, 20), "too_many_tokens"),
        (BOUNDED[0], (4, 4), None),
        (BOUNDED[0], (4, 4, 4), "too_many_segments"),
        (BOUNDED[0], (16,), None),
        (BOUNDED[0], (20,), "segment_too_long"),
        (BOUNDED[1], (24, 24, 16), None),
        (BOUNDED[1], (24, 24, 20), "too_many_tokens"),
        (BOUNDED[1], (24, 28), "segment_too_long"),
        (BOUNDED[1], (4,) * 4, "too_many_segments"),
    ],
)
def test_every_bound_is_checked_before_anything_is_written(bucket, segments, what):
    bench = Bench(BOUNDED)
    items = [make_item(segments)]
    if what is None:
        close(bench.replay(items, bucket), expected(bench, items))
        return
    sinks = bench.sinks(sum(segments))
    arena = {name: tensor.clone() for name, tensor in bench.inputs[64].items()}
    replays = bench.backend.replays
    for uncaptured in (False, True):
        with pytest.raises(ValueError, match=f"does not fit bucket .*: {what}"):
            bench.run(bench.step(items, bucket), items, sinks, uncaptured=uncaptured)
    assert all((tensor == -1).all() for tensor in sinks)
    assert all(torch.equal(bench.inputs[64][name], t) for name, t in arena.items())
    assert bench.backend.replays == replays


@pytest.mark.parametrize(("tokens", "fits"), [(28, False), (32, True)])
def test_without_padding_only_the_exact_size(tokens, fits):
    bench = Bench([Bucket(32, 2)], enable_padding=False)
    items = [make_item((tokens,))]
    if fits:
        close(bench.replay(items, Bucket(32, 2)), expected(bench, items))
        return
    with pytest.raises(ValueError, match="no_exact_bucket"):
        bench.replay(items, Bucket(32, 2))


def test_bucket_that_is_not_captured():
    bench = Bench()
    items = [make_item((4,))]
    for bucket in (Bucket(48, 2), Bucket(32, 3), Bucket(32, 2, 32)):
        with pytest.raises(ValueError, match=r"not captured; there are \['32x2', '64x4', '128x4'"):
            bench.replay(items, bucket)
    bench.runner.drop(Bucket(32, 2))
    with pytest.raises(ValueError, match="bucket 32x2 is not captured"):
        bench.replay(items, Bucket(32, 2))
    assert bench.backend.alive == [128, 64]


# ---- addresses -------------------------------------------------------------------------------


class Rebinding(Provider):
    rebind = False

    def refresh_in_place(self, metadata, segment_lengths):
        super().refresh_in_place(metadata, segment_lengths)
        if self.rebind:
            metadata.cu_seqlens = metadata.cu_seqlens.clone()


@pytest.mark.parametrize("uncaptured", [False, True])
def test_moved_metadata_is_an_error(uncaptured):
    bench = Bench(provider=Rebinding())
    bench.replay([make_item((8,))], Bucket(32, 2))
    bench.provider.rebind = True
    items, sinks = [make_item((4, 4))], bench.sinks(8)  # another layout: it is refreshed
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"'cu_seqlens' moved .*0x\w+ -> 0x\w+.*not rebind"):
            bench.run(bench.step(items, Bucket(32, 2)), items, sinks, uncaptured=uncaptured)
    assert all((tensor == -1).all() for tensor in sinks)


class NotATensor(Provider):
    graph_critical_attrs = ("cu_seqlens", "max_segment_len")


def test_critical_attribute_that_is_no_tensor():
    with pytest.raises(CaptureError, match=r"TypeError: graph-critical .*'max_segment_len' is 128"):
        Bench(provider=NotATensor())


# ---- failure ---------------------------------------------------------------------------------


def wrong_outputs(change):
    def forward(self, inputs, metadata):
        return change(dict(FakeTower.encoder_forward(self, inputs, metadata)))

    return forward


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda out: {"features": out["features"]}, r"returned .*declares .*'tokens'"),
        (lambda out: {**out, "more": out["tokens"]}, "'more'"),
        (lambda out: {**out, "tokens": out["tokens"][1:]}, r"\[127, 8\].*declares .*\[128, 8\]"),
        (lambda out: {**out, "features": out["features"][:1]}, r"\[1, 5\].*\[32, 5\]"),
        (lambda out: {**out, "tokens": out["tokens"][:, :1]}, r"\[128, 1\]"),  # not broadcast
    ],
)
def test_outputs_that_are_not_as_declared(change, what):
    tower = FakeTower()
    forward = wrong_outputs(change)
    with pytest.raises(CaptureError, match=rf"(?s)bucket 128x4 failed: ValueError: .*{what}"):
        Bench(encoder_fn=lambda inputs, metadata: forward(tower, inputs, metadata))


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_failure_rolls_everything_back(fail_at):
    buffers = []

    def forward(inputs, metadata):
        buffers.extend(weakref.ref(t) for t in inputs.values())
        if inputs["x"].shape[0] == (128, 64, 32)[fail_at]:
            raise MemoryError("out of it")
        return FakeTower.encoder_forward(tower, inputs, metadata)

    tower = FakeTower()
    bench = Bench(encoder_fn=forward, capture=False)
    bucket = sorted(BUCKETS, reverse=True)[fail_at]
    with (
        torch.enable_grad(),
        pytest.raises(CaptureError, match=rf"{bucket.label} failed: MemoryError: out of") as error,
    ):
        list(bench.runner.capture(BUCKETS))
    assert isinstance(error.value.__cause__, MemoryError)
    assert torch.is_grad_enabled()
    assert gc.isenabled()
    assert bench.runner.buckets == ()
    assert bench.runner.static_bytes == 0
    assert bench.backend.alive == []
    bench.inputs.clear()
    del error
    gc.collect()
    assert all(ref() is None for ref in buffers)
    with pytest.raises(ValueError, match=r"not captured; there are \[\]"):
        bench.replay([make_item((4,))], Bucket(32, 2))


def test_no_memory_for_the_buffers_is_a_capture_failure():
    class Big(type(make_adapter())):  # type: ignore[misc]
        def allocate_outputs(self, num_tokens, device):
            raise torch.OutOfMemoryError("no room for outputs")

    adapter = make_adapter()
    adapter.__class__ = Big
    bench = Bench(adapter=adapter, capture=False)
    with pytest.raises(CaptureError, match="128x4 failed: OutOfMemoryError: no room"):
        list(bench.runner.capture(BUCKETS))
    assert bench.runner.static_bytes == 0


def test_host_read_names_operation_and_bucket():
    tower = FakeTower()

    def forward(inputs, metadata):
        scale = inputs["x"].sum().item()
        return {n: t * scale for n, t in tower.encoder_forward(inputs, metadata).items()}

    with pytest.raises(CaptureError, match=r"128x4 failed: CaptureUnsafeError: .*_local_scalar"):
        Bench(encoder_fn=forward)


# ---- release ---------------------------------------------------------------------------------


def test_release_twice_and_capture_again():
    bench = Bench()
    bench.runner.release()
    bench.runner.release()
    assert bench.backend.alive == []
    assert (bench.runner.buckets, bench.runner.static_bytes) == ((), 0)
    with pytest.raises(ValueError, match="not captured"):
        bench.replay([make_item((4,))], Bucket(32, 2))
    assert [b for b, _ in bench.runner.capture(BUCKETS[:2])] == [BUCKETS[1], BUCKETS[0]]
    items = [make_item((16, 8))]
    close(bench.replay(items, Bucket(64, 4)), expected(bench, items))


def test_new_buffers_are_not_taken_for_the_old_ones():
    bench = Bench()
    items = [make_item((16, 8), tag=1)]
    for _ in range(2):
        close(bench.replay(items, Bucket(64, 4)), expected(bench, items))
        bench.runner.release()
        list(bench.runner.capture(BUCKETS))


def test_release_and_replay_hold_the_session():
    bench = Bench()
    sessions = bench.backend.sessions
    bench.replay([make_item((4,))], Bucket(32, 2))
    assert bench.backend.sessions == sessions + 1
    bench.runner.release()
    assert bench.backend.sessions == sessions + 2


def test_specs_of_another_dtype():
    """Rows and outputs are converted to what the adapter declares."""
    spec = EncoderGraphTensorSpec
    adapter = make_adapter(
        output_specs={
            "features": spec((OUT,), torch.bfloat16, UNIT),
            "tokens": spec((WIDTH,), torch.float64),
        }
    )
    bench = Bench(adapter=adapter)
    items = [make_item((8,))]
    blocks = [
        torch.zeros(1, 2, OUT, dtype=torch.bfloat16),
        torch.zeros(1, 8, WIDTH, dtype=torch.float64),
    ]
    bench.run(bench.step(items, Bucket(32, 2)), items, blocks)
    want, sinks = expected(bench, items), bench.named(blocks)
    torch.testing.assert_close(sinks["tokens"].float(), want["tokens"])
    torch.testing.assert_close(sinks["features"], want["features"].bfloat16(), rtol=1e-2, atol=1e-2)
