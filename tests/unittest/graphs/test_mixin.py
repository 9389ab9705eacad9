# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""The mixin: order of calls, one capture, counters, ownership, threads, modes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tensorrt_llm_ext.graphs.buckets import Bucket
from tensorrt_llm_ext.graphs.layout import Eager, Replay
from tensorrt_llm_ext.graphs.packer import Packer
from tensorrt_llm_ext.llmapi.mm_config import MultimodalConfig
from tensorrt_llm_ext.towers.mixin import MultimodalEncoderMixin

from .fakes import (
    IN,
    OUT,
    UNIT,
    FakeAudioTower,
    FakeTower,
    SpyBackend,
    assert_outputs,
    captured_tower,
    graph_config,
    make_item,
)

ITEMS = [
    make_item((20, 20, 20)),
    make_item((64,), tag=1),
    make_item((4,) * 9, tag=2),
    make_item((300,), tag=3),  # above every bucket
    make_item((8,), tag=4),
]


def same_bits(a, b) -> bool:
    return all(
        torch.equal(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x
    ) and len(a) == len(b)


# ---- order of calls --------------------------------------------------------------------------


def test_capture_before_metadata():
    tower = FakeTower()
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=4))
    with pytest.raises(RuntimeError, match=r"call setup_attn_metadata\(max_num_tokens"):
        tower.capture_encoder_cuda_graphs()
    tower.setup_attn_metadata(max_num_tokens=64)
    assert tower.capture_encoder_cuda_graphs().status == "captured"


def test_capture_before_weights():
    tower = FakeTower().to("meta")
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=4), max_num_tokens=64)
    with pytest.raises(RuntimeError, match="load the weights before capture"):
        tower.capture_encoder_cuda_graphs()


def test_configure_after_capture():
    tower = captured_tower(64)
    with pytest.raises(RuntimeError, match=r"call release_encoder_cuda_graphs\(\) before"):
        tower.configure_encoder_cuda_graph(graph_config(max_batch_size=2))
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=8))  # the same: nothing to do
    assert isinstance(tower.plan([(4,)])[0], Replay)
    tower.release_encoder_cuda_graphs()
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=2))
    assert tower.capture_encoder_cuda_graphs().buckets[0].max_segments == 2


def test_mixin_needs_a_module():
    class Bare(MultimodalEncoderMixin):
        make_io_adapter = encoder_forward = pack_item = make_output = None  # type: ignore

    with pytest.raises(TypeError, match=r"Bare has to be an nn\.Module"):
        _ = Bare().device


def test_configure_selects_the_towers_own_entry():
    tower = FakeAudioTower()
    tower.setup_attn_metadata(max_num_tokens=64)
    tower.configure_encoder_cuda_graph(graph_config("image", max_batch_size=4))
    assert tower.planned_buckets() == ()
    tower.configure_encoder_cuda_graph(graph_config("audio", max_batch_size=4))
    assert [b.label for b in tower.planned_buckets()] == ["64x4"]


# ---- one capture -----------------------------------------------------------------------------


def test_capture_twice_is_one_capture():
    backend = SpyBackend()
    tower = captured_tower(128, backend)
    report = tower.capture_encoder_cuda_graphs()
    assert tower.capture_encoder_cuda_graphs(SpyBackend()) is report
    assert backend.captured == [128, 64]


def test_capture_from_two_threads_is_one_capture():
    backend = SpyBackend()
    tower = FakeTower()
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=4))
    tower.setup_attn_metadata(max_num_tokens=512)
    reports = []
    threads = [
        threading.Thread(target=lambda: reports.append(tower.capture_encoder_cuda_graphs(backend)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert reports[0] is reports[1]
    assert len(backend.captured) == 8


def test_release_twice_then_capture_again():
    backend = SpyBackend()
    tower = captured_tower(128, backend)
    before = tower.encode(ITEMS)
    for _ in range(2):
        tower.release_encoder_cuda_graphs()
    assert backend.alive == []
    eager = tower.encode(ITEMS)
    assert_outputs(tower, ITEMS, eager)
    assert set(tower.encoder_stats().eager) == {"too_many_tokens", "released"}
    again = SpyBackend()
    assert tower.capture_encoder_cuda_graphs(again).status == "captured"
    assert again.captured == [128, 64]
    assert same_bits(tower.encode(ITEMS), before)


def test_release_after_a_failed_capture_allows_another():
    tower = captured_tower(128, SpyBackend(fail_at=1))
    assert tower.capture_encoder_cuda_graphs().status == "eager"
    tower.release_encoder_cuda_graphs()
    assert tower.capture_encoder_cuda_graphs(SpyBackend()).status == "captured"
    assert isinstance(tower.plan([(4,)])[0], Replay)


def test_release_without_capture():
    tower = FakeTower()
    tower.release_encoder_cuda_graphs()
    tower.setup_attn_metadata(max_num_tokens=64)
    tower.encode([make_item((4,))])
    assert tower.encoder_stats().eager == {"graphs_off": 1}


def test_report_of_a_capture():
    report = captured_tower(128).capture_encoder_cuda_graphs()
    assert (report.modality, report.status, report.reason) == ("image", "captured", "")
    assert (report.backend, report.accelerated, report.attention) == (
        "static_buffers",
        False,
        "block_mask",
    )
    assert report.capture_seconds > 0
    assert report.graph_memory_bytes > 128 * IN * 4


# ---- metadata --------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [128, 124, 4])
def test_bucket_equal_to_the_budget(tokens):
    """Metadata of a graph is its own: capture does not enlarge that of eager runs."""
    tower = FakeTower()
    tower.setup_attn_metadata(max_num_tokens=128, attention_metadata_capacity={"attention": 2})
    own = tower.attn_metadata
    assert own is not None
    address = own.cu_seqlens.data_ptr()
    tower.configure_encoder_cuda_graph(graph_config(buckets=[(128, 32)]))
    tower.capture_encoder_cuda_graphs()
    items = [make_item((4,) * (tokens // 4))]
    assert_outputs(tower, items, tower.encode(items))
    assert tower.encoder_stats().replays == {"128x32": 1}
    assert tower.attn_metadata is own
    assert own.max_segments == 2
    assert own.cu_seqlens.data_ptr() == address
    assert_outputs(tower, items, tower.encode(items, eager=True))  # more than its capacity
    assert own.max_segments == 2


# ---- encode ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {"max_batch_size": 8},
        {"max_batch_size": 1},
        {"buckets": [(64, 4)]},
        {"buckets": [(30, 2), (300, 2)]},
        {"max_batch_size": 8, "enable_padding": False},
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_encode_equals_the_oracle(entry, eager):
    tower = FakeTower()
    if entry is not None:
        tower.configure_encoder_cuda_graph(graph_config(**entry))
    tower.setup_attn_metadata(max_num_tokens=128)
    tower.capture_encoder_cuda_graphs()
    for batch in (ITEMS, ITEMS[::-1], ITEMS[2:3], [make_item(())], [ITEMS[0], make_item(())], []):
        assert_outputs(tower, batch, tower.encode(batch, eager=eager))
    stats = tower.encoder_stats()
    assert bool(stats.replays) is (entry is not None and not eager)
    if eager:
        assert set(stats.eager) == {"requested"}


def test_items_of_no_tokens():
    tower = captured_tower()
    assert tower.encode([]) == []
    (out,) = tower.encode([make_item(())])
    assert out.features.shape == (0, OUT)
    assert tower.encoder_stats().replays == {}


@pytest.mark.parametrize("pairs", [1, 7, 8, 9, 200])
def test_long_video_replays_in_pieces(pairs):
    tower = captured_tower(256)
    items = [make_item((8,)), make_item((12,) * pairs, tag=1), make_item((16,) * 3, tag=2)]
    outs = tower.encode(items)
    assert_outputs(tower, items, outs)
    stats = tower.encoder_stats()
    assert stats.eager == {}
    assert sum(stats.replays.values()) >= -(-pairs // 8)
    assert outs[1].features.shape[0] == 12 * pairs // UNIT


def test_outputs_by_name_and_attribute():
    (out,) = captured_tower().encode([make_item((8,))])
    assert out.features is out["features"]
    with pytest.raises(AttributeError, match=r"no output 'nope'; there are \['features'"):
        _ = out.nope


def test_outputs_survive_later_calls_and_the_release():
    tower = captured_tower()
    first = tower.encode(ITEMS)
    kept = [{name: tensor.clone() for name, tensor in out.items()} for out in first]
    tower.encode([make_item((64,) * 5, tag=9)])
    tower.encode(ITEMS, eager=True)
    tower.release_encoder_cuda_graphs()
    assert same_bits(first, kept)


def test_bad_item_stops_the_call_before_any_work():
    backend = SpyBackend()
    tower = captured_tower(backend=backend)
    replays = backend.replays
    bad = {**make_item((8,)), "segments": (12,)}
    with pytest.raises(ValueError, match="item 1: 8 rows for segments"):
        tower.encode([make_item((8,)), bad])
    assert backend.replays == replays
    assert tower.encoder_stats().items == 0
    assert_outputs(tower, ITEMS, tower.encode(ITEMS))


def test_error_in_a_replay_leaves_the_tower_usable():
    tower = captured_tower()
    want = tower.encode(ITEMS)
    broken = {**make_item((8,)), "x": torch.zeros(8, IN + 1)}
    with pytest.raises(RuntimeError, match="size"):
        tower.encode([broken])
    assert same_bits(tower.encode(ITEMS), want)


# ---- plan and counters -----------------------------------------------------------------------


def test_plan_is_what_encode_does():
    tower = captured_tower(128, max_batch_size=2)
    steps = tower.plan([item["segments"] for item in ITEMS])
    tower.encode(ITEMS)
    stats = tower.encoder_stats()
    assert stats.items == len(ITEMS)
    assert stats.segments == sum(len(item["segments"]) for item in ITEMS) == 15
    assert stats.real_tokens == sum(len(item["x"]) for item in ITEMS) == 468
    replays = [s for s in steps if isinstance(s, Replay)]
    assert sum(stats.replays.values()) == len(replays)
    assert stats.padded_tokens == sum(s.bucket.num_tokens - s.load.num_tokens for s in replays)
    assert stats.eager == {"too_many_tokens": 1}
    assert {type(s) for s in tower.plan([(4,)], eager=True)} == {Eager}


@pytest.mark.parametrize(
    ("batch", "replays", "eager", "real", "padded"),
    [
        ([(64,)], {"64x8": 1}, {}, 64, 0),
        ([(60,)], {"64x8": 1}, {}, 60, 4),
        ([(8,)] * 8, {"64x8": 1}, {}, 64, 0),
        ([(4,)] * 9, {"64x8": 2}, {}, 36, 92),
        ([(256,)], {"256x8": 1}, {}, 256, 0),
        ([(260,)], {}, {"too_many_tokens": 1}, 260, 0),
        ([(260,), (8,)], {"64x8": 1}, {"too_many_tokens": 1}, 268, 56),
        ([], {}, {}, 0, 0),
    ],
)
def test_counters(batch, replays, eager, real, padded):
    tower = captured_tower(256)
    tower.encode([make_item(segments) for segments in batch])
    stats = tower.encoder_stats()
    assert (stats.replays, stats.eager) == (replays, eager)
    assert (stats.real_tokens, stats.padded_tokens) == (real, padded)
    assert (stats.items, stats.segments) == (len(batch), sum(map(len, batch)))


def test_counters_are_a_copy_and_add_up():
    tower = captured_tower(64)
    tower.encode([make_item((4,))])
    before = tower.encoder_stats()
    tower.encode([make_item((4,))])
    tower.encode([make_item((4,))], eager=True)
    assert before.replays == {"64x8": 1}
    stats = tower.encoder_stats()
    assert (stats.replays, stats.eager) == ({"64x8": 2}, {"requested": 1})


@pytest.mark.parametrize("tokens", [28, 32, 36])
def test_without_padding_only_exact_sizes_replay(tokens):
    tower = captured_tower(128, buckets=[(32, 2)], enable_padding=False)
    items = [make_item((tokens,))]
    assert_outputs(tower, items, tower.encode(items))
    stats = tower.encoder_stats()
    assert stats.replays == ({"32x2": 1} if tokens == 32 else {})
    reason = "no_exact_bucket" if tokens < 32 else "too_many_tokens"
    assert stats.eager == ({} if tokens == 32 else {reason: 1})


def test_runner_knows_of_the_missing_padding_too():
    """Whoever hands it a step: the bound is the runner's, not only the packer's."""
    tower = captured_tower(128, buckets=[(32, 2)], enable_padding=False)
    item = make_item((28,))
    (step,) = Packer([Bucket(32, 2)], eager_token_budget=32).plan([(28,)])
    assert isinstance(step, Replay)
    assert tower._runner is not None
    with pytest.raises(ValueError, match="no_exact_bucket"):
        tower._runner.prepare(step, [tower.pack_item(item)])


@pytest.mark.parametrize(("steps", "besides_the_timed_run"), [(1, 1), (5, 4)])
def test_warm_up_steps_are_those_of_the_entry(steps, besides_the_timed_run):
    backend = SpyBackend()
    seen = []
    capture = backend.capture

    def spy(body, *, warmup_steps):
        seen.append(warmup_steps)
        return capture(body, warmup_steps=warmup_steps)

    backend.capture = spy  # type: ignore[method-assign]
    captured_tower(64, backend, max_batch_size=2, warmup_steps=steps)
    assert seen == [besides_the_timed_run]


LOGGER = "tensorrt_llm_ext.graphs.replay_log"


@pytest.fixture
def _logging_as_before():
    package = logging.getLogger("tensorrt_llm_ext")
    level, handlers = package.level, list(package.handlers)
    yield
    package.setLevel(level)
    package.handlers[:] = handlers


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize("enabled", [True, False])
def test_replay_stats_log_one_line_per_call_and_modality(enabled, caplog):
    towers = []
    for cls, modality in ((FakeTower, "image"), (FakeAudioTower, "audio")):
        tower = cls()
        config = graph_config(modality, max_batch_size=2, enable_replay_stats=enabled)
        tower.configure_encoder_cuda_graph(config)
        tower.setup_attn_metadata(max_num_tokens=64)
        tower.capture_encoder_cuda_graphs()
        towers.append(tower)
    for items in (ITEMS, [make_item((60,))]):
        for tower in towers:
            caplog.clear()
            tower.encode(items)
            lines = [r.getMessage() for r in caplog.records if r.name == LOGGER]
            assert len(lines) == enabled
            assert all(tower.encoder_cuda_graph_modality in line for line in lines)
    if enabled:
        assert lines == ["encoder audio: items=1 tokens=60 padded=4 replays=['64x2'] eager=[]"]


SHOWN = """
import logging
from fakes import FakeTower, graph_config, make_item
{setup}
tower = FakeTower()
tower.configure_encoder_cuda_graph(graph_config(max_batch_size=2, enable_replay_stats={enabled}))
tower.setup_attn_metadata(max_num_tokens=64)
tower.capture_encoder_cuda_graphs()
for _ in range(2):
    tower.encode([make_item((60,))])
"""


@pytest.mark.parametrize(
    ("enabled", "setup", "lines"),
    [
        (True, "", 2),
        (False, "", 0),
        (True, "logging.basicConfig()", 2),  # once, not by us and by the program
        (True, "logging.getLogger('tensorrt_llm_ext').setLevel('WARNING')", 0),
    ],
)
def test_replay_stats_are_seen_on_the_console_unless_the_program_objects(enabled, setup, lines):
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[2])]
    done = subprocess.run(
        [sys.executable, "-c", SHOWN.format(setup=setup, enabled=enabled)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = [line for line in done.stderr.splitlines() if "encoder image: items=1 tok" in line]
    assert (len(seen), done.stdout) == (lines, ""), done.stderr


# ---- threads ---------------------------------------------------------------------------------


def test_two_threads_get_the_sequential_results():
    tower = captured_tower(256)
    batches = [
        [make_item((8 + 4 * i, 12), tag=i), make_item((16,) * (i + 1), tag=i + 10)]
        for i in range(8)
    ]
    want = [tower.encode(batch) for batch in batches]
    got: list = [None] * len(batches)
    errors = []
    start = threading.Barrier(2)

    def work(first):
        try:
            start.wait(10)
            for _ in range(3):
                for i in range(first, len(batches), 2):
                    got[i] = tower.encode(batches[i], eager=i == 3)
                    tower.plan([(4 * (i + 1),)])
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    for i, (mine, sequential) in enumerate(zip(got, want, strict=True)):
        if i == 3:
            assert_outputs(tower, batches[i], mine)
        else:
            assert same_bits(mine, sequential)
    assert tower.encoder_stats().items == 16 + 48


@pytest.mark.parametrize("eager", [True, False])
def test_one_call_at_a_time(eager, monkeypatch):
    """Eager runs share the metadata of the tower: they need the lock as replays do."""
    tower = captured_tower(64)
    inside, most = [], []
    owner, name = (tower._adapter, "fill") if eager else (tower._runner._held, "stage")
    fill = getattr(owner, name)

    def slow_fill(*args):
        inside.append(0)
        most.append(len(inside))
        time.sleep(0.02)
        fill(*args)
        inside.pop()

    monkeypatch.setattr(owner, name, slow_fill)
    threads = [
        threading.Thread(target=lambda: tower.encode([make_item((8,))], eager=eager))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1, 1, 1]


def test_an_error_in_one_thread_does_not_block_the_other():
    tower = captured_tower(64)

    def fail():
        with pytest.raises(RuntimeError):
            tower.encode([{**make_item((8,)), "x": torch.zeros(8, IN + 1)}])

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join(30)
    done = threading.Event()
    other = threading.Thread(target=lambda: (tower.encode([make_item((8,))]), done.set()))
    other.start()
    assert done.wait(30)
    other.join()


# ---- modes around the calls ------------------------------------------------------------------

MODES = {
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("encode_mode", MODES)
@pytest.mark.parametrize("capture_mode", MODES)
def test_modes_change_no_bit(capture_mode, encode_mode):
    items = ITEMS[2:]
    plain = captured_tower(64)
    want, want_eager = plain.encode(items), plain.encode(items, eager=True)
    with MODES[capture_mode]():
        tower = captured_tower(64)
    with MODES[encode_mode]():
        got, got_eager = tower.encode(items), tower.encode(items, eager=True)
    assert same_bits(got, want)
    assert same_bits(got_eager, want_eager)
    for out in got + got_eager:
        for tensor in out.values():
            assert not tensor.requires_grad
            assert not tensor.is_inference()  # the caller's own: it may be written
    assert same_bits(tower.encode(items), want)


def test_inputs_that_want_gradients():
    tower = captured_tower(64)
    item = make_item((8,))
    want = tower.encode([item])
    got = tower.encode([{**item, "x": item["x"].clone().requires_grad_()}])
    assert same_bits(got, want)
    assert not got[0].features.requires_grad


def test_dropout_in_the_region_is_refused():
    class Drops(FakeTower):
        def encoder_forward(self, inputs, metadata):
            out = dict(super().encoder_forward(inputs, metadata))
            out["tokens"] = torch.dropout(out["tokens"], 0.5, self.training)
            return out

    for training in (True, False):
        tower = Drops().train(training)
        tower.configure_encoder_cuda_graph(graph_config(max_batch_size=2))
        tower.setup_attn_metadata(max_num_tokens=64)
        report = tower.capture_encoder_cuda_graphs()
        assert report.status == ("eager" if training else "captured")
        assert ("random" in report.reason) is training


def test_off_is_the_default():
    tower = FakeTower()
    tower.configure_encoder_cuda_graph(MultimodalConfig())
    tower.setup_attn_metadata(max_num_tokens=64)
    report = tower.capture_encoder_cuda_graphs(SpyBackend())
    assert (report.status, report.graph_memory_bytes, report.buckets) == ("off", 0, [])
    assert tower.planned_buckets() == ()
