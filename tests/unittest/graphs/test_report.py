# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Reports and counters as values, and what a terminal shows of them."""

from __future__ import annotations

import pytest

from tensorrt_llm_ext.graphs.buckets import Bucket, EagerReason, Load
from tensorrt_llm_ext.graphs.layout import Eager, EncoderItem, Replay, SegmentRun
from tensorrt_llm_ext.graphs.report import (
    BucketReport,
    EncoderCacheStats,
    EncoderStats,
    KvCacheReport,
    StartupReport,
    TowerReport,
)

RUN = (SegmentRun(0, 0, 2, 0, 0, 24),)


def test_record():
    stats = EncoderStats()
    replay = Replay(RUN, (8, 16), Bucket(64, 2))
    stats.record(2, [replay, replay, Eager(RUN, (8, 16), EagerReason.TOO_MANY_TOKENS)])
    stats.record(1, [Replay(RUN, (8, 16), Bucket(32, 2))])
    assert stats.model_dump() == {
        "items": 3,
        "segments": 8,
        "replays": {"64x2": 2, "32x2": 1},
        "eager": {"too_many_tokens": 1},
        "real_tokens": 96,
        "padded_tokens": 40 + 40 + 8,
    }


def test_add():
    stats = EncoderStats(items=1, segments=2, real_tokens=3, padded_tokens=4, replays={"a": 5})
    other = EncoderStats(items=10, segments=20, real_tokens=30, padded_tokens=40)
    other.replays, other.eager = {"a": 50, "b": 60}, {"off": 70}
    stats.add(other)
    assert stats.model_dump() == {
        "items": 11,
        "segments": 22,
        "real_tokens": 33,
        "padded_tokens": 44,
        "replays": {"a": 55, "b": 60},
        "eager": {"off": 70},
    }


def test_everything_starts_at_nothing():
    assert all(not value for value in EncoderStats().model_dump().values())
    assert set(EncoderCacheStats().model_dump().values()) == {0}
    tower = TowerReport(modality="image", status="off")
    assert (tower.capture_seconds, tower.graph_memory_bytes, tower.attention_ns) == (0, 0, 0)
    assert StartupReport(model="m", device="cpu", dtype="float32").encoder_cache_bytes == 0


def test_counters_do_not_share_their_dicts():
    first, second = EncoderStats(), EncoderStats()
    first.record(1, [Replay(RUN, (8, 16), Bucket(64, 2))])
    assert second.replays == {}


def test_load_of_a_step():
    assert Replay(RUN, (8, 16), Bucket(64, 2)).load == Load(24, 2, 16)
    assert EncoderItem((8, 16), {}, ()).num_tokens == 24


def line(tokens, **kwargs):
    fields = {"capture_ms": 1.25, "replay_ms": 0.5, "eager_ms": 2.0, "kept": True, "reason": "ok"}
    return BucketReport(num_tokens=tokens, max_segments=8, **{**fields, **kwargs})


CAPTURED = TowerReport(
    modality="image",
    status="captured",
    backend="cuda_graph",
    attention="varlen",
    accelerated=True,
    capture_seconds=1.5,
    graph_memory_bytes=3 << 20,
    buckets=[
        line(64),
        line(128, kept=False, reason="slower than eager"),
        line(256, kept=False, capture_ms=None, replay_ms=None, eager_ms=None, reason="cap"),
    ],
)


def startup(tower, **kwargs):
    report = StartupReport(model="dir", device="cpu", dtype="float32", towers=[tower], **kwargs)
    return report.render()


def test_table_of_buckets():
    text = startup(CAPTURED)
    assert (
        "Encoder 'image': 1 of 3 buckets captured in 1.50 s by cuda_graph (varlen attention), "
        "3.0 MiB"
    ) in text
    rows = [row.split() for row in text.splitlines()]
    assert ["64", "8", "1.25", "0.50", "2.00", "kept:", "ok"] in rows
    assert ["128", "8", "1.25", "0.50", "2.00", "dropped:", "slower", "than", "eager"] in rows
    assert ["256", "8", "-", "-", "-", "dropped:", "cap"] in rows
    assert "nothing was accelerated" not in text


def test_static_buffers_say_that_nothing_was_accelerated():
    text = startup(CAPTURED.model_copy(update={"accelerated": False, "backend": "static_buffers"}))
    assert "static_buffers backend ran" in text
    assert "nothing was accelerated" in text


@pytest.mark.parametrize(
    ("tower", "want"),
    [
        (TowerReport(modality="image", status="off"), "Encoder 'image': graphs off"),
        (
            TowerReport(modality="audio", status="eager", reason="no memory"),
            "Encoder 'audio': eager, no memory",
        ),
    ],
)
def test_towers_without_graphs(tower, want):
    assert want in startup(tower).splitlines()


@pytest.mark.parametrize("explicit", [True, False])
def test_kv_cache_phases_and_notices(explicit):
    kv = KvCacheReport(
        tokens=1000,
        tokens_without_graphs=1200,
        bytes_per_token=64,
        free_bytes=1,
        reserved_bytes=1 << 20,
        explicit=explicit,
    )
    text = startup(
        CAPTURED, kv_cache=kv, phase_seconds={"load": 1.0, "capture": 0.25}, notices=["key x"]
    )
    how = "as configured" if explicit else "from the memory left after capture"
    assert f"KV cache: 1,000 tokens {how}; 1,200 without encoder graphs" in text
    assert "Start-up: load 1.00 s, capture 0.25 s" in text
    assert "Notice: key x" in text


@pytest.mark.parametrize(("size", "shown"), [(3 << 20, "3.0 MiB"), (0, "off")])
def test_encoder_output_cache(size, shown):
    assert (
        f"Encoder output cache: {shown}" in startup(CAPTURED, encoder_cache_bytes=size).splitlines()
    )
