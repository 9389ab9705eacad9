# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks/aiperf_check.py` and `benchmarks/fuzz_api.py` hold against a run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import aiperf_check
import fuzz_api
import pytest

ROOT = Path(__file__).parents[3]
EXPORTED: dict[str, Any] = {
    "aiperf_version": "0.13.0",
    "input_config": {"artifact_dir": "/somewhere/of/mine"},
    "request_count": {"avg": 16.0},
    "error_summary": [],
    "output_token_count": {"min": 8.0, "max": 8.0},
}


def changed(**values: Any) -> list[str]:
    return aiperf_check.problems({**copy.deepcopy(EXPORTED), **values}, 16)


def test_aiperf_results() -> None:
    assert changed() == []
    assert changed(request_count={"avg": 15.0}) == ["15.0 requests were answered, not 16"]
    assert changed(request_count=None) == ["None requests were answered, not 16"]
    assert len(changed(error_request_count={"avg": 1.0})) == 1
    assert len(changed(error_summary=[{"count": 1}])) == 1
    assert len(changed(output_token_count={"min": 7.0, "max": 8.0})) == 1


def test_nothing_of_the_machine_is_kept() -> None:
    assert "input_config" not in aiperf_check.kept(EXPORTED)
    text = json.dumps(aiperf_check.kept(EXPORTED))
    assert "somewhere" not in text


def test_the_committed_result_had_no_errors() -> None:
    path = ROOT / "benchmarks" / "results" / "aiperf" / "profile.json"
    exported = json.loads(path.read_text())
    assert aiperf_check.problems(exported, int(exported["request_count"]["avg"])) == []
    assert exported["request_count"]["avg"] >= 16


def log(*lines: tuple[str, int, int]) -> str:
    return "\n".join(
        f"x INFO r [id] POST '{path}' {status} in 0.1 s"
        for path, status, count in lines
        for _ in range(count)
    )


CHAT, FEATURES = "/v1/chat/completions", "/v1/embeddings"
GOOD = ((CHAT, 200, 500), (CHAT, 400, 499), (FEATURES, 200, 1))


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        (GOOD, []),
        (GOOD[:2], ["only 999 requests; at least 1000", f"no request for {FEATURES} was good"]),
        ((*GOOD, (CHAT, 500, 2)), ["2 requests were answered 5xx"]),
        ((*GOOD[1:], (FEATURES, 404, 600)), [f"no request for {CHAT} was good"]),
    ],
)
def test_what_schemathesis_sent(lines: Any, problems: list[str]) -> None:
    assert fuzz_api.problems(log(*lines)) == problems


def test_the_lines_that_are_counted_are_the_servers() -> None:
    source = (ROOT / "tensorrt_llm_ext" / "serve" / "middleware" / "request_id.py").read_text()
    assert "%(method)s %(path)r %(status)s in " in source
