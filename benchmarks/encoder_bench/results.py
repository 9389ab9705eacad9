# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""A tower's result file: ``encoder_<tower>.json``, written after every step."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import torch
import transformers

from .arms import ARMS
from .floors import BYTES_PER_US, FLOPS_PER_US
from .targets import evaluate

TITLES = {
    "qwen3_vl_8b": "Qwen3-VL-8B vision tower",
    "qwen3_omni_vision": "Qwen3-Omni vision tower",
    "qwen3_omni_audio": "Qwen3-Omni audio tower",
    "glm_4_1v": "GLM-4.1V vision tower",
    "radio_h": "C-RADIO-H, 10 learned tokens a picture on top of the patches",
}
_SAME = ("benchmark", "device", "torch", "transformers", "triton", "commit")
"""What has to be equal for parts of two runs to stand in one file."""


class ResultFile:
    """Holds a result and keeps the file up to date."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        """Goes on with the file that is there, where it is of the same code and machine."""
        self.path = path
        self.value: dict[str, Any] = dict(head)
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if all(before.get(key) == head[key] for key in _SAME):
                self.value = {**before, **head}

    def put(self, part: str, value: Any) -> None:
        """Replaces a part and writes the file."""
        self.value[part] = value
        self.write()

    def put_case(self, entry: dict[str, Any]) -> None:
        """Adds a case, or replaces the one of its name, and writes the file."""
        cases = {case["case"]: case for case in self.value.get("cases", ())}
        cases[entry["case"]] = entry
        self.put("cases", list(cases.values()))

    def write(self) -> None:
        """Writes the file with its targets and README's rows brought up to date."""
        self.value["targets"] = evaluate(self.value)
        self.value["rows"] = summary_rows(self.value)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.value, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")


def head_of(
    tower: str, device: torch.device, commit: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Everything about a result that is not measured."""
    on_cuda = device.type == "cuda"
    return {
        "benchmark": f"encoder_{tower}",
        "tower": tower,
        "title": f"{TITLES[tower]}, {'bf16' if on_cuda else 'fp32'}, random weights, inputs on the "
        "device, median time of a whole encode",
        **facts_of(device, commit),
        "options": options,
        "arms": ARMS,
        "floor": {"tflops": FLOPS_PER_US / 1e6, "tb_per_s": BYTES_PER_US / 1e6},
    }


def facts_of(device: torch.device, commit: str) -> dict[str, Any]:
    """Device, versions, commit and date."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "triton": _triton_version(),
        "commit": commit,
        "date": datetime.date.today().isoformat(),
    }


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)


def summary_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """A row of README's table for each case."""
    rows = []
    cases = result.get("cases", ())
    measured = [arm for arm in ARMS if any(arm in entry["arms"] for entry in cases)]
    for entry in cases:
        arms = entry["arms"]
        row: dict[str, Any] = {"case": entry["case"], "tokens": entry["tokens"]}
        for arm in measured:
            took = arms.get(arm, {}).get("median_us")
            row[f"{arm}_ms"] = None if took is None else round(took / 1e3, 4)
        floor = max(entry["floor_flops_us"], entry["floor_bytes_us"])
        row["floor_ms"] = round(floor / 1e3, 4)
        if "plain" in arms and "ours" in arms:
            ratio = arms["plain"]["median_us"] / arms["ours"]["median_us"]
            row["plain_over_ours"] = f"{ratio:.2f}x"
        for arm in ("transformers", "ours"):
            error = arms.get(arm, {}).get("error")
            row[f"{arm}_error"] = None if error is None else f"{error:.2e}"
        rows.append(row)
    return rows
