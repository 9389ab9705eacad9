# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""One log line for each bucket that was dropped, whatever the reason, and none for the others."""

from __future__ import annotations

import logging

import pytest

from .fakes import FakeTower, SpyBackend, graph_config

MIB = 1 << 20


def capture(backend: SpyBackend, **entry: object) -> FakeTower:
    tower = FakeTower()
    tower.configure_encoder_cuda_graph(graph_config(max_batch_size=4, **entry))
    tower.setup_attn_metadata(max_num_tokens=256)
    tower.capture_encoder_cuda_graphs(backend)
    return tower


def dropped(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """(bucket, reason) of the lines, in their order."""
    lines = [r.getMessage() for r in caplog.records if " dropped: " in r.getMessage()]
    for line in lines:
        assert line.startswith("encoder image: bucket ")
    return [
        tuple(line.removeprefix("encoder image: bucket ").split(" dropped: ")) for line in lines
    ]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(None, []), (150 * MIB, ["192x4", "256x4"]), (64 * MIB, ["128x4", "192x4", "256x4"])],
)
def test_memory_limit(
    limit: int | None, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        capture(SpyBackend(bytes_per_token=MIB), max_graph_memory=limit)
    lines = dropped(caplog)
    assert [label for label, _ in lines] == expected
    assert all(why == f"max_graph_memory of {limit:,} bytes" for _, why in lines)


def test_slower_than_eager(caplog: pytest.LogCaptureFixture) -> None:
    times = {64: (0.5, 2.0), 128: (3.0, 2.0), 192: (1.0, 2.0), 256: (4.0, 2.0)}
    with caplog.at_level(logging.INFO):
        capture(SpyBackend(accelerated=True, times=times.__getitem__))
    assert dropped(caplog) == [("128x4", "slower than eager"), ("256x4", "slower than eager")]


def test_both_at_once(caplog: pytest.LogCaptureFixture) -> None:
    backend = SpyBackend(
        accelerated=True, times=lambda n: (2.0, 1.0) if n == 64 else (1.0, 2.0), bytes_per_token=MIB
    )
    with caplog.at_level(logging.INFO):
        capture(backend, max_graph_memory=150 * MIB)
    assert [label for label, _ in dropped(caplog)] == ["64x4", "192x4", "256x4"]
