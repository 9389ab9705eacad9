# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""``benchmarks/startup.py`` end to end on a CPU, with tiny towers, and its targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import startup


@pytest.mark.slow
def test_two_processes_capture_twice_each(tmp_path: Path) -> None:
    command = ["--device", "cpu", "--tiny", "--commit", "0123456", "--out", str(tmp_path)]
    assert startup.main(command) == 0
    (path,) = tmp_path.glob("*.json")
    assert path.name == "startup_qwen3_omni_vision_qwen3_omni_audio.json"
    result = json.loads(path.read_text())
    cases = ["first start", "first start, once more", "restart", "restart, once more"]
    assert [row["case"] for row in result["rows"]] == cases
    for row in result["rows"]:
        parts = [row[f"{name}_seconds"] for name in startup.TARGETS]
        assert all(seconds > 0 for seconds in parts)
        assert row["together_seconds"] == pytest.approx(sum(parts))
        assert row["together_mib"] is None  # the driver of a CPU counts nothing
        assert not row["qwen3_omni_vision_graphs"].startswith("0 ")
    assert result["targets"] == []
    assert result["commit"] == "0123456"


def rows(first: float, restart: float, seconds: float) -> list[dict[str, Any]]:
    return [
        {"together_mib": first, "together_seconds": 20.0},
        {"together_mib": 1.0, "together_seconds": 1.0},
        {"together_mib": restart, "together_seconds": seconds},
        {"together_mib": 1.0, "together_seconds": 1.0},
    ]


def test_targets_are_those_of_a_restart() -> None:
    def verdicts(*measured: float) -> list[bool]:
        found = startup.evaluate(startup.TARGETS, startup.DEVICE, rows(*measured))
        return [target["passed"] for target in found]

    assert verdicts(614, 600, 6.0) == [True, True]
    assert verdicts(615, 600, 6.1) == [False, False]
    assert verdicts(600, 615, 5.0) == [False, True]
    assert startup.evaluate(startup.TARGETS, "cpu", rows(1, 1, 1)) == []
    assert startup.evaluate(("radio_h",), startup.DEVICE, rows(1, 1, 1)) == []
