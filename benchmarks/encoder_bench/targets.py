# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Targets, and whether a result meets them. They are stated for one H200; ratios are of one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PLAIN_RATIOS = {
    "qwen3_vl_8b": {"1x256": 1.85, "8x256": 1.8, "1x1024": 1.85, "1x4096": 1.7, "64x256": 1.75}
}
SHIPPED_RATIOS = {"qwen3_vl_8b": {"64x256": 1.7}}
COMPILED_AIM = 1.25
SWEEP_RATIO = 1.02
LADDER_MIB = {"qwen3_vl_8b": 450, "qwen3_omni_vision": 400}
DEVICE = "NVIDIA H200"
CAPTURE_SECONDS = {"qwen3_vl_8b": 3.0, "qwen3_omni_vision": 3.0}
HOST_US = {("repeated", 8): 60.0, ("repeated", 16): 84.0, ("new", 8): 300.0}
HOST_TOWERS = ("qwen3_vl_8b",)
PROVISIONAL_US = {
    "qwen3_omni_audio": {"30s": 2500.0},
    "radio_h": {"1x1024": 3500.0},
    "glm_4_1v": {"1x1024": 3700.0},
}


def evaluate(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Holds a result against the targets of its tower.

    Args:
        result: Of one tower, as it is written.

    Returns:
        Per target: ``target`` (words), ``at_least`` or ``at_most``, ``unit``, ``measured`` (None:
        not measured), ``passed`` (None likewise), and where they are so ``provisional`` and
        ``aim``. Nothing for another device or a tiny tower.
    """
    if result["device"] != DEVICE or result["options"]["tiny"]:
        return []
    tower = result["tower"]
    cases = {entry["case"]: entry["arms"] for entry in result.get("cases", ())}
    found: list[dict[str, Any]] = []
    for case, bound in PLAIN_RATIOS.get(tower, {}).items():
        measured = _gain(cases.get(case, {}), "plain")
        found.append(_target(f"{case}: ours against plain captured", bound, measured))
    shipped = SHIPPED_RATIOS.get(tower, {})
    for case in dict.fromkeys([*cases, *shipped]):
        measured = _gain(cases.get(case, {}), "transformers")
        bound = shipped.get(case, 1.0)
        if measured is not None or case in shipped:
            found.append(_target(f"{case}: ours against transformers as shipped", bound, measured))
    for entry in result.get("cases", ()):
        if "compiled" in entry["arms"] or "compiled" in entry.get("failed", {}):
            name = f"{entry['case']}: ours against torch.compile"
            measured = _gain(entry["arms"], "compiled")
            found.append({**_target(name, 1.0, measured), "aim": COMPILED_AIM})
    found += _of_sweep(result.get("sweep", ()))
    found += _of_capture(tower, result.get("capture", {}).get("ours"))
    found += _of_host(tower, result.get("host", ()))
    for case, bound in PROVISIONAL_US.get(tower, {}).items():
        took = cases.get(case, {}).get("ours", {}).get("median_us")
        found.append({**limit(f"{case}: ours", bound, took, "us"), "provisional": True})
    return found


def _gain(arms: Mapping[str, Any], other: str) -> float | None:
    """How many times longer another arm takes."""
    if "ours" not in arms or other not in arms:
        return None
    return round(arms[other]["median_us"] / arms["ours"]["median_us"], 3)


def _of_sweep(points: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    points = list(points)
    if points:
        ratios = [p["ratio"] for p in points if p["ratio"] is not None]
        worst = max(ratios) if len(ratios) == len(points) else None
        yield limit(
            f"slowest of {len(points)} batches of the sweep: time of ours over its own eager time",
            SWEEP_RATIO,
            worst,
            "x",
        )


def _of_capture(tower: str, capture: Mapping[str, Any] | None) -> Iterable[dict[str, Any]]:
    found = capture or {}
    if tower in LADDER_MIB:
        yield limit(
            "graphs by the driver's count", LADDER_MIB[tower], found.get("driver_mib"), "MiB"
        )
    if tower in CAPTURE_SECONDS:
        seconds = found.get("captures_seconds")
        yield limit("capture itself", CAPTURE_SECONDS[tower], seconds, "s")


def _of_host(tower: str, entries: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    if tower in HOST_TOWERS:
        by_kind = {(e["layout"], e["items"]): e["arms"].get("ours", {}) for e in entries}
        for (layout, items), bound in HOST_US.items():
            took = by_kind.get((layout, items), {}).get("beyond_launch_us")
            name = f"host time of a {layout} layout of {items} items beyond the graph launch"
            yield limit(name, bound, took, "us")


def _target(words: str, bound: float, measured: float | None) -> dict[str, Any]:
    passed = None if measured is None else measured >= bound
    return {
        "target": words,
        "at_least": bound,
        "unit": "x",
        "measured": measured,
        "passed": passed,
    }


def limit(words: str, bound: float, measured: float | None, unit: str) -> dict[str, Any]:
    """A target that a measurement must not exceed, in the form of ``evaluate``."""
    passed = None if measured is None else measured <= bound
    return {"target": words, "at_most": bound, "unit": unit, "measured": measured, "passed": passed}
