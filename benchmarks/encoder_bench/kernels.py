# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""Time on the device, kernel by kernel, in a process that measures nothing else.

The profiler slows every later launch of its process, so a process that is timed never starts it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from .arms import Subject, prepared
from .layouts import Case
from .timing import Deadline, Failures, Run

_WARMUP, _CALLS = 3, 3
_SHOWN = 8
_EXIT_SECONDS = 5  # to finish a case and write


def profile_cases(subject: Subject, cases: Sequence[Case], deadline: Deadline) -> dict[str, Any]:
    """Profiles every arm of every case, but the compiled one: it would be compiled once more.

    Args:
        subject: Captured.
        cases: What to encode.
        deadline: Later cases are left out.

    Returns:
        Case -> arm -> microseconds of one call; ``failed`` instead of an arm that raised.
    """
    found: dict[str, Any] = {}
    arms = [arm for arm in subject.arms if arm != "compiled"]
    for case in cases:
        if deadline.over():
            break
        items, failures = subject.items(case.shapes), Failures()
        result: dict[str, Any] = {}
        with torch.no_grad():
            calls, _ = prepared(subject, arms, case, items, failures, deadline)
            for arm, call in calls.items():
                with failures.of(arm):
                    result[arm] = profile_call(call.run, subject.device)
        found[case.name] = {**result, **({"failed": dict(failures)} if failures else {})}
    return found


def profile_call(run: Run, device: torch.device) -> dict[str, Any]:
    """Sums what one call keeps the device busy with.

    Args:
        run: The call.
        device: On a CPU its operators stand in for kernels.

    Returns:
        ``kernel_us`` and ``copy_us`` (copies and fills), ``kernels`` (launches), and the kernels
        that take longest.
    """
    on_cuda = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_cuda else ProfilerActivity.CPU
    for _ in range(_WARMUP):
        run()
    if on_cuda:
        torch.cuda.synchronize(device)
    with profile(activities=[activity]) as profiler:
        for _ in range(_CALLS):
            run()
        if on_cuda:
            torch.cuda.synchronize(device)
    kernels: dict[str, tuple[float, int]] = {}
    copies = 0.0
    for event in profiler.key_averages():
        is_kernel = event.device_type == DeviceType.CUDA
        if is_kernel != on_cuda or event.is_user_annotation:  # a range covers its kernels
            continue
        took = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if event.key.startswith(("Memcpy", "Memset")):
            copies += took
        elif took > 0:
            kernels[event.key] = (took / _CALLS, event.count // _CALLS)
    longest = sorted(kernels.items(), key=lambda pair: -pair[1][0])[:_SHOWN]
    return {
        "kernel_us": round(sum(took for took, _ in kernels.values()), 1),
        "copy_us": round(copies / _CALLS, 1),
        "kernels": sum(count for _, count in kernels.values()),
        "longest": [
            {"name": name[:100], "us": round(took, 1), "count": count}
            for name, (took, count) in longest
        ],
    }


def profile_in_child(script: Path, arguments: Sequence[str], deadline: Deadline) -> dict[str, Any]:
    """Runs the script once more, to profile.

    Args:
        script: ``benchmarks/encoder.py``.
        arguments: Of its command line, without ``--profile`` and ``--time-budget``.
        deadline: Until when it may run.

    Returns:
        What ``profile_cases`` found, or ``failed`` with the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "kernels.json"
        command = [sys.executable, str(script), "--profile", str(out), *arguments]
        limit = None
        if math.isfinite(deadline.left()):
            limit = deadline.left()
            if limit < _EXIT_SECONDS:
                return {"failed": "no time was left"}
            command += ["--time-budget", f"{limit - _EXIT_SECONDS:.0f}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done within the {limit:.0f} s that were left"}
        if done.returncode or not out.is_file():
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            return {"failed": f"exit code {done.returncode}: {last[0][:300]}"}
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found
