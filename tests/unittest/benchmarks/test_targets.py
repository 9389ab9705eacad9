# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Targets are met, missed or not measured, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from encoder_bench.targets import DEVICE, evaluate


def case(name: str, **medians: float) -> dict[str, Any]:
    return {"case": name, "arms": {arm: {"median_us": us} for arm, us in medians.items()}}


def result(tower: str = "qwen3_vl_8b", **parts: Any) -> dict[str, Any]:
    return {"tower": tower, "device": DEVICE, "options": {"tiny": False}, **parts}


def verdicts(value: dict[str, Any]) -> dict[str, tuple[float | None, bool | None]]:
    return {t["target"]: (t["measured"], t["passed"]) for t in evaluate(value)}


def test_ratios_against_plain_captured() -> None:
    found = verdicts(
        result(
            cases=[case("1x256", plain=1850.0, ours=1000.0), case("8x256", plain=1799, ours=1e3)]
        )
    )
    assert found["1x256: ours against plain captured"] == (1.85, True)
    assert found["8x256: ours against plain captured"] == (1.799, False)
    for name in ("1x1024", "1x4096", "64x256"):
        assert found[f"{name}: ours against plain captured"] == (None, None)
    bounds = {
        t["target"]: t["at_least"] for t in evaluate(result()) if "plain captured" in t["target"]
    }
    assert list(bounds.values()) == [1.85, 1.8, 1.85, 1.7, 1.75]


def test_transformers_as_shipped() -> None:
    found = verdicts(
        result(
            cases=[
                case("1x64", transformers=999.0, ours=1000.0),
                case("mixed16", transformers=1000.0, ours=1000.0),
                case("64x256", transformers=1690.0, ours=1000.0),
            ]
        )
    )
    assert found["1x64: ours against transformers as shipped"] == (0.999, False)
    assert found["mixed16: ours against transformers as shipped"] == (1.0, True)
    assert found["64x256: ours against transformers as shipped"] == (1.69, False)
    assert verdicts(result())["64x256: ours against transformers as shipped"] == (None, None)


def test_compiled() -> None:
    failed = {**case("8x256", ours=1000.0), "failed": {"compiled": "RuntimeError: no"}}
    entries = evaluate(result(cases=[case("1x256", compiled=1100.0, ours=1000.0), failed]))
    compiled = [t for t in entries if "torch.compile" in t["target"]]
    assert [(t["measured"], t["passed"], t["aim"]) for t in compiled] == [
        (1.1, True, 1.25),
        (None, None, 1.25),
    ]


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [([0.5, 1.02], (1.02, True)), ([1.0, 1.0201], (1.0201, False)), ([1.0, None], (None, None))],
)
def test_sweep(ratios: list[float | None], expected: tuple[float | None, bool | None]) -> None:
    found = verdicts(result(sweep=[{"ratio": ratio} for ratio in ratios]))
    (verdict,) = (v for name, v in found.items() if "sweep" in name)
    assert verdict == expected


def test_memory_and_capture() -> None:
    capture = {"ours": {"driver_mib": 450.0, "captures_seconds": 3.01}}
    found = verdicts(result(capture=capture))
    assert found["graphs by the driver's count"] == (450.0, True)
    assert found["capture itself"] == (3.01, False)
    omni = verdicts(result("qwen3_omni_vision", capture=capture))
    assert omni["graphs by the driver's count"] == (450.0, False)


def test_host_time() -> None:
    host = [
        {"items": items, "layout": layout, "arms": {"ours": {"beyond_launch_us": us}}}
        for layout, items, us in (("repeated", 8, 60.0), ("repeated", 16, 85.0), ("new", 8, 300.5))
    ]
    found = {name: v for name, v in verdicts(result(host=host)).items() if "host time" in name}
    assert list(found.values()) == [(60.0, True), (85.0, False), (300.5, False)]


def test_provisional() -> None:
    (target,) = (
        t
        for t in evaluate(result("radio_h", cases=[case("1x1024", ours=3400.0)]))
        if t.get("provisional")
    )
    assert (target["at_most"], target["measured"], target["passed"]) == (3500.0, 3400.0, True)


def test_another_device_or_a_tiny_tower_has_no_targets() -> None:
    cases = [case("1x256", plain=2.0, ours=1.0)]
    assert evaluate(result(cases=cases))
    assert evaluate({**result(cases=cases), "device": "cpu"}) == []
    assert evaluate({**result(cases=cases), "options": {"tiny": True}}) == []
