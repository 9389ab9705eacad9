# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Case 49, the short version; `make soak` is the long one."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import soak
from serving_bench.client import Answer

MIB = 2**20


@pytest.mark.slow
def test_case_49_half_a_minute_of_mixed_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    code = soak.main(["--seconds", "30"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    found = json.loads(printed.out)
    for count in ("right, streaming", "right, not streaming", "hung up, streaming", "refused"):
        assert found[count] > 0


def new_soak(samples: list[tuple[int, int, int]]) -> soak.Soak:
    made = soak.Soak(SimpleNamespace(url=""), 1.0, 1, 0)
    made.samples = [soak.Sample(*held) for held in samples]
    return made


@pytest.mark.parametrize(
    ("late", "grown"),
    [
        ((100 * MIB, 30, 9), []),
        ((125 * MIB, 30, 9), ["rss"]),
        ((100 * MIB, 35, 18), ["fds", "threads"]),
    ],
)
def test_growth_is_a_problem(late: tuple[int, int, int], grown: list[str]) -> None:
    # What is taken in the first quarter is warm-up.
    samples = [(50 * MIB, 5, 2)] * 5 + [(100 * MIB, 30, 9)] * 10 + [late] * 5
    made = new_soak(samples)
    made.growth()
    assert [problem.split(" grew")[0] for problem in made.problems] == grown


def test_a_wrong_answer_is_a_problem() -> None:
    made = new_soak([])
    kind = made.kinds[0]
    kind.answer = Answer("right", prompt_tokens=3, completion_tokens=4)
    made._check(kind, kind.answer, "streaming")
    assert made.problems == []
    for wrong in (
        Answer("wrong", prompt_tokens=3, completion_tokens=4),
        Answer("right", prompt_tokens=3, completion_tokens=5),
        Answer("right", prompt_tokens=3, completion_tokens=4, error="server_error"),
    ):
        made.problems.clear()
        made._check(kind, wrong, "streaming")
        assert len(made.problems) == 1
    assert made.counts == {"right, streaming": 1}
