# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""self_check: a bucket whose replay is not the eager run is dropped, by name."""

from __future__ import annotations

import logging

import pytest

from .fakes import SpyBackend, assert_outputs, captured_tower, make_item


class LyingBackend(SpyBackend):
    """Spoils an output after the replay of one bucket, unless its inputs are zeros."""

    def __init__(self, liar: int | None) -> None:
        super().__init__()
        self._liar = liar

    def capture(self, body, *, warmup_steps):
        graph = super().capture(body, warmup_steps=warmup_steps)
        cells = dict(zip(body.__code__.co_freevars, body.__closure__, strict=True))
        outputs, inputs = (cells[name].cell_contents for name in ("outputs", "inputs"))
        replay, liar = graph.replay, self.captured[-1] == self._liar

        def lie():
            replay()
            if liar:
                outputs["tokens"][0] += inputs["x"].abs().max()

        graph.replay = lie
        return graph


@pytest.mark.parametrize(
    ("check", "liar", "kept"),
    [
        (True, None, [64, 128, 192, 256]),
        (True, 128, [64, 192, 256]),
        (False, 128, [64, 128, 192, 256]),  # off by default: nobody looks
    ],
)
def test_a_lying_bucket_is_dropped(check, liar, kept, caplog):
    entry = {"max_batch_size": 4, **({"self_check": True} if check else {})}
    with caplog.at_level(logging.ERROR):
        tower = captured_tower(256, LyingBackend(liar), **entry)
    report = tower.capture_encoder_cuda_graphs()
    assert [b.num_tokens for b in report.buckets if b.kept] == kept
    errors = [r.getMessage() for r in caplog.records]
    if check and liar:
        assert len(errors) == 1
        assert "bucket 128x4 is dropped" in errors[0]
        assert errors[0].endswith("in tokens")
        (line,) = [b for b in report.buckets if not b.kept]
        assert line.reason == "self-check failed: tokens"
        items = [make_item((100,)), make_item((28,), tag=1)]
        assert_outputs(tower, items, tower.encode(items))
    else:
        assert errors == []
