# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""What capturing all encoders of a model takes: seconds, and memory by the driver's count.

    python benchmarks/startup.py                       # Qwen3-Omni: vision and audio
    python benchmarks/startup.py --towers qwen3_vl_8b
    python benchmarks/startup.py --device cpu --tiny   # does it run?

Two processes one after the other: the first finds neither compiled kernels nor remembered forms of
buckets, the second is a restart. Each captures all towers, which have random weights, gives the
graphs back and captures once more. Only the first capture of a process says what the driver needs:
it keeps the memory of graphs that are gone. The result goes to ``startup_<towers>.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from encoder import head_commit, parser_of
from encoder_bench.arms import Subject
from encoder_bench.layouts import Budget
from encoder_bench.results import facts_of
from encoder_bench.targets import DEVICE, limit
from published_towers import TOWERS

CHUNKS = 64  # of sound
MIB, SECONDS = 614, 6.0
TARGETS = ("qwen3_omni_vision", "qwen3_omni_audio")


def capture_all(names: Sequence[str], device: torch.device, *, tiny: bool) -> list[dict[str, Any]]:
    """Captures towers twice in this process.

    Args:
        names: Of ``published_towers``.
        device: Where.
        tiny: Small towers.

    Returns:
        For each time, by tower: what ``Subject.capture`` says.
    """
    subjects = {name: Subject(TOWERS[name], ["ours"], device, tiny=tiny) for name in names}
    found = []
    for _ in range(2):
        captured = {}
        for name, subject in subjects.items():
            budget = None
            if subject.audio and not tiny:
                budget = Budget(CHUNKS, CHUNKS * subject.ours.geometry.chunk_tokens)
            captured[name] = subject.capture("ours", budget=budget)
        found.append(captured)
        for subject in subjects.values():
            subject.ours.release_encoder_cuda_graphs()
    return found


def in_a_child(arguments: Sequence[str], caches: Path) -> list[dict[str, Any]]:
    """``capture_all`` in a process of its own, whose caches are in a folder."""
    out = caches / "found.json"
    folders = {"TRTLLM_EXT_CACHE_DIR": "forms", "TRITON_CACHE_DIR": "kernels"}
    env = {**os.environ, **{name: str(caches / folder) for name, folder in folders.items()}}
    command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--child", str(out)]
    subprocess.run(command, check=True, env=env)
    found: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def row(case: str, captured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A row of README's table."""
    made: dict[str, Any] = {"case": case}
    for name, found in captured.items():
        made[f"{name}_seconds"] = found["seconds"]
        made[f"{name}_mib"] = found["driver_mib"]
        made[f"{name}_graphs"] = f"{found['kept']} of {found['buckets']}"
    made["together_seconds"] = round(sum(found["seconds"] for found in captured.values()), 2)
    mib = [found["driver_mib"] for found in captured.values()]
    made["together_mib"] = None if None in mib else round(sum(mib), 1)
    return made


def evaluate(names: Sequence[str], device: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Targets of Qwen3-Omni on one H200; the restart has compiled kernels, on disk."""
    if tuple(names) != TARGETS or device != DEVICE:
        return []
    first, _, restart, _ = rows
    worst = max(first["together_mib"], restart["together_mib"])
    return [
        limit("both towers' graphs by the driver's count", MIB, worst, "MiB"),
        limit("capture of both after a restart", SECONDS, restart["together_seconds"], "s"),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = parser_of(__doc__ or "")
    parser.add_argument("--towers", nargs="+", choices=list(TOWERS), default=list(TARGETS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small towers, to try it")
    parser.add_argument("--commit", help="default: git's HEAD")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--child", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    if args.child is not None:
        found = capture_all(args.towers, device, tiny=args.tiny)
        args.child.write_text(json.dumps(found), encoding="utf-8")
        return 0
    commit = args.commit or head_commit(parser)
    given = ["--towers", *args.towers, "--device", args.device, *["--tiny"] * args.tiny]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in ("first start", "restart"):
            start = time.perf_counter()
            once, again = in_a_child(given, Path(folder))
            for name, captured in ((case, once), (f"{case}, once more", again)):
                rows.append(row(name, captured))
                print(json.dumps(rows[-1]), flush=True)
            print(f"{case}: {time.perf_counter() - start:.1f} s in all", flush=True)
    facts = facts_of(device, commit)
    value = {
        "benchmark": "startup_" + "_".join(args.towers),
        "title": f"Capture of {' and '.join(args.towers)}, random weights",
        **facts,
        "options": {"tiny": args.tiny},
        "rows": rows,
        "targets": [] if args.tiny else evaluate(args.towers, facts["device"], rows),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{value['benchmark']}.json"
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
