# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of segments: which of them one copy takes."""

from __future__ import annotations

from tensorrt_llm_ext.graphs.layout import SegmentRun, joined_runs


def run(batch_token: int, num_tokens: int) -> SegmentRun:
    return SegmentRun(0, 0, 1, 0, batch_token, num_tokens)


def test_neighbours_are_joined_wherever_they_are():
    assert joined_runs([run(0, 4), run(4, 8)]) == [(0, 0, 12)]
    assert joined_runs([run(0, 4), run(8, 4), run(12, 8), run(20, 4)]) == [(0, 0, 4), (4, 8, 16)]
    assert joined_runs([run(8, 4), run(0, 4), run(4, 4)]) == [(0, 8, 4), (4, 0, 8)]
    assert joined_runs([run(4, 4), run(4, 4)]) == [(0, 4, 4), (4, 4, 4)]
