# SPDX-FileCopyrightText: Copyright (c) 2026 The tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
"""From the answers of all servers to rows, targets and a file."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers

from .cases import Case
from .checkpoints import MODELS
from .client import Answer

TTFT_BOUND = 1.0
KV_BOUND = 0.98
Rung = dict[str, Any]
"""Of one server and concurrency: ``memory``, ``arm``, ``concurrency``, ``answers``, ..."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def same_share(some: Sequence[Answer], others: Sequence[Answer]) -> float:
    """Share of the requests with the same text in two runs."""
    pairs = list(zip(some, others, strict=True))
    return sum(a.text == b.text for a, b in pairs) / len(pairs)


def summary(
    rungs: Iterable[Rung], servers: Sequence[dict[str, Any]], max_tokens: int
) -> list[dict[str, Any]]:
    """A row for each memory and concurrency.

    Args:
        rungs: Of all servers.
        servers: One entry a server: ``memory``, ``arm``, ``kv_tokens``.
        max_tokens: Tokens that every answer must have.
    """
    groups: dict[tuple[str, int], dict[str, list[Rung]]] = {}
    for rung in rungs:
        arms = groups.setdefault((rung["memory"], rung["concurrency"]), {"off": [], "on": []})
        arms[rung["arm"]].append(rung)
    several = len({memory for memory, _ in groups}) > 1
    rows = []
    for (memory, concurrency), arms in groups.items():
        if not (arms["off"] and arms["on"]):
            continue
        case = f"{concurrency} at once" + (f", {memory}" if several else "")
        rows.append({"case": case, **_row(arms, max_tokens), **kv_columns(servers, memory)})
    return rows


def kv_columns(servers: Sequence[dict[str, Any]], memory: str) -> dict[str, int]:
    """Tokens of the KV caches under a memory setting, the median of each arm's servers."""
    columns = {}
    for arm in ("off", "on"):
        tokens = [s["kv_tokens"] for s in servers if (s["memory"], s["arm"]) == (memory, arm)]
        if tokens:
            columns[f"KV tokens {arm}"] = int(median(tokens))
    return columns


def _row(arms: dict[str, list[Rung]], max_tokens: int) -> dict[str, Any]:
    row: dict[str, Any] = {"requests": len(arms["on"][0]["answers"])}
    for share, name in ((0.5, "p50"), (0.99, "p99")):
        for arm, runs in arms.items():
            first = [a.ttft_s for run in runs for a in run["answers"] if a.ttft_s is not None]
            took = round(percentile(first, share) * 1e3, 3) if first else None
            row[f"TTFT_{name}_{arm}_ms"] = took
    for arm, runs in arms.items():
        rate = sum(len(run["answers"]) for run in runs) / sum(run["seconds"] for run in runs)
        row[f"requests/s {arm}"] = round(rate, 2)
    pairs = [(off, on) for off in arms["off"] for on in arms["on"]]
    row["same answers"] = _percent([same_share(a["answers"], b["answers"]) for a, b in pairs])
    within = [
        same_share(a["answers"], b["answers"]) for runs in arms.values() for a, b in pairwise(runs)
    ]
    row["same answers in one arm"] = _percent(within) if within else None
    counts = [
        (answer.prompt_tokens, answer.completion_tokens)
        for run in (*arms["off"], *arms["on"])
        for answer in run["answers"]
    ]
    expected = [(p, max_tokens) for p, _ in counts[: row["requests"]]]
    row["wrong token counts"] = sum(
        found != expected[index % row["requests"]] for index, found in enumerate(counts)
    )
    row["replays on"] = _counts(arms["on"], "replays")
    row["items on"] = _counts(arms["on"], "items")
    return row


def _percent(shares: Sequence[float]) -> str:
    return f"{100 * sum(shares) / len(shares):.1f}%"


def _counts(runs: Sequence[Rung], key: str) -> str:
    """Per modality, all runs together."""
    sums: dict[str, float] = {}
    for run in runs:
        for modality, count in run[key].items():
            sums[modality] = sums.get(modality, 0) + count
    return ", ".join(f"{modality} {count:g}" for modality, count in sorted(sums.items()) if count)


def targets(
    rows: Sequence[dict[str, Any]], servers: Sequence[dict[str, Any]], *, timed: bool
) -> list[dict[str, Any]]:
    """What the result has to meet, and whether it does.

    Args:
        rows: See `summary`.
        servers: One entry a server: ``memory``, ``arm``, ``kv_tokens``.
        timed: Whether times count; they do not on a CPU, where nothing is accelerated.
    """
    found = []
    for row in rows:
        off, on = row["TTFT_p50_off_ms"], row["TTFT_p50_on_ms"]
        if timed:
            ratio = None if off is None or on is None else round(on / off, 4)
            found.append(_target(f"{row['case']}: TTFT p50 on over off", ratio, most=TTFT_BOUND))
        wrong = row["wrong token counts"]
        found.append(_target(f"{row['case']}: wrong token counts", wrong, most=0, unit=""))
        if row["case"].startswith("1 at once"):
            same = float(row["same answers"].rstrip("%"))
            name = f"{row['case']}: same greedy answers"
            found.append(_target(name, same, least=100, unit="%"))
    for memory in dict.fromkeys(server["memory"] for server in servers):
        tokens = kv_columns(servers, memory)
        if len(tokens) == 2:
            ratio = round(tokens["KV tokens on"] / tokens["KV tokens off"], 4)
            name = f"KV tokens on over off, memory: {memory}"
            found.append(_target(name, ratio, least=KV_BOUND))
    return found


def _target(
    name: str,
    measured: float | None,
    *,
    most: float | None = None,
    least: float | None = None,
    unit: str = "x",
) -> dict[str, Any]:
    bound = {"at_most": most} if least is None else {"at_least": least}
    passed = None
    if measured is not None:
        passed = measured <= most if most is not None else measured >= (least or 0)
    return {"target": name, **bound, "unit": unit, "measured": measured, "passed": passed}


def head_of(
    case: Case, device: torch.device, commit: str, options: dict[str, Any]
) -> dict[str, Any]:
    """Everything about a result that is not measured."""
    on_cuda, model = device.type == "cuda", MODELS[case.model].title
    dtype = case.config["dtype"]
    return {
        "benchmark": f"serving_{case.name}",
        "title": f"{model}, random weights, {dtype}, over HTTP, encoder graphs off and on",
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "device_memory_bytes": (
            torch.cuda.get_device_properties(device).total_memory if on_cuda else None
        ),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "options": options,
    }


def as_json(rung: Rung) -> dict[str, Any]:
    """A rung without its texts: times of each answer, in order of the requests."""
    answers: list[Answer] = rung["answers"]
    return {
        **{key: value for key, value in rung.items() if key != "answers"},
        "seconds": round(rung["seconds"], 4),
        "ttft_ms": [None if a.ttft_s is None else round(a.ttft_s * 1e3, 3) for a in answers],
        "total_ms": [round(a.total_s * 1e3, 3) for a in answers],
        "errors": [f"{a.status} {a.error}" for a in answers if a.error is not None],
    }


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the file; lists of numbers stay on one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
